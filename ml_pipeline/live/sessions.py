"""Find the sessions in a folder and describe each on one screen or in one line, from its files alone."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, nearest
from ml_pipeline.config.json_object import parse_json
from ml_pipeline.config.wording import counted, shown_path, text_table
from ml_pipeline.live.session_files import REPORT_FILE, STATUS_FILE, is_session, last_sign_of_life, root_of_sessions
from ml_pipeline.live.supervision.heartbeat import read_pulse
from ml_pipeline.runs.state import in_words, read_state, readable_state
from ml_pipeline.runtime.files import read_regular


def find_sessions(root: Path | None, name: str | None) -> list[Path]:
    """The folders of all sessions: running ones first, then by their last sign of life, latest first.

    name: return this session only; None: all. Raises UserError if there is none.
    """
    folder = root_of_sessions(root)
    found = {path.name: path for path in sorted(folder.glob("*/")) if is_session(path)}
    if name is None:
        if not found:
            raise UserError(
                f"{shown_path(folder)} has no session; start one with `ml-pipeline paper-trade --model MODEL`, or name "
                "another folder with --root."
            )
        return sorted(found.values(), key=lambda path: (_runs(path), last_sign_of_life(path)), reverse=True)
    if name not in found:
        known = nearest(name, found) if found else "It has no session at all; name another folder with --root."
        raise UserError(f'{shown_path(folder)} has no session "{name}". {known}')
    return [found[name]]


def find_session(root: Path | None, name: str | None) -> Path:
    """The folder of the session with this name; None: of the running or latest one.

    Raises UserError if there is none, or if several run and no name is given.
    """
    first, *others = find_sessions(root, name)
    running = [each.name for each in (first, *others) if _runs(each)]
    if name is None and len(running) > 1:
        raise UserError(f"Several sessions run: {', '.join(sorted(running))}; name one of them.")
    return first


def _runs(folder: Path) -> bool:
    state = readable_state(folder)
    return state is not None and state.status == "running"


_MOST_POSITIONS = 20
_MOST_BYTES = 1_000_000


def ended(folder: Path) -> str | None:
    """How the session ended, in a sentence; None if it trades, or was killed and can be restarted."""
    state = read_state(folder)
    if state is None or state.status == "running" or state.ended is None:
        return None
    return f"The session {folder.name} does not trade: {in_words(state.status)}."


def status_lines(folder: Path) -> list[str]:
    """The session at its last bar. Raises UserError if one of its files is broken."""
    state, status = read_state(folder), _status_of(folder)
    lines = [f"{folder.name}: {'it has not begun' if state is None else in_words(state.status)}"]
    if state is not None and state.reason and state.status != "running":
        lines.append(state.reason)
    if state is not None and state.status == "running" and (pulse := read_pulse(folder)) is not None:
        lines.append(f"{pulse.in_words()}.".capitalize())
    if status is None:
        return [*lines, "", str(shown_path(folder))]
    try:
        lines += _body(status, told=lines)
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):
        lines += [
            "",
            f"{shown_path(folder / STATUS_FILE)} is not the status of a session; the next bar rewrites it.",
        ]
    report = folder / REPORT_FILE
    return [*lines, "", str(shown_path(report if report.is_file() else folder))]


def status_line(folder: Path) -> str:
    """The session in one line, even if one of its files is broken."""
    try:
        state, status = read_state(folder), _status_of(folder) or {}
        does = "it has not begun" if state is None else in_words(state.status)
        return ", ".join([f"{folder.name}: {does}", *_last_bar(status)])
    except UserError as error:
        return f"{folder.name}: {error}"
    except (TypeError, ValueError, ArithmeticError):
        return f"{folder.name}: {does}; its {STATUS_FILE} is not the status of a session."


def _last_bar(status: dict[str, Any]) -> list[str]:
    """The last bar and the equity after it; empty before the first bar."""
    equity = _equity(status)
    return [f"last bar {_time(status['bar'])}", f"equity {equity}"] if status.get("bar") else []


def _equity(status: dict[str, Any]) -> str:
    """With the return since the start: `10,210.00 (+2.10 %)`."""
    equity, begun = status.get("equity"), status.get("start_equity")
    earned = status.get("time_weighted_return", equity / begun - 1 if equity and begun else None)
    change = "" if earned is None else f" ({100 * earned:+.2f} %)"
    return "-" if equity is None else f"{equity:,.2f}{change}"


def _body(status: dict[str, Any], *, told: Sequence[str]) -> list[str]:
    """The session's own status, without the lines in `told`. A file that was edited by hand may raise any error."""
    if not status:
        raise ValueError("not a JSON object")
    lines = ["", text_table(_rows(status))]
    if positions := {symbol: n for symbol, n in (status.get("positions") or {}).items() if n}:
        more = len(positions) - _MOST_POSITIONS
        rows = [["position", "quantity"], *([symbol, f"{n:,.8g}"] for symbol, n in positions.items())]
        lines += ["", text_table(rows[: _MOST_POSITIONS + 1]), *([f"and {more:,} more"] if more > 0 else [])]
    if status.get("last_sentence") and status["last_sentence"] not in told:
        lines += ["", str(status["last_sentence"])]
    return lines


def _rows(status: dict[str, Any]) -> list[list[str]]:
    latency = status.get("latency_ms") or {}
    refusals = status.get("refusals") or {}
    model = " ".join(filter(None, [str(status.get("model")), status.get("version")]))
    money = "real money" if status.get("real_money") else "no real money"
    rows = {
        "model": model,
        "broker": f"{status.get('broker')}, {money}",
        "last bar": _time(status.get("bar")),
        "bars, fills": f"{status.get('bars') or 0:,}, {status.get('fills') or 0:,}",
        "equity": _equity(status),
        "cash": "-" if status.get("cash") is None else f"{status['cash']:,.2f}",
        "open orders": f"{status.get('open_orders') or 0:,}",
        "refusals": ", ".join(f"{guard} {counted(n, 'time')}" for guard, n in refusals.items()) or "none",
        "bar to orders": "-" if latency.get("median") is None else f"{latency['median']} ms, 99 % {latency['p99']} ms",
        "updated": _time(status.get("updated")),
    }
    return [["", ""], *([name, value] for name, value in rows.items())]


def _time(text: object) -> str:
    """A time from a file, to the second: `2024-03-01 14:30:00 UTC`."""
    return f"{str(text)[:19].replace('T', ' ')} UTC" if text else "-"


def _status_of(folder: Path) -> dict[str, Any] | None:
    """The content of live.json: empty if it is not a JSON object, None if there is no file."""
    try:
        status = parse_json(read_regular(folder / STATUS_FILE, most_bytes=_MOST_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{folder / STATUS_FILE} cannot be read: {error.strerror}.") from error
    except ValueError:
        return {}
    return status if isinstance(status, dict) else {}

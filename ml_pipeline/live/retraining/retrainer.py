"""Start a retraining when it is due, and report its result.

Nothing here waits: a thread writes the bars, and another process trains, judges and deploys the model. `ModelWatch`
finds a new version like any other.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import lasting
from ml_pipeline.jobs.child import Child
from ml_pipeline.jobs.exit_reason import how_it_ended, tail
from ml_pipeline.live.retraining.bars import reading, write_bars
from ml_pipeline.live.retraining.config import RetrainConfig, due_bar
from ml_pipeline.live.retraining.retraining_run import settings_of_retraining
from ml_pipeline.live.retraining.task_folder import (
    BARS,
    EARLIER,
    OUTPUT,
    RUN,
    SETTINGS,
    Outcome,
    RetrainOrder,
    orders_in,
    read_order,
    read_outcome,
    write_order,
    write_outcome,
)
from ml_pipeline.runs.folder import LATEST_CHECKPOINT
from ml_pipeline.runs.trained.deployed import is_version_folder
from ml_pipeline.runs.trained.restore import find_policy, load_run
from ml_pipeline.runtime.files import only_regular, read_regular, written_whole
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig

RETRAINING_FOLDER = "retraining"
"""Name within the folder of a session."""
_BEGUN = "begun"
"""File with the time of the bar from which the interval to the first retraining is counted."""
_MOST_BYTES = 1_000
_MODULE = "ml_pipeline.live.retraining.training_process_main"
_MOST_SAID = 300

EventState = Literal["begun", "resumed", "skipped", "promoted", "refused", "failed"]


class RetrainEvent(NamedTuple):
    """An event of a retraining, for the log of the session. bar: when it was due."""

    state: EventState
    number: int
    bar: np.datetime64
    sentence: str
    version: str | None = None

    def as_json(self) -> dict[str, Any]:
        bar = str(self.bar.astype("datetime64[s]"))
        return {
            "state": self.state,
            "number": self.number,
            "due": bar,
            "sentence": self.sentence,
            "version": self.version,
        }


@dataclass(frozen=True, kw_only=True)
class RetrainedSession:
    """The session whose model is retrained.

    folder: the session's folder, whose name is that of the session. named: the model as the user named it. checkpoint:
    of the current model, with links of `named` resolved. trading: settings of the session's market, costs and limits.
    """

    folder: Path
    named: Path
    checkpoint: Path
    trading: TradingConfig
    package_version: str | None = None


class Retrainer:
    """Starts retrainings, one at a time; `close` ends a running one, which a later session continues."""

    def __init__(self, config: RetrainConfig, session: RetrainedSession, model: Path) -> None:
        """model: the folder for versions, such as models/NAME. Raises UserError if the session cannot be retrained, or
        its folder cannot be read."""
        assert config.interval is not None
        if session.trading.per_symbol:
            raise UserError(
                "retrain_every needs one account that trades all symbols, but per_symbol gives each its own account; "
                "use one of them."
            )
        self._config, self._session, self._model, self._interval = config, session, model, config.interval
        self._folder = session.folder / RETRAINING_FOLDER
        self._folder.mkdir(parents=True, exist_ok=True)
        self._since: np.datetime64 | None = None
        self._number = 0
        self._under_way: tuple[RetrainingProcess, np.datetime64] | None = None
        self._interrupted: Path | None = None
        self._read_earlier()

    @property
    def under_way(self) -> int | None:
        """The number of the running retraining, or None."""
        return None if self._under_way is None else self._number

    @property
    def pid(self) -> int | None:
        """ID of the training process, or None."""
        return None if self._under_way is None else self._under_way[0].pid

    def poll(self, market: Callable[[], MarketData], running: Path, running_name: str) -> list[RetrainEvent]:
        """Call once per bar. Starts a retraining if one is due, and returns the events since the last call.

        market: returns all bars so far, in arrays that later bars do not change. running: the checkpoint or version
        that trades. running_name: its name.
        """
        events = list(self._ended())
        if self._interrupted is not None:
            events.append(self._take_up(self._interrupted))
            self._interrupted = None
        bars = market()
        if self._since is None:
            self._since = bars.times[-1]
            # On a full disk the session continues, and counts from its next start.
            with contextlib.suppress(OSError), written_whole(self._folder / _BEGUN, "w", encoding="utf-8") as file:
                file.write(f"{self._since}\n")
        due = due_bar(bars.times, self._since, self._interval)
        if due is not None:
            time = bars.times[due]
            events.append(self._begin(bars.bars(0, due + 1), time, running, running_name))
            self._since = self._counted_from(time)
        return events

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for a running retraining. Returns whether none is running."""
        if self._under_way is None:
            return True
        self._under_way[0].wait(timeout_s)
        return self._under_way[0].is_done

    def close(self) -> None:
        """End a running retraining; may be called twice."""
        if self._under_way is not None:
            self._under_way[0].end()
            self._under_way = None

    def _counted_from(self, due: np.datetime64) -> np.datetime64:
        """The start of the next interval. If intervals are time spans, this is the exact end of the current one, not
        the time of the bar at which it was due.
        """
        span = self._interval.span
        if span is None:
            return due
        assert self._since is not None
        return self._since + int((due - self._since) / span) * span

    def _read_earlier(self) -> None:
        folders = orders_in(self._folder)
        try:
            text = read_regular(self._folder / _BEGUN, most_bytes=_MOST_BYTES).decode().strip()
            self._since = np.datetime64(text, "ns")
        except FileNotFoundError:
            return
        except (OSError, ValueError) as error:
            raise UserError(f"{self._folder / _BEGUN} cannot be read: {error}; delete {self._folder}.") from error
        for folder in folders:
            self._since = self._counted_from(np.datetime64(read_order(folder).due, "ns"))
            self._number = int(folder.name)
        if folders and read_outcome(folders[-1]) is None:
            self._interrupted = folders[-1]

    def _ended(self) -> Iterator[RetrainEvent]:
        if self._under_way is None or not self._under_way[0].is_done:
            return
        (process, due), self._under_way = self._under_way, None
        outcome = process.outcome
        assert outcome is not None
        sentence = outcome.sentence
        if outcome.state == "failed":
            sentence = f"Retraining {self._number} failed, so the current model stays: {sentence}"
        yield RetrainEvent(outcome.state, self._number, due, sentence, outcome.version)

    def _begin(self, bars: MarketData, due: np.datetime64, running: Path, name: str) -> RetrainEvent:
        if self._under_way is not None:
            sentence = f"A retraining is due, but retraining {self._number} is still running; this one is skipped."
            return RetrainEvent("skipped", self._number, due, sentence)
        self._number += 1
        folder = self._folder / str(self._number)
        number, config, session = self._number, self._config, self._session

        def prepare() -> None:
            latest = bars
            if config.retrain_bars is not None:
                latest = bars.bars(max(0, bars.n_bars - config.retrain_bars), bars.n_bars)
            checkpoint = find_policy(running)
            model, _ = load_run(checkpoint)
            folder.mkdir()
            write_bars(latest, folder / BARS)
            settings = settings_of_retraining(
                model,
                reading(session.trading, latest, folder / BARS),
                folder,
                begin_with=checkpoint if config.retrain_from == "deployed" else None,
                timesteps=config.retrain_timesteps,
            )
            write_yaml(folder / SETTINGS, settings)
            if config.retrain_data is not None:
                earlier = replace(session.trading, data=config.retrain_data.expanduser().absolute())
                write_yaml(folder / EARLIER, flatten(replace(model, trading=earlier)))
            write_order(
                folder,
                RetrainOrder(
                    number=number,
                    session=session.folder.name,
                    due=str(due),
                    begin=config.retrain_from,
                    validation=config.retrain_validation,
                    min_dsr=config.retrain_min_dsr,
                    margin=config.retrain_margin,
                    incumbent=str(checkpoint.parent if is_version_folder(checkpoint.parent) else checkpoint),
                    incumbent_name=name,
                    models=str(self._model.parent),
                    name=self._model.name,
                    cores=_last_cores(config.retrain_cores),
                    package_version=session.package_version,
                    n_bars=latest.n_bars,
                    earlier_bars=None if config.retrain_bars is None else config.retrain_bars - latest.n_bars,
                ),
            )

        self._under_way = self._process(folder, prepare), due
        sentence = f"Retraining {number} begins, on the bars up to {str(due)[:16]}; {name} trades until it ends."
        return RetrainEvent("begun", number, due, sentence)

    def _take_up(self, folder: Path) -> RetrainEvent:
        order = read_order(folder)
        due = np.datetime64(order.due, "ns")
        self._under_way = self._process(folder, lambda: None), due
        goes_on = (folder / RUN / LATEST_CHECKPOINT).is_file()
        how = "continues from its last checkpoint" if goes_on else "had no checkpoint and starts over"
        return RetrainEvent(
            "resumed", order.number, due, f"Retraining {order.number} was interrupted with the session; it {how}."
        )

    def _process(self, folder: Path, prepare: Callable[[], None]) -> "RetrainingProcess":
        return RetrainingProcess(folder, prepare, time_limit_s=self._config.retrain_time_limit_s)


class RetrainingProcess:
    """One retraining: a thread starts its process and waits for it; when `is_done`, `outcome` is set.

    prepare: writes the folder, in the thread. `end` ends the process and its children, and keeps the folder so that the
    retraining can continue later.
    """

    def __init__(self, folder: Path, prepare: Callable[[], None], *, time_limit_s: float) -> None:
        self.folder = folder
        self.outcome: Outcome | None = None
        """The result; None while it runs, or if it was ended."""
        self._prepare = prepare
        self._time_limit_s = time_limit_s
        self._child: Child | None = None
        self._ending = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="retraining", daemon=True)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        return not self._thread.is_alive()

    @property
    def pid(self) -> int | None:
        """ID of the process; None before its start."""
        return None if self._child is None else self._child.pid

    def wait(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` for its end."""
        self._thread.join(timeout_s)

    def end(self) -> None:
        """End it and wait for its thread; may be called twice."""
        with self._lock:
            self._ending = True
            if self._child is not None:
                self._child.kill()
        self._thread.join()

    def _run(self) -> None:
        try:
            outcome = self._retrain()
        except (UserError, OSError) as error:
            reason = str(error) if isinstance(error, UserError) else f"{error.strerror or error}."
            outcome = Outcome(state="failed", sentence=f"It could not start: {reason}")
        if outcome is not None:
            with contextlib.suppress(OSError):  # a full disk: the next start tries again
                if read_outcome(self.folder) is None:
                    write_outcome(self.folder, outcome)
            self.outcome = outcome

    def _retrain(self) -> Outcome | None:
        self._prepare()
        with open(self.folder / OUTPUT, "a", encoding="utf-8", opener=only_regular) as output:
            with self._lock:
                if self._ending:
                    return None
                self._child = Child(_MODULE, {"folder": str(self.folder)}, purpose="a retraining", log=output)
            with self._child as child:
                code = child.wait(self._time_limit_s)
        if self._ending:
            return None
        if code is None:
            return Outcome(
                state="failed", sentence=f"It took longer than {lasting(self._time_limit_s)}, and was ended."
            )
        return read_outcome(self.folder) or Outcome(state="failed", sentence=self._end_in_words(code))

    def _end_in_words(self, code: int) -> str:
        if code < 0:
            return f"Its process was {how_it_ended(code)}."
        said = " ".join(tail(self.folder / OUTPUT).rstrip().rpartition("\n")[2].split())
        return f"Its process {how_it_ended(code)}{f': {excerpt(said, _MOST_SAID)}' if said else '.'}"


def _last_cores(n: int) -> tuple[int, ...]:
    """The last n of the cores that this process may use; empty if the system has no such list."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0))[-n:])

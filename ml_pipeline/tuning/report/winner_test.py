"""Opens the test split once for the winner of a study, and reports who opened it, when, and how often.

For a Gymnasium environment, the test is fresh episodes with seeds that no trial used.
"""

import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import optuna

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.json_object import finite
from ml_pipeline.reporting.report_files import EVALUATION_FILE
from ml_pipeline.runs.folder import BEST_CHECKPOINT, refuse_links, report_folder
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.report_heading import write_report_heading
from ml_pipeline.trading.evaluation.looks import Look
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.promotion.model_store import digest_of
from ml_pipeline.tuning.promotion.verdict import SavedPolicy
from ml_pipeline.tuning.report.test_opening import (
    WINNER_TEST_FOLDER,
    Opening,
    read_openings,
    record_opening,
    record_result,
    take_over,
)

OpenTest = Literal["once", "again", "never"]
"""Whether a report may open the test: if it was never opened, also for another winner, or not at all."""

HeldOut = Literal["the test split", "fresh episodes"]


@dataclass(frozen=True, eq=False)
class HeldOutTest:
    """A loaded policy and the task to test it in, before the evaluation.

    checkpoint: SHA-256 of the file. run: evaluates, writes a report into a folder, records the look, and returns the
    figures.
    """

    what: HeldOut
    checkpoint: str
    run: Callable[[Path, Look], Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """The trial to test. folder: of its run, None if unknown. is_final: all trials have ended."""

    number: int
    folder: Path | None
    is_final: bool
    unfinished: str = ""
    """Why the winner is not final, as a sentence."""


@dataclass(frozen=True)
class WinnerTest:
    """The state of the test: every opening, the one of the current winner if any, and sentences about them."""

    openings: tuple[Opening, ...]
    of_winner: Opening | None
    sentences: tuple[str, ...]


def see_test(
    study: optuna.Study, study_folder: Path, candidate: Candidate | None, open_test: OpenTest = "once"
) -> WinnerTest:
    """Open the test for the winner if that is allowed, and return its state.

    It is allowed if all trials have ended, and the test was not opened before or `open_test` is "again". The record is
    on disk before the evaluation begins. Raises UserError if the record or the report cannot be written.
    """
    openings = read_openings(study, study_folder)
    if candidate is None:
        return _told(openings, None, ["There is no winner to test."])
    own = _own(openings, candidate)
    resumable = own is not None and own.result is None and not own.is_under_way
    closed = _why_closed(openings, candidate, open_test, resumable=resumable)
    if closed is not None:
        return _told(openings, candidate, closed)
    try:
        if candidate.folder is None:
            raise UserError(f"Trial {candidate.number} has no record of its run folder.")
        test = held_out_test(candidate.folder)
    except UserError as error:
        return _told(openings, candidate, [f"The test could not be opened: {error}"])
    remarks = []
    if own is None or not resumable:
        _open(study, study_folder, openings, candidate, test)
    elif test.checkpoint != own.checkpoint:
        remarks = [
            f"Its evaluation was cut off, and the best checkpoint of trial {own.trial} has changed since, so the "
            "result is lost."
        ]
    elif take_over(study, study_folder, own):  # the same policy on the same data is no second look
        record_result(study, study_folder, own, test.run(study_folder / own.folder, own.as_look(study.study_name)))
    return _told(read_openings(study, study_folder), candidate, remarks)


def _why_closed(
    openings: Sequence[Opening], candidate: Candidate, open_test: OpenTest, *, resumable: bool
) -> list[str] | None:
    """The sentences, possibly none, if nothing will be evaluated; None if the winner will be."""
    own = _own(openings, candidate)
    if open_test == "never":
        return [] if openings else ["The test was not opened, because of --no-open-test."]
    if own is not None and own.result is not None:
        return []
    if resumable:
        return None
    if own is not None and open_test != "again":  # "again": another machine may or may not be evaluating it
        return []
    if openings and open_test != "again":
        return [_another_winner(openings[-1], candidate)]
    return None if candidate.is_final else [candidate.unfinished]


def _open(
    study: optuna.Study, study_folder: Path, openings: Sequence[Opening], candidate: Candidate, test: HeldOutTest
) -> None:
    """Record that the test is opened, and evaluate; do nothing if another process was faster."""
    opening = record_opening(
        study,
        study_folder,
        trial=candidate.number,
        checkpoint=test.checkpoint,
        folder="-".join([WINNER_TEST_FOLDER, *([str(len(openings) + 1)] if openings else [])]),
        expected=openings,
    )
    if opening is not None:
        record_result(
            study, study_folder, opening, test.run(study_folder / opening.folder, opening.as_look(study.study_name))
        )


def _own(openings: Sequence[Opening], candidate: Candidate) -> Opening | None:
    """The last opening for this trial."""
    return next((each for each in reversed(openings) if each.trial == candidate.number), None)


def _told(openings: Sequence[Opening], candidate: Candidate | None, remarks: Sequence[str]) -> WinnerTest:
    of_winner = None if candidate is None else _own(openings, candidate)
    sentences = [*_history(openings), *_market_result(of_winner), *remarks]
    if openings and openings[-1].result is None and not any("cut off" in remark for remark in remarks):
        last = openings[-1]
        sentences.append(
            f"{last.by} is evaluating it; write the report again when it has finished."
            if last.is_under_way
            else f"The evaluation for trial {last.trial} was cut off before its result was recorded."
        )
    return WinnerTest(tuple(openings), of_winner, tuple(sentences))


def _history(openings: Sequence[Opening]) -> list[str]:
    if not openings:
        return []
    looks = [f"on {_moment(each.when)} for trial {each.trial} (by {each.by})" for each in openings]
    if len(openings) == 1:
        return [f"The test was opened once, {looks[0]}."]
    return [f"The test was opened {len(openings)} times: {'; '.join(looks)}. Each look makes its result less reliable."]


def _market_result(opening: Opening | None) -> list[str]:
    """The winner's result on the test split, if it is known and the task is a market."""
    result = {} if opening is None or opening.result is None else opening.result
    names = ("total_return", "sharpe", "sharpe_se", "buy_and_hold_total_return", "buy_and_hold_sharpe")
    agent, sharpe, error, market, market_sharpe = (result.get(name) for name in names)
    if opening is None or agent is None or market is None:
        return []
    told = (
        ""
        if sharpe is None or error is None
        else f" with a Sharpe ratio of {sharpe:,.2f} ± {error:,.2f} (standard error)"
    )
    beside = "" if not told or market_sharpe is None else f" with one of {market_sharpe:,.2f}"
    return [
        f"On the test split, after costs, trial {opening.trial} returned {100 * agent:+,.1f} %{told}, and buy and "
        f"hold {100 * market:+,.1f} %{beside}."
    ]


def _another_winner(last: Opening, candidate: Candidate) -> str:
    return (
        f"The winner is now trial {candidate.number}, but the test was opened for trial {last.trial}. It stays closed, "
        "because a second look would choose among test results too. --open-test-again opens it anyway and counts the "
        "look."
    )


def _moment(when: str) -> str:
    """An ISO time to the minute.

    >>> _moment("2026-05-04T03:02:01.5+00:00")
    '2026-05-04 03:02 UTC'
    """
    return f"{when[:16].replace('T', ' ')} UTC"


FEWEST_EPISODES = 30
"""Test episodes of a Gymnasium environment, unless the trial itself has more evaluation episodes."""
# Environment i of a trial begins with seed + i, episode k of its evaluations with seed + 1,000,000 + k, and of these
# with seed + 2,000,000 + k.
_HELD_OUT_SEED_OFFSET = 1_000_000


def held_out_test(run_folder: Path) -> HeldOutTest:
    """Load the best policy of a trial's run folder, and the market or environment that it was trained in.

    Raises UserError if one of them cannot be used: the data were moved, or the folder is on another machine.
    """
    path = run_folder / BEST_CHECKPOINT
    if not path.is_file():
        raise UserError(f"{path} does not exist; write the report on the machine that has this trial's folder.")
    refuse_links(run_folder)
    policy, digest = SavedPolicy(run_folder), digest_of(path)
    run = policy.config.run
    if run.env_id is not None:
        episodes = max(run.eval_episodes, FEWEST_EPISODES)
        gym_task = GymTask.of(run, eval_episodes=episodes).with_seed(run.seed + _HELD_OUT_SEED_OFFSET)
        act = policy.act_for(gym_task)
        return HeldOutTest("fresh episodes", digest, lambda folder, look: _play(gym_task, act, folder, run_folder))
    task = policy.trading_task(policy.config)
    _ = task.notices  # raises if a feature uses later data
    act = policy.act_for(task, "test")
    return HeldOutTest("the test split", digest, lambda folder, look: _trade(task, act, folder, look, run_folder))


def _trade(
    task: TradingTask, act: Callable[[Any], Any], folder: Path, look: Look, run_folder: Path
) -> Mapping[str, Any]:
    with report_folder(folder):
        figures = task.evaluate(act, "test", folder, page=True, look=look)
        write_report_heading(folder, run_folder)
    names = ("return", "total_return", "sharpe", "sharpe_se", "max_drawdown", "n_trades")
    return {
        **{name: finite(figures["agent"][name]) for name in names},
        "buy_and_hold_total_return": finite(figures["buy_and_hold"]["total_return"]),
        "buy_and_hold_sharpe": finite(figures["buy_and_hold"]["sharpe"]),
        "random_total_return": finite(figures["random"]["total_return"]),
    }


def _play(task: GymTask, act: Callable[[Any], Any], folder: Path, run_folder: Path) -> Mapping[str, Any]:
    with report_folder(folder):
        task.report(act, folder)
        write_report_heading(folder, run_folder)
    returns = json.loads((folder / EVALUATION_FILE).read_text(encoding="utf-8"))["returns"]
    n, mean = len(returns), math.fsum(returns) / len(returns)
    variance = math.fsum((each - mean) ** 2 for each in returns) / max(n - 1, 1)
    return {"mean_return": mean, "mean_return_se": math.sqrt(variance / n), "episodes": n}

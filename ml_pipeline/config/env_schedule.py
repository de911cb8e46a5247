"""The number of environments of a run over time: first `n_envs`, then `n_envs_schedule`, {global step: number}.

A number takes effect in the first iteration that begins at or after its step.
"""

import json
from collections.abc import Mapping
from contextlib import suppress

from ml_pipeline.config.checks import check_count
from ml_pipeline.config.errors import UserError

MOST_ENVS = 65_536
"""A larger number is a typing error."""

Schedule = Mapping[int, int]


def n_envs_at(step: int, *, first: int, schedule: Schedule) -> int:
    """The number of environments in an iteration that begins at this global step.

    >>> [n_envs_at(step, first=8, schedule={100: 16, 500: 4}) for step in (0, 99, 100, 499, 500)]
    [8, 8, 16, 16, 4]
    """
    return next((schedule[at] for at in sorted(schedule, reverse=True) if at <= step), first)


def planned_end(total_steps: int, *, step: int, n_steps: int, n_envs: int, schedule: Schedule) -> tuple[int, int]:
    """The number of remaining iterations, of n_steps steps per environment, and the global step at which they end.

    step: start of the next iteration, with n_envs environments. total_steps: training ends at or after it. Entries of
    the schedule up to `step` are ignored.

    >>> planned_end(20_000, step=0, n_steps=256, n_envs=8, schedule={4000: 16})
    (6, 20480)
    >>> planned_end(20_000, step=0, n_steps=256, n_envs=8, schedule={})
    (10, 20480)
    """
    ahead = sorted(at for at in schedule if step < at < total_steps)
    n_iterations = 0
    for end in (*ahead, total_steps):
        rollout = n_envs * n_steps
        more = max(0, -(-(end - step) // rollout))
        n_iterations, step = n_iterations + more, step + more * rollout
        n_envs = schedule.get(end, n_envs)
    return n_iterations, step


def check_schedule(schedule: Schedule) -> None:
    """Raise UserError unless steps are at least 1 and increase, and the numbers of environments are valid.

    >>> check_schedule({500: 16, 100: 4})
    Traceback (most recent call last):
    ml_pipeline.config.errors.UserError: The steps of n_envs_schedule must increase, but 100 comes after 500.
    """
    before = 0
    for step, n_envs in schedule.items():
        check_count("A step of n_envs_schedule", step)
        if step < before:
            raise UserError(f"The steps of n_envs_schedule must increase, but {step} comes after {before}.")
        check_n_envs(f"n_envs_schedule from step {step} on", n_envs)
        before = step


def check_n_envs(name: str, n_envs: int) -> None:
    """Raise UserError unless n_envs is a valid number of environments."""
    check_count(name, n_envs)
    if n_envs > MOST_ENVS:
        raise UserError(f"{name} must be at most {MOST_ENVS:,} environments, but got {n_envs:,}.")


def with_change(schedule: Schedule, step: int, n_envs: int) -> dict[int, int]:
    """The schedule with n_envs environments from this step until the next entry.

    >>> with_change({100: 16, 500: 4}, 300, 8)
    {100: 16, 300: 8, 500: 4}
    """
    return dict(sorted({**schedule, step: n_envs}.items()))


def continued(earlier: Schedule, given: Schedule, *, start: int, under_way: bool) -> dict[int, int]:
    """The schedule of a resumed run: past entries come from `earlier`, future ones from `given`.

    start: the step at which the next iteration begins, or began if it is under way.
    Raises UserError if `given` contradicts the past.

    >>> continued({100: 16, 500: 4}, {600: 8}, start=300, under_way=False)
    {100: 16, 600: 8}
    """

    def happened(step: int) -> bool:
        return step < start or (step == start and (under_way or step in earlier))

    for step, n_envs in given.items():
        if happened(step) and earlier.get(step) != n_envs:
            had = f"had {earlier[step]} there" if step in earlier else "changed nothing there"
            raise UserError(
                f"n_envs_schedule sets {n_envs} environments from step {step} on, but the run is at step {start}, and "
                f"{had}; name only later steps."
            )
    return {
        **{step: n for step, n in earlier.items() if happened(step)},
        **{step: n for step, n in given.items() if not happened(step)},
    }


def shown(schedule: Schedule) -> str:
    """The schedule as a user types it after the flag.

    >>> shown({100: 16, 500: 4}), shown({})
    ('100:16 500:4', 'none')
    """
    return " ".join(f"{step}:{n_envs}" for step, n_envs in schedule.items()) or "none"


def pairs_in(value: object, name: str) -> list[tuple[object, object]]:
    """The pairs of step and number in a mapping, or in words STEP:N.

    Raises UserError; its sentence begins with `name`.

    >>> pairs_in({100: 16}, "n_envs_schedule"), pairs_in(["100:16", "500:4"], "n_envs_schedule")
    ([(100, 16)], [('100', '16'), ('500', '4')])
    """
    if value in (None, "none", ["none"]):
        return []
    if isinstance(value, list) and all(isinstance(word, str) for word in value):
        value = " ".join(value)
    if isinstance(value, str) and value.lstrip().startswith("{"):
        with suppress(json.JSONDecodeError, RecursionError):  # if it is not JSON, the check below reports it
            value = json.loads(value)
    if isinstance(value, dict):
        return list(value.items())
    words = value.replace(",", " ").split() if isinstance(value, str) else []
    if not isinstance(value, str) or any(word.count(":") != 1 for word in words):
        raise UserError(
            f"{name} must be pairs of a step and a number of environments, such as 100000:16 500000:32, or in a file "
            f"{{100000: 16, 500000: 32}}, but got {value}."
        )
    return [(step, n_envs) for step, _, n_envs in (word.partition(":") for word in words)]

"""Says in a sentence or two what a second machine is worth to a training, and why."""

from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.distributed.cost_model import (
    IterationCost,
    Network,
    Training,
    iteration_cost,
    most_that_pay,
    pays,
    speedup,
)


def worth_of_a_second(training: Training, network: Network) -> str:
    """What a second machine like this one is worth, with the same settings and so the same weights.

    >>> from dataclasses import replace
    >>> from ml_pipeline.models.rl.distributed.cost_model import LAN
    >>> slow = Training(num_envs=8, n_steps=100, step_s=lambda n: n * 1e-2, acting_call_s=1e-4, acting_row_s=0.0,
    ...                 learning_s=0.1, transition_bytes=30.0)
    >>> print(worth_of_a_second(slow, LAN))
    A second machine would train 2.0 times as fast: of an iteration of 8.1 s, 99 % are steps, which machines share. \
8 of them would train 7.2 times as fast.
    >>> print(worth_of_a_second(replace(slow, step_s=lambda n: n * 1e-5), LAN))
    A second machine would not pay: it would train no faster, since of an iteration of 118 ms, 85 % are \
learning, which every machine does alike.
    """
    if training.num_envs == 1:
        return "A second machine would not pay: one environment cannot be divided; more need a larger --n-envs."
    alone, two = (iteration_cost(training, machines, network) for machines in (1, 2))
    gain = _times_as_fast(speedup(training, 2, network))
    if not pays(training, 2, network):
        return f"A second machine would not pay: it would train {gain}, since {_loss(training, alone, two)}."
    share = alone.stepping_s / alone.total_s
    said = (
        f"A second machine would train {gain}: of an iteration of {_duration(alone.total_s)}, {_percent(share)} are "
        "steps, which machines share."
    )
    most = most_that_pay(training, network)
    if most > 2:
        said += f" {most} of them would train {_times_as_fast(speedup(training, most, network))}."
    return said


def _times_as_fast(times: float) -> str:
    shown = f"{times:.1f}"
    return "no faster" if shown == "1.0" else f"{shown} times as fast"


def _loss(training: Training, alone: IterationCost, two: IterationCost) -> str:
    """What costs the most of the time that two machines do not save."""
    of_all = f"of an iteration of {_duration(alone.total_s)}, "
    how = "which every machine does alike" if training.sharing is None else "whose gradients are long on the network"
    lost_s = {
        f"{of_all}{_percent(alone.learning_s / alone.total_s)} are learning, {how}": (
            two.learning_s - alone.learning_s / 2
        ),
        f"acting takes nearly as long for {training.num_envs // 2} environments as for {training.num_envs}": (
            two.acting_s - alone.acting_s / 2
        ),
        f"this machine steps all {counted(training.num_envs, 'environment')} at once already; more of them (--n-envs) "
        "would use both": two.stepping_s - alone.stepping_s / 2,
        f"the exchange of each rollout would take {_duration(two.exchanging_s)}, and an iteration takes "
        f"{_duration(alone.total_s)} without it": two.exchanging_s,
    }
    return max(lost_s, key=lambda reason: lost_s[reason])


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _duration(seconds: float) -> str:
    """
    >>> _duration(8.12), _duration(0.118), _duration(4e-5)
    ('8.1 s', '118 ms', '40 µs')
    """
    for unit, scale in (("s", 1.0), ("ms", 1e3)):
        if seconds * scale >= 1.0:
            return f"{seconds * scale:.{0 if seconds * scale >= 10 else 1}f} {unit}"
    return f"{seconds * 1e6:.0f} µs"

"""The cost model with the constants that `benchmarks.scale_out` measured, and what it predicts."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ml_pipeline.models.rl.core.workers.choice import Division, StepCost, expected_step_s
from ml_pipeline.models.rl.distributed.cost_model import (
    IterationCost,
    Network,
    Training,
    best_vector_step_s,
    iteration_cost,
    network_of,
)

Figures = Mapping[str, Any]

TRANSITION_BYTES = 4 * 4 + 8 + 8 + 2
"""Of CartPole and of the timed environments: four float32, an action, a reward in float64, two flags."""

_PIECE_OF = {("waits", 1e-3): "waits 1 ms", ("waits", 2e-3): "waits 2 ms", ("busy", 1e-3): "computes 1 ms"}


@dataclass(frozen=True)
class Constants:
    """acting_call_s, acting_row_s: of a vector step, once and for each environment. learning_s: of a transition."""

    acting_call_s: float
    acting_row_s: float
    learning_s: float
    between_processes: Network
    between_machines: Network


def constants(figures: Figures) -> Constants:
    """What was measured on one core and between two ranks, in the terms of the model."""
    few, many = figures["pieces"]["few"], figures["pieces"]["many"]
    of_few, of_many = few["acting_s"] / few["n_steps"], many["acting_s"] / many["n_steps"]
    row_s = (of_many - of_few) / (many["num_envs"] - few["num_envs"])
    return Constants(
        acting_call_s=of_few - row_s * few["num_envs"],
        acting_row_s=row_s,
        learning_s=many["learning_s"] / (many["num_envs"] * many["n_steps"]),
        between_processes=network_of(**figures["exchanges"]["one machine"]["2"]),
        between_machines=network_of(**figures["exchanges"]["machines"]["2"]),
    )


def step_of(figures: Figures, group: Mapping[str, Any]) -> float:
    """The measured time of one step of one environment, in s."""
    piece = figures["pieces"][_PIECE_OF.get((group["step"], group["step_s"]), "CartPole")]
    return piece["stepping_s"] / (piece["num_envs"] * piece["n_steps"])


def predicted(figures: Figures, group: Mapping[str, Any]) -> IterationCost:
    """What an iteration of a measured group should take, from the constants.

    Where ranks share cores, learning takes as much longer: they all learn at once.
    """
    found = constants(figures)
    ranks = max(1, group["ranks"])
    crowding = max(1.0, ranks / figures["machine"]["cores"])
    training = Training(
        num_envs=group["num_envs"],
        n_steps=group["n_steps"],
        step_s=_vector_step(figures, group),
        acting_call_s=found.acting_call_s,
        acting_row_s=found.acting_row_s,
        learning_s=found.learning_s * group["num_envs"] * group["n_steps"] * crowding,
        transition_bytes=TRANSITION_BYTES,
    )
    network = found.between_machines if group["on_machines"] else found.between_processes
    return iteration_cost(training, ranks, network)


def training_of_steps(figures: Figures, step_s: float) -> Training:
    """The training of the cluster, on machines of one core, where a step takes so long."""
    found, many = constants(figures), figures["pieces"]["many"]
    return Training(
        num_envs=many["num_envs"],
        n_steps=many["n_steps"],
        step_s=lambda n: n * step_s,
        acting_call_s=found.acting_call_s,
        acting_row_s=found.acting_row_s,
        learning_s=found.learning_s * many["num_envs"] * many["n_steps"],
        transition_bytes=TRANSITION_BYTES,
    )


def networks(figures: Figures) -> dict[str, Network]:
    """The measured network, and others whose messages take as much time in programs, but another one on the way."""
    measured, about = constants(figures).between_machines, figures["network"]
    fastest = constants(figures).between_processes.bytes_per_s
    in_programs_s = max(0.0, measured.hop_s - 2 * about["delay_s"])
    used = measured.bytes_per_s * 8 / about["bits_per_s"]

    def other(delay_s: float, bits_per_s: float) -> Network:
        return Network(hop_s=in_programs_s + 2 * delay_s, bytes_per_s=min(fastest, used * bits_per_s / 8))

    return {
        "10 Gbit/s, 0.05 ms": other(5e-5, 1e10),
        "1 Gbit/s, 0.5 ms (measured)": measured,
        "100 Mbit/s, 20 ms": other(2e-2, 1e8),
    }


def _vector_step(figures: Figures, group: Mapping[str, Any]) -> Callable[[int], float]:
    """A vector step by the number of environments, stepped as the group steps them."""
    one_s = step_of(figures, group)
    waits = group["step"] == "waits"
    empty = figures["pieces"]["many"]
    overhead_s = empty["stepping_s"] / (empty["num_envs"] * empty["n_steps"])
    cost = StepCost(cpu_s=overhead_s, wait_s=one_s - overhead_s) if waits else StepCost(cpu_s=one_s, wait_s=0.0)
    cores, wake_s = (1.0, figures["wake_s"]["1 core"]) if group["ranks"] else (2.0, figures["wake_s"]["2 cores"])
    if group["n_workers"] == "auto":
        return lambda n: best_vector_step_s(cost, n, cores, wake_s=wake_s)
    division = Division(group["n_workers"], steps_here=not group["n_workers"])
    return lambda n: expected_step_s(division, cost, n, cores, wake_s=wake_s)

"""How long an iteration takes on several machines, from what its parts take on one: what a further machine is worth.

Steps and acting are divided among the machines, and the exchange is added. Learning is not divided, since all learn
alike, unless the network is so large that its gradients are computed in chunks, which machines can share.
N environments, T steps, M machines. Formulas alone: no clock, no measurement.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

from ml_pipeline.models.rl.core.workers.choice import StepCost, candidates, expected_step_s

EFFICIENT = 0.75
"""A number of machines pays where each is worth at least so much of what it would be without any loss: two of them
where they train 1.5 times as fast as one."""

_ROUNDS = 2  # of an exchange: sizes, then transitions


@dataclass(frozen=True, kw_only=True)
class Network:
    """What carries an exchange.

    hop_s: a short message of gloo's from one machine to the next, which first says that it is ready: two delays of the
    network, and some 0.1 ms in programs. bytes_per_s: of each machine's link, in each direction.
    """

    hop_s: float
    bytes_per_s: float


LAN = Network(hop_s=1.2e-3, bytes_per_s=1e9 / 8)
"""1 Gbit/s with a delay of 0.5 ms, which is slow for a cluster."""


@dataclass(frozen=True, kw_only=True)
class Sharing:
    """A gradient that is computed in chunks. cores: of one machine, which computes as many chunks side by side.

    gradient_bytes: of all weights, which overstates what is sent of those behind images.
    """

    n_chunks: int
    cores: int
    n_minibatches: int
    gradient_bytes: int


@dataclass(frozen=True, kw_only=True)
class Training:
    """One iteration, as it was measured on one machine.

    step_s: a vector step of n environments on one machine, by n. acting_call_s, acting_row_s: choosing actions and
    storing a step, once and for each environment. learning_s: all that is done with the whole rollout. sharing: None
    where every machine learns alike. transition_bytes: what the exchange carries of one transition.
    """

    num_envs: int
    n_steps: int
    step_s: Callable[[int], float]
    acting_call_s: float
    acting_row_s: float
    learning_s: float
    transition_bytes: float
    sharing: Sharing | None = None


@dataclass(frozen=True, kw_only=True)
class IterationCost:
    """Where the seconds of one iteration go."""

    stepping_s: float
    acting_s: float
    exchanging_s: float
    learning_s: float

    @property
    def total_s(self) -> float:
        return self.stepping_s + self.acting_s + self.exchanging_s + self.learning_s


def iteration_cost(training: Training, machines: int, network: Network) -> IterationCost:
    """What an iteration should take on so many machines; the one with the most environments decides.

    Raises ValueError where there are fewer environments than machines.

    >>> training = Training(num_envs=8, n_steps=100, step_s=lambda n: n * 1e-3, acting_call_s=1e-4, acting_row_s=0.0,
    ...                     learning_s=0.1, transition_bytes=125.0)
    >>> network = Network(hop_s=1e-3, bytes_per_s=1e7)
    >>> [round(iteration_cost(training, machines, network).total_s, 4) for machines in (1, 2)]  # 2 hops, 0.05 MB
    [0.91, 0.517]
    """
    if machines > training.num_envs:
        raise ValueError(f"{machines} machines need as many environments, but got {training.num_envs}")
    most_envs = math.ceil(training.num_envs / machines)
    return IterationCost(
        stepping_s=training.n_steps * training.step_s(most_envs),
        acting_s=training.n_steps * (training.acting_call_s + training.acting_row_s * most_envs),
        exchanging_s=exchange_s(most_envs * training.n_steps * training.transition_bytes, machines, network),
        learning_s=learning_s(training, machines, network),
    )


def learning_s(training: Training, machines: int, network: Network) -> float:
    """An update, with shared gradients where that is faster; a machine then sends the sum of its chunks.

    >>> training = Training(num_envs=8, n_steps=1, step_s=float, acting_call_s=0.0, acting_row_s=0.0, learning_s=8.0,
    ...     transition_bytes=0.0, sharing=Sharing(n_chunks=8, cores=2, n_minibatches=10, gradient_bytes=10**7))
    >>> network = Network(hop_s=1e-2, bytes_per_s=1e8)  # 4 chunks in 2 turns in place of 4; 10 hops, and 100 MB
    >>> learning_s(training, 1, network), learning_s(training, 2, network)
    (8.0, 5.1)
    """
    sharing = training.sharing
    if sharing is None or machines == 1:
        return training.learning_s
    turns, turns_alone = (math.ceil(math.ceil(sharing.n_chunks / parties) / sharing.cores) for parties in (machines, 1))
    sent_s = (machines - 1) * (network.hop_s + sharing.gradient_bytes / network.bytes_per_s)
    return min(training.learning_s, training.learning_s * turns / turns_alone + sharing.n_minibatches * sent_s)


def exchange_s(payload_bytes: float, machines: int, network: Network) -> float:
    """Until every machine has the payloads of all, in s.

    payload_bytes: of each. gloo gathers in a ring: in each of M - 1 turns, every machine hands on to the next what it
    got last. Measured with delays of 5 and 20 ms: 4 delays for two machines, 12 for four.

    >>> exchange_s(1e6, 3, Network(hop_s=1e-3, bytes_per_s=1e8))  # 2 * 2 hops, and 2 MB
    0.024
    >>> exchange_s(1e6, 1, Network(hop_s=1e-3, bytes_per_s=1e8))
    0.0
    """
    return (machines - 1) * (_ROUNDS * network.hop_s + payload_bytes / network.bytes_per_s)


def network_of(*, short_s: float, more_s: float, more_bytes: float) -> Network:
    """The network between two machines whose exchange of a short payload takes short_s, and of a longer one more.

    >>> network_of(short_s=2e-3, more_s=0.1, more_bytes=1e6)
    Network(hop_s=0.001, bytes_per_s=10000000.0)
    """
    return Network(hop_s=short_s / _ROUNDS, bytes_per_s=more_bytes / more_s)


def speedup(training: Training, machines: int, network: Network) -> float:
    """How many times as fast as one machine so many train."""
    return iteration_cost(training, 1, network).total_s / iteration_cost(training, machines, network).total_s


def pays(training: Training, machines: int, network: Network) -> bool:
    """Whether so many machines are worth at least `EFFICIENT` of themselves."""
    return speedup(training, machines, network) >= EFFICIENT * machines


def most_that_pay(training: Training, network: Network) -> int:
    """The largest power of two of machines that pays.

    >>> training = Training(num_envs=64, n_steps=100, step_s=lambda n: n * 1e-3, acting_call_s=0.0, acting_row_s=0.0,
    ...                     learning_s=0.5, transition_bytes=0.0)
    >>> most_that_pay(training, Network(hop_s=0.0, bytes_per_s=1e9))  # 6.9 s; 2.1 s on four: 3.3; 1.3 s on eight: 5.3
    4
    """
    machines = 1
    while 2 * machines <= training.num_envs and pays(training, 2 * machines, network):
        machines *= 2
    return machines


def shortest_step_that_pays(training_at: Callable[[float], Training], network: Network, *, machines: int = 2) -> float:
    """The time of a step from which so many machines pay, in s, to 1 %; between 0.1 µs and 100 s, beyond which: inf.

    training_at: the training whose steps take so long.
    """
    low, high = 1e-7, 100.0
    if not pays(training_at(high), machines, network):
        return math.inf
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if pays(training_at(middle), machines, network) else (middle, high)
    return high


def best_vector_step_s(cost: StepCost, num_envs: int, cores: float, *, wake_s: float) -> float:
    """A vector step on one machine by the division of environments among workers that "auto" would choose, in s.

    >>> best_vector_step_s(StepCost(cpu_s=1e-3, wait_s=0.0), 8, cores=1, wake_s=6e-5)
    0.008
    """
    return min(
        expected_step_s(division, cost, num_envs, cores, wake_s=wake_s)
        for division in candidates(cost, num_envs, cores)
    )

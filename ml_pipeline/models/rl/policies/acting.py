"""Acting without compiled code, in blocks of fixed size, so that an action does not depend on who else acts.

The bits of a row of a matrix product, in torch and in NumPy, depend on the number of rows and on the row's position,
but not on the contents of the other rows. Environments are therefore divided into blocks by their index. A rank that
has some environments of a block acts on the whole block, with zeros in the other rows.

Rows are cheapest in large blocks, but ranks compute whole blocks, and threads share work by blocks. For a block of 8,
32 and 64 rows, one Zen 4 core takes 262, 336 and 430 us with a GRU of 64 units; 341, 524 and 785 us with an LSTM of 128
units; 154, 351 and 613 us with two shared layers of 512. Images of 84x84x4 take 1594 us in a block of 4 and 2410 us in
a block of 8, so two threads are faster with two blocks of 4.

Arrays travel to a device and back, on cuda through page-locked memory. N environments of all ranks, n of them here, S
state size.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.networks.actor_critic import ActorCritic, GeneralActorCritic
from ml_pipeline.models.rl.networks.mlp import NumpyMlp
from ml_pipeline.models.rl.policies.threads_and_device import in_threads
from ml_pipeline.models.rl.transitions import Sequences

Array = np.ndarray

_BLOCK = 32
_BLOCK_OF_IMAGES = 4
_BLOCK_ON_GPU = 256  # rows cost next to nothing there


class ActRows(NamedTuple):
    """Which of N environments the given rows belong to: consecutive ones, from index `first` on."""

    first: int
    num_envs: int


class Actor(Protocol):
    """From observations to distribution parameters."""

    uses_torch_threads: bool
    """Whether torch computes on a CPU, where the bits may depend on its threads."""

    def refresh(self) -> None:
        """Read the weights again, after they have changed or moved."""

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """Observations (n, D) to distribution parameters, float32 (n, P).

        at_hand: which environments the rows are; None means that these are all environments.
        """


def actor_for(network: ActorCritic | GeneralActorCritic) -> Actor:
    """The actor of a policy without memory."""
    return NumpyActor(network) if isinstance(network, ActorCritic) else TorchActor(network)


class NumpyActor:
    """Acts with two perceptrons, in NumPy or torch."""

    def __init__(self, network: ActorCritic) -> None:
        self._perceptron = NumpyMlp(network.actor)
        self.uses_torch_threads = self._perceptron.uses_torch
        self._size = _BLOCK if self._perceptron.uses_torch else NumpyMlp.MOST_ROWS

    def refresh(self) -> None:
        self._perceptron.refresh()

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        return act_in_blocks(self._perceptron, observations, at_hand=at_hand, size=self._size)


class TorchActor:
    """Acts with any other network without memory, in torch, from NumPy to NumPy."""

    def __init__(self, network: GeneralActorCritic) -> None:
        self._network = network
        device = next(network.parameters()).device
        self.uses_torch_threads = device.type == "cpu"
        self._transfers = Transfers(device)
        self._size = block_size(network)
        self.sees_images = network.sees_images
        # Small networks are done before another thread has started.
        self._each = in_threads if network.sees_images and not self._transfers.pins else None

    def refresh(self) -> None:
        """Do nothing, because the weights are read in place."""

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        return act_in_blocks(self._act, observations, at_hand=at_hand, size=self._size, each=self._each)

    def with_values(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """Distribution parameters and values, float32 (n, P + 1)."""
        return act_in_blocks(self._act_and_value, observations, at_hand=at_hand, size=self._size, each=self._each)

    @torch.inference_mode()
    def _act_and_value(self, observations: Array) -> Array:
        parameters, values = self._network(self._transfers.to_device(observations))
        return self._transfers.to_host(torch.cat([parameters, values[:, None]], dim=1))

    @torch.inference_mode()
    def _act(self, observations: Array) -> Array:
        return self._transfers.to_host(self._network.parameters_of(self._transfers.to_device(observations)))


class ActingMemory:
    """The memory of a recurrent policy that acts in n environments. `state` is float32 (n, S), and starts at 0."""

    def __init__(self, network: GeneralActorCritic, num_envs: int) -> None:
        self._network = network
        self._transfers = Transfers(next(network.parameters()).device)
        self._size = block_size(network)
        self._each = in_threads if network.sees_images and not self._transfers.pins else None
        self.state = np.zeros((num_envs, network.state_size), dtype=np.float32)

    def __call__(self, observations: Array, at_hand: ActRows | None = None) -> Array:
        """Observations (n, D) to distribution parameters, float32 (n, P); advances `state`."""
        outputs = act_in_blocks(self._act, observations, self.state, at_hand=at_hand, size=self._size, each=self._each)
        n_parameters = outputs.shape[1] - self._network.state_size
        self.state = outputs[:, n_parameters:].copy()
        return outputs[:, :n_parameters]

    @torch.inference_mode()
    def _act(self, observations: Array, state: Array) -> Array:
        """Observations (N, D) and states (N, S) to parameters and next states in one array, float32 (N, P + S)."""
        seen = self._transfers.to_device(observations)
        starts = torch.zeros(1, len(observations), dtype=torch.bool, device=seen.device)
        sequences = Sequences(starts, self._transfers.to_device(state, "state"))
        parameters, _, states = self._network.over_sequences(seen, sequences)
        return self._transfers.to_host(torch.cat([parameters, states[0]], dim=1))

    def begin(self, state: tuple[Array, ...] | None, episode_start: Array | None) -> None:
        """Continue from a state of `predict`, reset where `episode_start`, bool (n,), says so; None: new episodes.

        Raises UserError if a shape is wrong.
        """
        for name, given, shape in (
            ("state", None if state is None else state[0], self.state.shape),
            ("episode_start", episode_start, self.state.shape[:1]),
        ):
            if given is not None and np.shape(given) != shape:
                raise UserError(f"{name} must have shape {shape}, one row per observation, but has {np.shape(given)}.")
        if state is not None:
            self.state = np.array(state[0], dtype=np.float32)
        if episode_start is not None:
            self.forget(np.asarray(episode_start, dtype=np.bool_))

    def forget(self, done: Array) -> None:
        """Reset the states of environments whose episode has ended; done: bool (n,)."""
        self.state = np.where(done[:, None], np.float32(0.0), self.state)


def block_size(network: GeneralActorCritic) -> int:
    """How many environments act together. It affects the last bits, so it depends on the policy only."""
    if next(network.parameters()).device.type != "cpu":
        return _BLOCK_ON_GPU
    return _BLOCK_OF_IMAGES if network.sees_images else _BLOCK


class Block(NamedTuple):
    """Environments [start, stop), whose actions are computed together; this process holds [first, last) of them."""

    start: int
    stop: int
    first: int
    last: int

    def filled(self, rows: Array, at_hand: ActRows) -> Array:
        """The rows of the whole block, (stop - start, ...): the given rows, (n, ...), and zeros elsewhere."""
        own = rows[self.first - at_hand.first : self.last - at_hand.first]
        if len(own) == self.stop - self.start:
            return own
        whole = np.zeros((self.stop - self.start, *rows.shape[1:]), rows.dtype)
        whole[self.first - self.start : self.last - self.start] = own
        return whole

    def own(self, of_block: Array) -> Array:
        """The rows of this process, out of those of the whole block."""
        return of_block[self.first - self.start : self.last - self.start]


def blocks_of(at_hand: ActRows, n_rows: int, *, size: int) -> Iterator[Block]:
    """The blocks that contain any of the n_rows environments of this process. The last block of all may be smaller.

    >>> [tuple(block) for block in blocks_of(ActRows(first=6, num_envs=20), 4, size=8)]
    [(0, 8, 6, 8), (8, 16, 8, 10)]
    """
    end = at_hand.first + n_rows
    for start in range(at_hand.first // size * size, end, size):
        stop = min(start + size, at_hand.num_envs)
        yield Block(start, stop, max(start, at_hand.first), min(stop, end))


def act_in_blocks(
    act: Callable[..., Array],
    *inputs: Array,
    at_hand: ActRows | None,
    size: int,
    each: Callable[[Callable[[int], None], int], None] | None = None,
) -> Array:
    """The outputs (n, ...) of `act` for inputs of n rows, computed in blocks of `size`.

    act: takes the rows of one block of each input, and returns an array with as many rows.
    at_hand: which environments the rows are; None means that these are all environments.
    each: calls a function with 0 to n_blocks - 1, as `in_threads` does; None calls it for one block after another.
    """
    n_rows = len(inputs[0])
    at_hand = at_hand or ActRows(0, n_rows)
    if n_rows == at_hand.num_envs <= size:
        return act(*inputs)
    blocks = list(blocks_of(at_hand, n_rows, size=size))
    outputs: list[Array] = [np.empty(0)] * len(blocks)

    def act_on(i: int) -> None:
        block = blocks[i]
        # Copied, because an actor on a device returns the same memory each time.
        outputs[i] = block.own(act(*(block.filled(rows, at_hand) for rows in inputs))).copy()

    if each is None or len(blocks) == 1:
        for i in range(len(blocks)):
            act_on(i)
    else:
        each(act_on, len(blocks))
    return np.concatenate(outputs)


class Transfers:
    """Moves data between NumPy on the host and tensors on `device`; page-locked memory is reused.

    Call `to_device`, then `to_host`. Do not change an array that was sent before the next `to_host` returns. The array
    that `to_host` returns is valid until the next call of `to_host`.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.pins = device.type == "cuda"
        self._kept: dict[str, Tensor] = {}

    def to_device(self, array: Array, name: str = "sent") -> Tensor:
        """The array as a tensor on the device. name: identifies the array among those that one step sends."""
        source = torch.from_numpy(array)
        if not self.pins:
            return source.to(self._device)
        return self._pinned(name, source).copy_(source).to(self._device, non_blocking=True)

    def to_host(self, tensor: Tensor) -> Array:
        """The tensor as an array. Waits for the device."""
        if not self.pins:
            return tensor.cpu().numpy()
        received = self._pinned("received", tensor).copy_(tensor, non_blocking=True)
        wait_for(self._device)
        return received.numpy()

    def _pinned(self, name: str, like: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != like.shape or kept.dtype != like.dtype:
            kept = self._kept[name] = pin(like)
        return kept


def pin(like: Tensor) -> Tensor:
    """Page-locked memory on the host with this shape and dtype."""
    return torch.empty(like.shape, dtype=like.dtype, pin_memory=True)


def wait_for(device: torch.device) -> None:
    """Wait until the device has finished all work so far."""
    torch.cuda.current_stream(device).synchronize()

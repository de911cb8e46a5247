"""A user's network in the place of ours: from observations to features, before memory, hidden layers and heads.

The module sees observations as its space describes them, not as columns. Dry runs find its width and its mistakes
before training. A module with `step` remembers: it is called after `forward`, with a state per environment.
B samples, D observation size; T steps, M sequences, F features, S state size.
"""

import copy
import inspect
import json
import math
import random
import threading
import warnings
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.settings import LostFunction, function_shown
from ml_pipeline.models.rl.preprocessing.observations import ObservationLayout, image_shape
from ml_pipeline.models.rl.preprocessing.spaces import flat_size, observation_encoder
from ml_pipeline.models.rl.transitions import Sequences
from ml_pipeline.runtime.acting import ACTION_MASK
from ml_pipeline.runtime.global_random import global_generators_untouched
from ml_pipeline.runtime.user_code import call_user_code, import_by_name

Array = np.ndarray
Seen = Any
"""What a module sees: a tensor (B, ...), or a dict or tuple of them."""

_N_ROWS = 3  # of dry runs
_LARGEST = 1e3  # in dry runs: some spaces have bounds like 3e38
_ROUNDING = 1e-3  # between a row alone and the same row in a batch
_one_at_a_time = threading.RLock()


class UserNetwork(nn.Module):
    """A module that a user's function makes for the space of observations.

    widths: the sizes of its features: one, or two if it returns a tensor for the policy and one for the value.
    state_size: the numbers that it remembers per environment; 0 without `step`.
    The module stays in evaluation mode, because a policy must give the same probabilities when it acts and learns.
    """

    def __init__(
        self,
        function: str | Callable[..., Any],
        kwargs: Mapping[str, Any],
        layout: ObservationLayout,
        *,
        normalized: bool,
        orthogonal: bool = True,
        generator: torch.Generator,
    ) -> None:
        """function: takes the space and `kwargs`; or its name, "module:function".

        normalized: whether numbers come normalized. orthogonal: whether an extractor of Stable-Baselines3 gets
        orthogonal weights, as there. generator: draws the seed of the module's own initial weights.
        Raises UserError if the function or its module cannot be used.
        """
        super().__init__()
        self.name = network_name(function)
        self._layout, self._normalized, self.state_size = layout, normalized, 0
        self._columns, _ = _layout_of(layout.space)
        seed = int(torch.randint(2**31, (1,), generator=generator))
        # Under the lock, because the global generators belong to all threads.
        with _one_at_a_time, global_generators_untouched(), torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed)  # what a user's module may draw from
            torch.default_generator.manual_seed(seed)
            self.module: Any = self._made(function, kwargs)  # with `step` and `sequence` if it remembers
            if orthogonal and _is_extractor(self.module):
                _make_orthogonal(self.module)
            self._writes = False
            features = self._try_out()
            if hasattr(self.module, "step"):
                remembered = self._try_memory(features)
                self._check_gradients((*features, remembered))
                features = (remembered,)
            else:
                self._check_gradients(features)
            self.widths = tuple(each.shape[1] for each in features)

    def forward(self, observations: Tensor) -> tuple[Tensor, ...]:
        """Observations (B, D) to features, float32 (B, width) each."""
        # Threads compute the parts of a batch at the same time, so what a module keeps on itself could get mixed up.
        with _one_at_a_time if self._writes else nullcontext():
            features = self.module(self._seen(observations))
        return (features,) if isinstance(features, Tensor) else tuple(features)

    def over_sequences(self, features: Tensor, sequences: Sequences) -> tuple[Tensor, Tensor]:
        """Features (T * M, F) to those with what the module remembers, (T * M, width), and the states after each step,
        (T, M, S). Needs a module with `step`; the state is 0 at the start of an episode."""
        starts, state = sequences
        steps = features.unflatten(0, starts.shape)
        if hasattr(self.module, "sequence"):
            outputs, states = self.module.sequence(steps, state, starts)
            return outputs.flatten(0, 1), states
        outputs, states = [], []
        for step_features, begins in zip(steps, starts, strict=True):
            state = torch.where(begins[:, None], torch.zeros_like(state), state)
            output, state = self.module.step(step_features, state)
            outputs.append(output)
            states.append(state)
        return torch.cat(outputs), torch.stack(states)

    def try_on_device(self) -> None:
        """Raise UserError if the module fails on the device to which it has been moved."""
        self._checked(self._call(self._rows()))

    def _made(self, function: str | Callable[..., Any], kwargs: Mapping[str, Any]) -> nn.Module:
        make = import_by_name(function) if isinstance(function, str) else function
        if not callable(make):
            raise self._error(f"must be a function that takes the space of observations, but is {make!r}")
        space = seen_space(self._layout.space)
        if isinstance(make, LostFunction):
            make(space)
        try:
            inspect.signature(make).bind(space, **kwargs)
        except TypeError as error:
            raise self._error(
                f"cannot be called as network(observation_space, **{json.dumps(dict(kwargs))}): {error}; correct its "
                "parameters or network_kwargs"
            ) from error
        except ValueError:  # a callable without a signature
            pass
        module = call_user_code(self.name, lambda each: make(each, **kwargs), space)
        if not isinstance(module, nn.Module):
            raise self._error(f"must return a torch.nn.Module, but returned {_shown(module)}; return the module")
        module.eval()
        for part in module.modules():
            if isinstance(part, nn.RNNBase):  # cuDNN computes its gradients in training mode only
                part.train()
                part.dropout = 0.0
        kinds = {type(part).__name__ for part in module.modules() if _differs_in_evaluation(part)}
        if kinds:
            warnings.warn(
                f"The network {self.name} has {' and '.join(sorted(kinds))}; such layers work here as in evaluation: "
                "nothing is dropped, and BatchNorm keeps its initial statistics. Leave them out, or use LayerNorm.",
                stacklevel=2,
            )
        return module

    def _try_out(self) -> tuple[Tensor, ...]:
        """The features of some observations. Raises UserError if the module is no function of them."""
        self._check_weights()
        rows = self._rows()
        given = rows.clone()
        first = self._checked(self._call(rows))  # also makes the weights of lazy layers
        if not torch.equal(rows, given):
            raise self._error("changes its input in place; write x = x / 2 instead of x /= 2")
        before = self._attributes()
        alone, again = self._checked(self._call(rows[:1]), n_rows=1), self._checked(self._call(rows))
        after = self._attributes()
        self._writes = before.keys() != after.keys() or any(before[name] is not after[name] for name in after)
        if not all(map(torch.equal, first, again)):
            raise self._error(
                "gives other features for the same observations when it is called again, so it keeps state between "
                "calls or draws random numbers; make it a function of its input, and use memory gru or lstm to remember"
            )
        for whole, row in zip(first, alone, strict=True):
            if (whole[:1] - row).abs().max() > _ROUNDING * (1.0 + whole.abs().max()):
                raise self._error(
                    "gives other features for an observation alone than in a batch; compute each row by itself, and "
                    "use LayerNorm in place of statistics over the batch"
                )
        return first

    def _try_memory(self, of_forward: tuple[Tensor, ...]) -> Tensor:
        """The features after some steps. Raises UserError if steps and sequences cannot be used."""
        size = getattr(self.module, "state_size", None)
        if not isinstance(size, int) or size < 1 or len(of_forward) > 1:
            raise self._error(
                "has step(), so it must return one tensor of features, and its state_size must be how many numbers to "
                f"remember per environment, but that is {size!r}"
            )
        self.state_size = size
        rng, starts = torch.Generator().manual_seed(0), torch.zeros(4, _N_ROWS, dtype=torch.bool)
        starts[2, 0] = True  # an episode starts within a sequence
        before = torch.randn(4, *of_forward[0].shape, generator=rng)
        state, found, carried = torch.zeros(_N_ROWS, size), [], []
        for step_features, begins in zip(before, starts, strict=True):
            state = torch.where(begins[:, None], torch.zeros_like(state), state)
            output, state = self._pair("step", step_features, state)
            self._checked(output)
            if state.shape != (_N_ROWS, size):
                raise self._error(
                    f"must return a state of ({_N_ROWS}, {size}) from step(), but got {tuple(state.shape)}"
                )
            found.append(output)
            carried.append(state)
        if hasattr(self.module, "sequence"):
            outputs, states = self._pair("sequence", before, torch.zeros(_N_ROWS, size), starts)
            pairs = (outputs, torch.stack(found)), (states, torch.stack(carried))
            if not all(
                got.shape == expected.shape and torch.allclose(got, expected, rtol=_ROUNDING, atol=_ROUNDING)
                for got, expected in pairs
            ):
                raise self._error(
                    "must return from sequence() what step() returns step by step, (T, M, width) and the states after "
                    f"each step, (T, M, {size}), with a state of 0 where an episode starts"
                )
        return torch.cat(found)

    def _pair(self, method: str, *arguments: Tensor) -> tuple[Tensor, Tensor]:
        name = f"{method}() of the network {self.name}"
        found = call_user_code(name, lambda each: getattr(self.module, method)(*each), arguments)
        is_pair = isinstance(found, tuple | list) and len(found) == 2
        if not is_pair or not all(isinstance(part, Tensor) for part in found):
            raise self._error(f"must return features and state from {method}(), but returned {_shown(found)}")
        return found[0], found[1]

    def _rows(self) -> Tensor:
        """Observations as the module may get them, (rows, D); always the same ones."""
        layout, rng = self._layout, np.random.default_rng(0)
        encode, _ = observation_encoder(layout.space, dtype=np.uint8 if layout.is_images_alone else np.float32)
        space = copy.deepcopy(layout.space)
        space.seed(0)
        rows: Array = np.concatenate([encode(space.sample()).copy() for _ in range(_N_ROWS)])
        if self._normalized:
            rows[:, layout.numbers] = rng.normal(size=(_N_ROWS, len(layout.numbers)))
        elif not layout.is_images_alone:
            np.clip(rows, -_LARGEST, _LARGEST, out=rows)
        device = next((each.device for each in self.module.parameters()), torch.device("cpu"))
        return torch.from_numpy(rows).to(device)

    def _call(self, rows: Tensor) -> Any:
        return call_user_code(f"The network {self.name}", self.module, self._seen(rows))

    def _checked(self, features: Any, n_rows: int = _N_ROWS) -> tuple[Tensor, ...]:
        """The features as a tuple. Raises UserError if they are no vectors of finite numbers, one per observation."""
        several = isinstance(features, tuple | list)
        parts = tuple(features) if several else (features,)
        if len(parts) > 2 or not parts or not all(isinstance(part, Tensor) for part in parts):
            raise self._error(
                "must return a tensor of features, or two: for the policy and for the value, but returned "
                f"{', '.join(map(_shown, parts)) or 'nothing'}"
            )
        for part in parts:
            if part.ndim != 2 or part.shape[0] != n_rows or not part.shape[1]:
                raise self._error(
                    f"must return one vector per observation, ({n_rows}, width) for a batch of {n_rows}, but returned "
                    f"{tuple(part.shape)}; flatten all dimensions but the first"
                )
            if part.dtype != torch.float32:
                raise self._error(f"must return float32, but returned {part.dtype}; add .float()")
            if not part.isfinite().all():
                raise self._error(
                    "returns NaN or infinity for observations from the space; look for a division by zero, a logarithm "
                    "or a root of negative numbers"
                )
        return parts

    def _check_weights(self) -> None:
        for name, weight in (*self.module.named_parameters(), *self.module.named_buffers()):
            if weight.device.type != "cpu":
                raise self._error(
                    f"has {name} on {weight.device}; make it on the CPU, from where --device moves the network"
                )
        for name, weight in self.module.named_parameters():
            if weight.dtype != torch.float32:
                raise self._error(f"has {name} of {weight.dtype}, but weights must be float32; add .float()")

    def _check_gradients(self, features: tuple[Tensor, ...]) -> None:
        weights = {name: weight for name, weight in self.module.named_parameters() if weight.requires_grad}
        if not weights:
            return
        differentiable = [part.sum() for part in features if part.requires_grad]
        if not differentiable:
            raise self._error(
                "returns features without gradients, so it would not learn; remove detach() and torch.no_grad(), or "
                "freeze its weights by requires_grad_(False) if that is what you want"
            )
        total = torch.stack(differentiable).sum()
        found = torch.autograd.grad(total, list(weights.values()), allow_unused=True)
        without = [name for name, gradient in zip(weights, found, strict=True) if gradient is None]
        if without:
            warnings.warn(
                f"The network {self.name} has weights without gradients, which do not learn: {', '.join(without[:3])}"
                f"{' ...' if len(without) > 3 else ''}; use them in forward(), or delete them.",
                stacklevel=2,
            )

    def _attributes(self) -> dict[tuple[str, str], Any]:
        parts = self.module.named_modules()
        return {(where, name): each for where, part in parts for name, each in {**vars(part), **part._buffers}.items()}

    def _seen(self, observations: Tensor) -> Seen:
        return _read(self._columns, observations)

    def _error(self, what: str) -> UserError:
        return UserError(f"The network {self.name} {what}.")


def network_name(function: str | Callable[..., Any]) -> str:
    """The name "module:function", or, of a function that cannot be imported, "function NAME"."""
    return function if isinstance(function, str) else function_shown(function)


def seen_space(space: spaces.Space, key: str | None = None) -> spaces.Space:
    """A copy of the space without an action mask, and with images as (channels, height, width)."""
    if isinstance(space, spaces.Dict):
        parts = space.spaces.items()
        return spaces.Dict([(name, seen_space(part, name)) for name, part in parts if name != ACTION_MASK])
    if isinstance(space, spaces.Tuple):
        return spaces.Tuple([seen_space(part) for part in space.spaces])
    if (image := image_shape(space, any_size=True)) is not None and image[1]:
        assert isinstance(space, spaces.Box)
        return spaces.Box(space.low.transpose(2, 0, 1), space.high.transpose(2, 0, 1), dtype=np.uint8)
    return copy.deepcopy(space)


class _Columns(NamedTuple):
    """The columns of a part, and its shape without the first dimension; image: whether the channels come last, or None
    if the part is no image."""

    columns: slice
    shape: tuple[int, ...]
    image: bool | None


def _layout_of(space: spaces.Space, start: int = 0) -> tuple[Any, int]:
    """The structure of a space, with its columns from `start` on, and the column after the last."""
    if isinstance(space, spaces.Dict | spaces.Tuple):
        parts = {}
        for key, part in space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces):
            parts[key], start = _layout_of(part, start)
        if isinstance(space, spaces.Tuple):
            return tuple(parts.values()), start
        parts.pop(ACTION_MASK, None)
        return parts, start
    end = start + flat_size(space)
    columns = slice(start, end)
    if (image := image_shape(space, any_size=True)) is not None:
        return _Columns(columns, *image), end
    is_vector = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    return _Columns(columns, (end - start,) if is_vector else space.shape, None), end  # type: ignore[arg-type]


def _read(layout: Any, observations: Tensor) -> Seen:
    """The columns in the structure of `_layout_of`."""
    if isinstance(layout, dict):
        return {key: _read(part, observations) for key, part in layout.items()}
    if not isinstance(layout, _Columns):
        return tuple(_read(part, observations) for part in layout)
    columns, shape = observations[:, layout.columns], layout.shape
    if layout.image is None:
        return columns.reshape(-1, *shape)
    if layout.image:
        channels, height, width = shape
        columns = columns.reshape(-1, height, width, channels).permute(0, 3, 1, 2).contiguous()
    return columns.reshape(-1, *shape).float() / 255.0


def _is_extractor(module: nn.Module) -> bool:
    return any(kind.__module__.startswith("stable_baselines3.") for kind in type(module).__mro__)


def _make_orthogonal(module: nn.Module) -> None:
    """As `ActorCriticPolicy` of Stable-Baselines3 does with its extractor."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            nn.init.orthogonal_(layer.weight, math.sqrt(2.0))
            if layer.bias is not None:
                nn.init.zeros_(layer.bias)


def _differs_in_evaluation(part: nn.Module) -> bool:
    is_dropout = isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0
    return is_dropout or isinstance(part, nn.modules.batchnorm._BatchNorm)


def _shown(value: object) -> str:
    return f"a {type(value).__name__}"

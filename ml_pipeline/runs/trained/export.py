"""From a checkpoint to a file that runs without this package: write it, check it against the policy, keep it."""

import copy
import json
import logging
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.vector.utils import concatenate, create_empty_array

from ml_pipeline.config.algorithms import OWN
from ml_pipeline.config.errors import CheckFailed, UserError, install_extra
from ml_pipeline.models.rl.policies.exported import PortablePolicy
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.preprocessing.action_mask import check_masks
from ml_pipeline.runs.trained.configs import ExportConfig, Format
from ml_pipeline.runs.trained.restore import find_policy, load_run, make_saved_env, restore_policy
from ml_pipeline.trading.envs.fast import FastTradingEnv

Array = np.ndarray
Program = Callable[[Sequence[Array]], list[Array]]
"""An exported program: from its inputs to its outputs, in order."""

N_RANDOM, N_RECORDED = 256, 256
_TOLERANCE = 1e-5


class ParityFailed(CheckFailed):
    """The file acts differently from the policy it was exported from."""


class ExportResult(NamedTuple):
    """A written file, and the checkpoint of its policy.

    Also its input and output names, and the number of observations on which it matched the policy.
    """

    path: Path
    checkpoint: Path
    input_names: Sequence[str]
    output_names: Sequence[str]
    n_random: int = N_RANDOM
    n_recorded: int = N_RECORDED


def export_checkpoint(export: ExportConfig) -> ExportResult:
    """Write the policy of a checkpoint, or the best of a run folder, to a file.

    Raises like `export_policy`, and UserError for an unusable checkpoint.
    """
    export = replace(export, checkpoint=find_policy(export.checkpoint))
    config, saved = load_run(export.checkpoint)
    if config.run.algorithm != OWN:
        raise UserError(
            f"The policy in {export.checkpoint} was trained with {config.run.algorithm}, but only {OWN} policies can "
            "be exported; use load_policy, whose `model` is Stable-Baselines3's own, with its save()."
        )
    config = replace(config, ppo=replace(config.ppo, bfloat16=False))  # files are float32
    # In the training market: the test split stays untouched.
    with closing(make_saved_env(config, saved["task"], split="train")) as env:
        policy = restore_policy(config, env, saved, export.checkpoint)
        assert isinstance(policy, Policy)
        portable = export_policy(policy, env, export.path, export.format)
    return ExportResult(export.path, export.checkpoint, portable.input_names, portable.output_names)


def export_policy(policy: Policy, env: gymnasium.Env, path: Path, file_format: Format) -> PortablePolicy:
    """Write the policy to `path`; env: for recording observations.

    For a market, the file's metadata explain the numbers in observations and actions, see `FastTradingEnv.meaning`.
    Raises UserError if spaces or the file are unusable, and ParityFailed if the written file acts differently from
    the policy; the file is then deleted.
    """
    portable = PortablePolicy(policy).eval()
    unproven = path.with_name(f"{path.name}.tmp")
    try:
        _WRITERS[file_format](portable, unproven, _meaning(env))
        run = _READERS[file_format](unproven)
        _prove(run, portable, policy, _random_observations(policy), "random")
        for episode in _recorded_observations(policy, env):
            _prove(run, portable, policy, episode, "recorded")
        unproven.replace(path)
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error.strerror}; choose another with --output.") from error
    finally:
        unproven.unlink(missing_ok=True)
    return portable


def _meaning(env: gymnasium.Env) -> dict[str, str]:
    """The meaning of observations and actions, as JSON by key; empty for environments other than markets."""
    market_env = env.unwrapped
    if not isinstance(market_env, FastTradingEnv):
        return {}
    return {key: json.dumps(value) for key, value in market_env.meaning().items()}


def _write_torch(portable: PortablePolicy, path: Path, meaning: Mapping[str, str]) -> None:
    names = {"inputs": portable.input_names, "outputs": portable.output_names}
    extra_files = {"names.json": json.dumps(names), **{f"{key}.json": value for key, value in meaning.items()}}
    with path.open("wb") as file, _quiet():
        torch.export.save(_program(portable), file, extra_files=extra_files)


def _read_torch(path: Path) -> Program:
    with path.open("rb") as file:  # given a path, torch insists on the suffix .pt2
        module: Any = torch.export.load(file).module()

    @torch.no_grad()
    def run(inputs: Sequence[Array]) -> list[Array]:
        return [output.numpy() for output in module(*map(torch.from_numpy, inputs))]

    return run


def _write_onnx(portable: PortablePolicy, path: Path, meaning: Mapping[str, str]) -> None:
    try:
        import onnxruntime  # noqa: F401  # needed later: better to fail before the work
        import onnxscript  # noqa: F401  # used by torch
    except ModuleNotFoundError as error:
        raise UserError(
            f"--format onnx needs {error.name}, which is not installed; {install_extra('onnx')}, or use --format torch."
        ) from error
    with _quiet():
        program = torch.onnx.export(
            _program(portable),
            dynamo=True,
            verbose=False,
            input_names=portable.input_names,
            output_names=portable.output_names,
        )
        assert program is not None
        program.model.metadata_props.update(meaning)
        program.save(str(path), external_data=False)


def _read_onnx(path: Path) -> Program:
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes())
    names = [port.name for port in session.get_inputs()]
    return lambda inputs: session.run(None, dict(zip(names, inputs, strict=True)))


_WRITERS = {"onnx": _write_onnx, "torch": _write_torch}
_READERS = {"onnx": _read_onnx, "torch": _read_torch}


def _program(portable: PortablePolicy) -> Any:
    inputs = portable.example_inputs(2)
    rows = torch.export.Dim("rows", min=1)
    return torch.export.export(portable, inputs, dynamic_shapes=(tuple({0: rows} for _ in inputs),))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences the exporters' messages about missing packages and about their own deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


def _random_observations(policy: Policy) -> list[Any]:
    """From the whole space, except those whose mask forbids everything."""
    space = copy.deepcopy(policy.observation_space)
    space.seed(0)
    found: list[Any] = []
    while len(found) < N_RANDOM:
        observation = space.sample()
        mask = policy.observations.layout.mask
        if mask is not None:
            try:
                check_masks(policy.observations.encode_one(observation)[:, mask], policy.action_space)
            except UserError:
                continue
        found.append(observation)
    return found


def _recorded_observations(policy: Policy, env: gymnasium.Env) -> list[list[Any]]:
    """Observations of the policy's own episodes, by episode."""
    episodes: list[list[Any]] = []
    done = True
    for _ in range(N_RECORDED):
        if done:
            policy.act.begin_episode()
            observation, _ = env.reset(seed=len(episodes))
            episodes.append([])
        episodes[-1].append(copy.deepcopy(observation))
        observation, _, terminated, truncated, _ = env.step(policy.act(observation))
        done = terminated or truncated
    return episodes


def _prove(run: Program, portable: PortablePolicy, policy: Policy, episode: Sequence[Any], what: str) -> None:
    """Raise ParityFailed at the first observation of an episode on which file and policy differ."""
    n_actions = len(portable.actions)
    memory, state = policy.new_memory(1), np.zeros((1, portable.state_size), dtype=np.float32)
    for observation in episode:
        empty: Any = create_empty_array(policy.observation_space, 1)
        batch = concatenate(policy.observation_space, [observation], empty)
        *outputs, state = run([*_parts(batch), state]) if portable.state_size else [*run(_parts(batch)), state]
        parameters = policy.parameters(policy.observations.normalize(policy.observations.encode(batch)), memory)
        likeliest = policy.fit_actions(policy.distribution.mode(outputs[n_actions]))
        for ours, theirs in zip([*_parts(likeliest), parameters], outputs, strict=True):
            if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not _near(ours, theirs):
                raise ParityFailed(
                    f"The exported file does not match the policy: on {what} observations it gives "
                    f"{theirs.tolist()}, but the policy gives {ours.tolist()}. Nothing was kept."
                )


def _parts(batch: Any) -> list[Array]:
    """The arrays of a batch in the structure of its space, in order."""
    if isinstance(batch, dict | tuple):
        return [array for part in (batch.values() if isinstance(batch, dict) else batch) for array in _parts(part)]
    return [batch]


def _near(ours: Array, theirs: Array) -> bool:
    if not np.issubdtype(ours.dtype, np.floating):
        return np.array_equal(ours, theirs)
    return bool(np.abs(ours - theirs).max(initial=0.0) <= _TOLERANCE * max(1.0, np.abs(ours).max(initial=0.0)))

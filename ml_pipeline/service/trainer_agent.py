"""`TrainerAgent`: train a policy from one configuration, in a script or a notebook."""

import logging
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runs.recording import RunResult
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.service.agent_config import AgentConfig, agent_config
from ml_pipeline.service.env_builder import build_vec_env, get_optimal_n_envs
from ml_pipeline.service.trading_vec_env import BatchedTradingVecEnv, BuiltFrom, TradingVecEnv
from ml_pipeline.service.trainer_core import LOGGER, TrainerCore, file_logger, model_path
from ml_pipeline.trading.task import TradingTask


class TrainerAgent:
    """Trains a policy from a configuration, in environments that it makes or that you pass.

    config: a dict, the path of a YAML or JSON file, or a `TrainConfig`. logger: gets progress messages and warnings;
    None: the log file, if one is configured, or else the logger "ml_pipeline.service". trainer_core: the result and the
    throughput of the last run.

    >>> import tempfile
    >>> folder = tempfile.TemporaryDirectory()
    >>> config = {"training": {"total_timesteps": 64, "n_steps": 32, "batch_size": 32, "checkpoint_dir": folder.name}}
    >>> trainer = TrainerAgent(config)
    >>> vec_env = build_vec_env(["SYNTH"], None, trainer.config, n_envs=1, monitor_path=None)
    >>> trainer.set_env(vec_env)
    >>> trainer.train().name
    'best.pt'
    >>> vec_env.close(); folder.cleanup()
    """

    def __init__(
        self,
        config: Mapping[str, Any] | str | Path | TrainConfig | AgentConfig,
        *,
        logger: logging.Logger | None = None,
    ) -> None:
        """Raises UserError if the configuration is invalid."""
        self._is_settings = isinstance(config, TrainConfig)
        self.config = agent_config(config)
        log_file = self.config.logging.log_file
        if logger is None:
            logger = logging.getLogger(LOGGER) if log_file is None else file_logger(log_file)
        self._logger = logger
        self.trainer_core = TrainerCore(self.config.logging, self._logger)
        self._envs: VectorEnv | None = None
        self._built_from: BuiltFrom | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._envs!r}, {self.trainer_core.run_result!r})"

    def create_vectorized_env(
        self,
        symbols: Sequence[str],
        data_dir: str | Path | None,
        n_envs: int | None = None,
        use_shared_memory: bool = False,
    ) -> TradingVecEnv | BatchedTradingVecEnv:
        """Call `build_vec_env` with this configuration; the caller closes the environments.

        They write episode statistics to logs/vec_monitor.monitor.csv, unless `enable_monitoring` is false.
        """
        return build_vec_env(
            symbols,
            data_dir,
            self.config,
            n_envs,
            monitor_path=self.config.logging.monitor_path if self.config.vectorized.enable_monitoring else None,
            use_shared_memory=use_shared_memory,
            logger=self._logger,
        )

    def set_env(self, vec_env: VectorEnv | gymnasium.Env) -> None:
        """Train in these environments from now on. They stay open.

        vec_env: from `create_vectorized_env` or `build_vec_env`; a single environment, such as `gymnasium.make(...)`;
        or, if the section environment has an `env_id`, any Gymnasium vector environment of that id. For a single
        environment, the policy is evaluated on new environments of its id, without wrappers.
        """
        single = vec_env if isinstance(vec_env, gymnasium.Env) and not isinstance(vec_env, VectorEnv) else None
        kind = type(vec_env if single is None else single.unwrapped).__name__
        if single is not None:
            vec_env = self._wrapped(single)
        if not isinstance(vec_env, VectorEnv):
            another = f"; {_by_an_id(vec_env)}" if callable(vec_env) else ""
            raise UserError(
                "set_env takes a vector environment, such as that of create_vectorized_env, but got "
                f"{vec_env!r}{another}."
            )
        if getattr(vec_env, "closed", False):
            raise UserError("set_env got closed environments; make new ones, and close them after training.")
        built_from = getattr(vec_env, "built_from", None)
        if built_from is None and self.config.train.run.env_id is None:
            raise UserError(f"{kind} has no id to make another one for the evaluation; {_remedy(single)}.")
        self._envs, self._built_from = vec_env, built_from
        self.trainer_core.watch(vec_env, None if built_from is None else _first_of(built_from.task))

    def _wrapped(self, env: gymnasium.Env) -> VectorEnv:
        """A vector of one environment; its id is added to the configuration, unless that has one."""
        spec = env.spec
        registered = None if spec is None else gymnasium.registry.get(spec.id)
        if self.config.train.run.env_id is None and spec is not None and registered is not None:
            kwargs = dict(spec.kwargs)
            if spec.max_episode_steps not in {None, registered.max_episode_steps}:
                kwargs["max_episode_steps"] = spec.max_episode_steps
            self.config = self.config.with_settings(env_id=spec.id, env_kwargs=kwargs, n_envs=1)
        return ParallelEnv([lambda: env], num_workers=0)

    def train(self, *, resume: str | Path | None = None) -> Path:
        """Train to the end, and return the path of the best policy: best.pt in the run folder.

        Each call is a new run, in a new folder or in `checkpoint_dir`. resume: a run folder or checkpoint to continue
        instead, in environments of the same symbols and number. Without `set_env`, environments are made from the
        section environment, and closed at the end.
        Raises UserError if a setting is missing or invalid, and the errors of `Run.train`.
        """
        if self._envs is not None:
            return model_path(self._train_in(self._envs, self._built_from, resume))
        config = self.config.train
        if config.run.env_id is not None or self._is_settings:
            task = make_task(config)
            self._warn(task.notices)
            return model_path(self.trainer_core.train(config, task, resume=resume))
        trading = config.trading
        if missing := [name for name in ("data", "symbols") if not getattr(trading, name)]:
            raise UserError(
                "There are no environments to train in: call set_env(create_vectorized_env(symbols, data_dir)), or set "
                f"{' and '.join(missing)} in the section environment."
            )
        assert trading.data is not None
        envs = self.create_vectorized_env(trading.symbols, trading.data)
        try:
            self.trainer_core.watch(envs, _first_of(envs.built_from.task))
            return model_path(self._train_in(envs, envs.built_from, resume))
        finally:
            envs.close()

    def evaluate(self, model: str | Path | None = None, *, split: str = "test") -> dict[str, Any]:
        """Evaluate a policy, by default the best of the last run, on a split that was not used in training.

        Returns, for trading, {"agent", "buy_and_hold", "equal_weight", "random": each a dict of metrics, "symbols": the
        same per symbol, "table" and "summary": texts}; for a Gymnasium environment {"mean_return"}. Writes no files.
        """
        result = self.trainer_core.run_result
        if model is None and result is None:
            raise UserError("There is no policy to evaluate yet; call train() first, or pass a run folder.")
        assert model is not None or result is not None
        policy = load_policy(model if model is not None else model_path(result))  # type: ignore[arg-type]
        task: Any = make_task(policy.config) if self._built_from is None else self._built_from.task
        if policy.config.run.env_id is not None:
            self._warn(task.notices)
            return {"mean_return": task.score(policy.act)}
        figures: dict[str, Any] = task.evaluate(policy.act, split)
        return figures

    def get_recommended_n_envs(self, symbols: Sequence[str]) -> int:
        """The recommended number of environments for these symbols, measured on this machine now."""
        data = self.config.train.trading.data
        if data is None and self._built_from is not None:
            data = self._built_from.config.trading.data
        known = self._built_from is not None and {*symbols} <= {*self._built_from.task.symbols}
        return get_optimal_n_envs(symbols, data if known or self.config.train.trading.data else None, self.config)

    def _train_in(self, envs: VectorEnv, built_from: BuiltFrom | None, resume: str | Path | None) -> RunResult:
        own = self.config.train
        if built_from is None:
            n_workers = "dynamic" if own.run.n_workers == "dynamic" else "auto"
            config = self.config.with_settings(n_envs=envs.num_envs, n_workers=n_workers).train
            task = make_task(config)
            self._warn(task.notices)
            _check_spaces(task, envs)
            return self.trainer_core.train(config, task, envs, resume=resume)
        # The environments determine their own settings; the rest comes from this agent's configuration.
        made = built_from.config
        config = replace(made, ppo=own.ppo, run=_run_of(own, made))
        return self.trainer_core.train(config, built_from.task.with_seed(config.run.seed), envs, resume=resume)

    def _warn(self, notices: Sequence[str]) -> None:
        for notice in notices:
            self._logger.warning("%s", notice)


def _remedy(env: gymnasium.Env | None) -> str:
    """The remedy for an environment without an id; None: for a vector environment."""
    if env is None:
        return "make it with create_vectorized_env or build_vec_env, or set env_id in the section environment"
    made = type(env.unwrapped)
    if made.__module__.startswith("ml_pipeline.trading."):
        return "make it with create_vectorized_env or build_vec_env, which hold out bars for the evaluation"
    return _by_an_id(made)


def _by_an_id(made: Any) -> str:
    """The remedy for an environment's class, or a function that makes one."""
    name = getattr(made, "__name__", "")
    named = name.isidentifier()  # a lambda is not
    env_id, entry_point = (f"{name}-v0", name) if named else ("Mine-v0", "that function")
    return f'call gymnasium.register("{env_id}", entry_point={entry_point}) and pass gymnasium.make("{env_id}")'


def _check_spaces(task: Any, envs: VectorEnv) -> None:
    """Raise UserError if training and evaluation environments have different spaces."""
    with closing(task.evaluation_env()) as env:
        for name in ("observation_space", "action_space"):
            evaluated, trained = getattr(env, name), getattr(envs, f"single_{name}")
            if _form(evaluated) != _form(trained):
                raise UserError(
                    f"The environments have the {name.replace('_', ' ')} {excerpt(str(trained))}, but {task.env_id}, "
                    f"on which the policy is evaluated, has {excerpt(str(evaluated))}; name the wrappers in the "
                    "setting wrappers, or register an id for the wrapped environment."
                )


def _form(space: gymnasium.Space) -> tuple[Any, ...]:
    """The properties of a space that a policy depends on: everything except the bounds of numbers."""
    if isinstance(space, gymnasium.spaces.Dict | gymnasium.spaces.Tuple):
        parts = space.spaces if isinstance(space, gymnasium.spaces.Dict) else dict(enumerate(space.spaces))
        return type(space), {key: _form(part) for key, part in parts.items()}
    sizes = (np.asarray(getattr(space, name, None)).tolist() for name in ("n", "nvec"))
    return type(space), space.shape, *sizes


def _run_of(own: TrainConfig, made: TrainConfig) -> Any:
    """The agent's run settings, with the number and type of the environments that were made."""
    names = ("n_envs", "vec_env", "n_workers", "parallel_start_method", "step_timeout_s", "on_worker_failure")
    return replace(own.run, **{name: getattr(made.run, name) for name in names})


def _first_of(task: TradingTask) -> Any:
    return task.train_env_fns(len(task.accounts))[0]


__all__ = ["TrainerAgent"]

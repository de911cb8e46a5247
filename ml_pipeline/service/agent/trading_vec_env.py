"""The vector environments that `build_vec_env` returns: they know their task and settings, and may write a monitor."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ml_pipeline.models.rl.core.stepping.env_block import EnvFactory
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.service.agent.episode_monitor import EpisodeMonitor
from ml_pipeline.trading.episode_figures import BatchedEpisodeFiguresEnv
from ml_pipeline.trading.symbols_task import SymbolsTask


@dataclass(frozen=True)
class BuiltFrom:
    """What environments were made of. config: of a run in them."""

    task: SymbolsTask
    config: TrainConfig


class TradingVecEnv(ParallelEnv):
    """`ParallelEnv` of single symbols, dealt round them. built_from: its task, and the settings of a run in it."""

    def __init__(
        self, env_fns: Sequence[EnvFactory], built_from: BuiltFrom, monitor: EpisodeMonitor | None, **options: Any
    ) -> None:
        """Owns the monitor, and closes it in `close`. options: of `ParallelEnv`."""
        super().__init__(env_fns, **options)
        self.built_from = built_from
        self.is_monitored = True
        """False while somebody steps the environments to measure them."""
        self._monitor = monitor

    def _step_wait(self, timeout_s: float | None) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = super()._step_wait(timeout_s)
        if self._monitor is not None and self.is_monitored and "final_info" in result[4]:
            self._monitor.write(result[4]["final_info"])
        return result

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        super().close_extras(timeout, terminate)
        if (monitor := getattr(self, "_monitor", None)) is not None:
            monitor.close()


class BatchedTradingVecEnv(BatchedEpisodeFiguresEnv):
    """`BatchedTradingEnv` of single symbols; each episode draws its symbol. `attach` sets the rest."""

    built_from: BuiltFrom
    is_monitored = True
    _monitor: EpisodeMonitor | None = None

    def attach(self, built_from: BuiltFrom, monitor: EpisodeMonitor | None) -> "BatchedTradingVecEnv":
        """Take the task and settings, and a monitor to write and to close; return itself."""
        self.built_from, self._monitor = built_from, monitor
        return self

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        result = super().step(actions)
        if self._monitor is not None and self.is_monitored and "final_info" in result[4]:
            self._monitor.write(result[4]["final_info"])
        return result

    def close_extras(self, **kwargs: Any) -> None:
        super().close_extras(**kwargs)
        if self._monitor is not None:
            self._monitor.close()

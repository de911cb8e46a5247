"""Both ways in which a model changes while it trades, as one thing to ask between two bars."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic

from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.model_watch import D, ModelWatch, ReadyModel
from ml_pipeline.live.retraining.retrainer import RetrainedSession, Retrainer, RetrainEvent
from ml_pipeline.runs.trained.deployed import CURRENT, PROMOTION_FILE, is_version_folder, version_number
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.trading.settings import TradingConfig

MODELS_FOLDER = "models"
"""In the folder of a session whose model is none of a folder of models: its versions."""
_LOOK_S = 0.05


@dataclass(frozen=True, kw_only=True)
class UpdatedSession:
    """The session whose model is kept current.

    folder, name: of the session. named: the model as the user named it. checkpoint: what trades, with every link of
    `named` followed. trading: the settings of the session's market, costs and limits.
    """

    folder: Path
    name: str
    named: Path
    checkpoint: Path
    trading: TradingConfig
    package_version: str | None = None


class ModelUpdates(Generic[D]):
    """Watches the deployed model, and retrains where that is asked for; `close` ends both.

    Of a model that is named through models/NAME/current, or models/NAME, the versions of NAME are watched and added to.
    Of any other one, versions are written to models/ in the session's folder, and those are watched.
    """

    def __init__(
        self,
        config: RetrainConfig,
        session: UpdatedSession,
        *,
        load: Callable[[Path], D],
        tell: Callable[[str], None],
        log: Callable[[RetrainEvent], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """load: from the folder of a version to what decides by it, see `ModelWatch`. tell: about a version that cannot
        trade. log: what retrainings do. stopping: asked while a replay waits for a retraining.

        Raises UserError where the session cannot be retrained.
        """
        self._log, self._stopping, self._config = log, stopping, config
        self._running, self._running_name = session.checkpoint, _name_of(session.checkpoint)
        models, name = model_written_to(
            session.checkpoint, config.retrain_models_dir, folder=session.folder, named=session.named
        )
        self.model = models / name
        """The folder of the model whose versions are watched."""
        trades = session.checkpoint.parent
        running = version_number(trades.name) if trades.parent.resolve() == self.model.resolve() else None
        self._watch = ModelWatch(self.model, running, load, tell)
        self._retrainer: Retrainer | None = None
        if config.interval is not None:
            retrained = RetrainedSession(
                folder=session.folder,
                name=session.name,
                models=models,
                model=name,
                trading=session.trading,
                package_version=session.package_version,
            )
            self._retrainer = Retrainer(config, retrained)
        self._last_event: RetrainEvent | None = None

    def poll(self, market: Callable[[], MarketData]) -> ReadyModel[D] | None:
        """Called between two bars: a model to switch to, once it can decide at the next bar.

        It does not wait, but in a replay that is to wait for its retrainings. market: of all bars that were observed so
        far; its arrays are not changed by later bars.
        """
        self._retrain(market)
        if self._config.retrain_wait and self._retrainer is not None and self._retrainer.under_way is not None:
            if not self._wait(self._retrainer.wait):
                return None
            self._retrain(market)
        ready = self._watch.poll(market)
        if ready is None and self._config.retrain_wait and self._watch.is_preparing:
            ready = self._watch.poll(market) if self._wait(self._watch.wait) else None
        if ready is not None:
            self._running, self._running_name = ready.folder, ready.version
        return ready

    def status(self) -> dict[str, Any] | None:
        """Of the latest retraining, for the session's status; None before the first."""
        return None if self._last_event is None else self._last_event.as_json()

    def close(self) -> None:
        """End what goes on, and leave no process and no thread. May be called twice."""
        if self._retrainer is not None:
            self._retrainer.close()
        self._watch.close()

    def _retrain(self, market: Callable[[], MarketData]) -> None:
        if self._retrainer is None:
            return
        for event in self._retrainer.poll(market, self._running, self._running_name):
            self._last_event = event
            self._log(event)

    def _wait(self, wait: Callable[[float], bool]) -> bool:
        """Whether what is waited for has come; False where the session is to stop meanwhile."""
        while not wait(_LOOK_S):
            if self._stopping():
                return False
        return True


def model_written_to(checkpoint: Path, models_dir: Path | None, *, folder: Path, named: Path) -> tuple[Path, str]:
    """The folder of models, and the name of the model, that new versions are written to and watched in.

    checkpoint: what `named` names, links followed. folder: of the session.
    """
    holds = checkpoint.parent
    is_deployed = is_version_folder(holds)
    name = holds.parent.name if is_deployed else holds.name
    if models_dir is not None:
        return models_dir.expanduser().absolute(), name
    if is_deployed and _follows_current(named):
        return holds.parent.parent, name
    return folder / MODELS_FOLDER, name


def _follows_current(named: Path) -> bool:
    """Whether a path names a model by what is current, and not a version or a checkpoint."""
    if CURRENT in {named.name, named.parent.name}:
        return True
    return version_number(named.name) is None and (named / CURRENT).exists() and not (named / PROMOTION_FILE).exists()


def _name_of(checkpoint: Path) -> str:
    folder = checkpoint.parent
    return folder.name if is_version_folder(folder) else f"{folder.name}/{checkpoint.name}"

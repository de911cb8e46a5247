"""Changes of the model while it trades, by deployment or retraining, polled between two bars.

Any switch of `current` counts: by `promote`, `promote --watch`, `rollback` or a retraining. Loading a policy and
computing its features over all bars so far takes seconds, so a thread does it. The loop gets the model when it can
decide at the next bar.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ml_pipeline.config.errors import UserError, excerpt
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.live.retraining.config import RetrainConfig
from ml_pipeline.live.retraining.retrainer import RetrainedSession, Retrainer, RetrainEvent
from ml_pipeline.runs.trained.deployed import (
    CURRENT,
    PROMOTION_FILE,
    current_number,
    is_version_folder,
    version_number,
    warned_of,
)
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.data import MarketData
from ml_pipeline.tuning.promotion.model_store import Version

MODELS_FOLDER = "models"
"""Folder for versions within a session's folder, if its model is not in a folder of models."""
_LOOK_S = 0.05
_FEW_BARS = 16
"""At most this many bars are observed between two bars; more of them in the thread."""
_LONGEST = 300


@dataclass(frozen=True)
class ReadyModel:
    """A model that can decide at the next bar. folder: of its version. why: where it comes from, in a sentence."""

    folder: Path
    version: str
    why: str
    decider: PolicyRunner


class ModelUpdates:
    """Watches the deployed model, and retrains if configured; `close` ends both.

    If the model is named as models/NAME/current or models/NAME, it watches the versions of NAME and adds new ones
    there. Otherwise versions are written to and watched in models/ in the session's folder.
    """

    def __init__(
        self,
        config: RetrainConfig,
        session: RetrainedSession,
        *,
        load: Callable[[Path], PolicyRunner],
        tell: Callable[[str], None],
        log: Callable[[RetrainEvent], None],
        stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        """load: loads the folder of a version, see `ModelWatch`. tell: called with messages on a version that cannot
        trade. log: called with events of retrainings. stopping: called while a replay waits for a retraining.

        Raises UserError if the session cannot be retrained.
        """
        self._log, self._stopping, self._config = log, stopping, config
        self._running, self._running_name = session.checkpoint, _name_of(session.checkpoint)
        self.model = model_written_to(
            session.checkpoint, config.retrain_models_dir, folder=session.folder, named=session.named
        )
        """The folder of the model whose versions are watched."""
        trades = session.checkpoint.parent
        running = version_number(trades.name) if trades.parent.resolve() == self.model.resolve() else None
        self._watch = ModelWatch(self.model, running, load, tell)
        self._retrainer = None if config.interval is None else Retrainer(config, session, self.model)
        self._last_event: RetrainEvent | None = None

    def poll(self, market: Callable[[], MarketData]) -> ReadyModel | None:
        """Call between two bars. Returns a model to switch to when it can decide at the next bar.

        It waits only with `retrain_wait`. market: returns all observed bars, in arrays that later bars do not change.
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
        """The latest event of a retraining, for the session's status; None before the first."""
        return None if self._last_event is None else self._last_event.as_json()

    def close(self) -> None:
        """End a retraining and all threads; may be called twice."""
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
        """Wait, and return True; return False if the session is stopping."""
        while not wait(_LOOK_S):
            if self._stopping():
                return False
        return True


class ModelWatch:
    """Watches models/NAME/current.

    load: loads the folder of a version and returns its runner; raises UserError if the version does not fit the
    session, for example because of another number of symbols. tell: called with a message about a version that cannot
    trade.
    """

    def __init__(
        self, model: Path, running: int | None, load: Callable[[Path], PolicyRunner], tell: Callable[[str], None]
    ) -> None:
        """model: the folder models/NAME. running: number of the current version; None: another model trades."""
        self._model = model
        self._running = running
        self._load = load
        self._tell = tell
        self._refused: int | str | None = None
        self._preparing: _Preparation | None = None
        self._told_of: int | None = None

    @property
    def is_preparing(self) -> bool:
        """Whether a version is being prepared, or waits for more bars."""
        return self._preparing is not None

    def poll(self, market: Callable[[], MarketData]) -> ReadyModel | None:
        """Call between two bars. Returns a version once, when it can decide at the next bar, or None; never waits.

        market: returns all observed bars, in arrays that later bars do not change.
        """
        current = self._current()
        if self._preparing is not None and self._preparing.number != current:
            self._preparing.abandon()
            self._preparing = None
        if current is None or current == self._running:
            self._refused = self._refused if current is None else None
            return None
        if current == self._refused:
            return None
        if self._preparing is None:
            self._preparing = _Preparation(Version(current, self._model / f"v{current}"), self._load, market())
            return None
        return self._look(self._preparing, market)

    def wait(self, timeout_s: float) -> bool:
        """Wait at most `timeout_s` for the version in preparation. Returns whether its thread has ended."""
        return self._preparing is None or self._preparing.wait(timeout_s)

    def close(self) -> None:
        """End the preparation and its thread; may be called twice."""
        if self._preparing is not None:
            self._preparing.abandon()
            self._preparing.wait(None)
            self._preparing = None

    def _look(self, preparing: "_Preparation", market: Callable[[], MarketData]) -> ReadyModel | None:
        if not preparing.wait(0.0):
            return None
        name = f"{preparing.version.name} of {self._model.name}"
        if preparing.error is None:
            preparing.catch_up(market())
        if preparing.error is not None:
            self._refused, self._preparing = preparing.number, None
            self._say(name, preparing.error)
            return None
        if not preparing.wait(0.0):
            return None
        if not preparing.complete:
            if self._told_of != preparing.number:
                self._told_of = preparing.number
                self._tell(f"{name} is current, and trades when it has enough bars for its features.")
            return None
        assert preparing.decider is not None
        self._preparing, self._running = None, preparing.number
        return ReadyModel(preparing.version.folder, preparing.version.name, preparing.why, preparing.decider)

    def _current(self) -> int | None:
        """The current version; None if it is unknown, which is reported once."""
        try:
            return current_number(self._model)
        except UserError as error:
            if self._refused != str(error):
                self._refused = str(error)
                self._say(f"{self._model / CURRENT}", str(error))
            return None

    def _say(self, what: str, why: str) -> None:
        self._tell(f"{what} cannot trade here, so the current model stays: {why}")


class _Preparation:
    """Loads a version and observes the bars so far, in a thread.

    error: why it cannot trade. complete: whether it can decide.
    """

    def __init__(self, version: Version, load: Callable[[Path], PolicyRunner], market: MarketData) -> None:
        self.version = version
        self.number = version.number
        self.decider: PolicyRunner | None = None
        self.error: str | None = None
        self.complete = False
        self.why = ""
        self._load = load
        self._n_seen = 0
        self._abandoned = False
        self._thread = self._started(market)

    def abandon(self) -> None:
        self._abandoned = True

    def wait(self, timeout_s: float | None) -> bool:
        """Wait at most `timeout_s`. Returns whether the thread has ended."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def catch_up(self, market: MarketData) -> None:
        """Observe the bars that have arrived since: a few at once, many in the thread."""
        if market.n_bars - self._n_seen <= _FEW_BARS:
            self._safely(market)
        else:
            self._thread = self._started(market)

    def _started(self, market: MarketData) -> threading.Thread:
        thread = threading.Thread(target=self._safely, args=(market,), name="new-model", daemon=True)
        thread.start()
        return thread

    def _safely(self, market: MarketData) -> None:
        try:
            self._prepare(market)
        except UserError as error:
            self.error = str(error)
        except Exception as error:  # of the policy's or the user's code: the previous model continues
            self.error = f"{type(error).__name__}: {' '.join(excerpt(str(error), _LONGEST).split())}"

    def _prepare(self, market: MarketData) -> None:
        if self.decider is None:
            self.version.require_whole()
            self.why = _why(self.version)
            self.decider = self._load(self.version.folder)
            self.complete = self.decider.observe_all(list(bar_sets_of(market)), lambda: self._abandoned)
            self._n_seen = market.n_bars
            return
        for bars in bar_sets_of(market.bars(self._n_seen, market.n_bars)):
            if self._abandoned:
                return
            self.complete = self.decider.observe(bars)
            self._n_seen += 1


def _why(version: Version) -> str:
    promotion = version.promotion
    if "retraining" in promotion:
        origin = f"retraining {promotion['retraining']} of the session {promotion.get('session')}"
    elif "study" in promotion:
        origin = f"trial {promotion.get('trial')} of the study {promotion['study']}"
    else:
        return f"{version.name} is current."
    return " ".join([f"{version.name}, of {origin}, is current.", *warned_of(version.folder).sentences()])


def model_written_to(checkpoint: Path, models_dir: Path | None, *, folder: Path, named: Path) -> Path:
    """The folder models/NAME in which new versions are written and watched.

    checkpoint: of `named`, with links resolved. folder: of the session.
    """
    holds = checkpoint.parent
    is_deployed = is_version_folder(holds)
    name = holds.parent.name if is_deployed else holds.name
    if models_dir is not None:
        return models_dir.expanduser().absolute() / name
    if is_deployed and _follows_current(named):
        return holds.parent
    return folder / MODELS_FOLDER / name


def _follows_current(named: Path) -> bool:
    """Whether a path names the current version of a model, not a fixed version or a checkpoint."""
    if CURRENT in {named.name, named.parent.name}:
        return True
    return version_number(named.name) is None and (named / CURRENT).exists() and not (named / PROMOTION_FILE).exists()


def _name_of(checkpoint: Path) -> str:
    folder = checkpoint.parent
    return folder.name if is_version_folder(folder) else f"{folder.name}/{checkpoint.name}"

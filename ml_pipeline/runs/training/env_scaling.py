"""Changes a run's number of environments between two iterations, by its schedule or on request."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from gymnasium.vector import VectorEnv

from ml_pipeline.config.env_schedule import check_n_envs, with_change
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.wording import counted
from ml_pipeline.models.rl.algorithms.trainer import ChangesEnvs, Trainer
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater
from ml_pipeline.models.rl.ranks import rows_of
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.tasks import Task, make_envs
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.env_limit import current_leases, leasing

_NOT_TO_BE_HAD = (UserError, VectorEnvError, OSError, MemoryError)


class EnvScaling:
    """Owns the environments of a run, or holds those passed in, whose number is fixed.

    config: the settings of the run. Its schedule records changes on request as if they had been planned: a run with
    these settings ends with the same weights.
    """

    def __init__(
        self,
        config: TrainConfig,
        task: Task,
        *,
        envs: VectorEnv | None = None,
        n_envs: int,
        say: Callable[[str], None],
        ranks: RankContext,
    ) -> None:
        """envs: existing ones to use in place of new ones. n_envs: the initial number. say: prints what was done or
        refused. ranks: share the environments, and change their number together."""
        self.config = config
        self._task = task
        self._say = say
        self._ranks = ranks
        self._requested: int | None = None
        self._said_missing = ""
        self._handed_in = envs is not None
        self._leases = current_leases()  # one for all, so that environments count once during a change
        self.n_envs = n_envs if envs is None else envs.num_envs
        """Over all ranks."""
        self.envs = self._make_envs(n_envs) if envs is None else envs
        self._n_workers_made = n_workers_of(self.envs)

    def close(self) -> None:
        """Close the environments, unless they were passed in; may be called twice."""
        if not self._handed_in:
            self.envs.close()

    @property
    def worker_pids(self) -> Sequence[int]:
        """The worker processes that step the environments."""
        return self.envs.worker_pids if isinstance(self.envs, ParallelEnv) else ()

    def take_sentences(self) -> list[str]:
        """Messages on workers replaced since the last call, and on environments without a lease.

        Indices of environments count over all ranks.
        """
        if not isinstance(self.envs, ParallelEnv):
            return []
        replaced = "Another replaced it; its lost episodes count as truncated."
        first = rows_of(self._ranks.rank, self._ranks.size, self.n_envs).start
        failures = self.envs.take_failures(first_env=first, n_envs=self.n_envs)
        return [*(f"{failure} {replaced}" for failure in failures), *self.envs.take_notices()]

    def request(self, n_envs: int) -> None:
        """Request this number of environments from the next `apply` on; a later request replaces it."""
        self._requested = n_envs

    def may_change(self, trainer: Trainer) -> bool:
        """True if the trainer is between two iterations."""
        return not (trainer.finished or (isinstance(trainer, ChangesEnvs) and trainer.mid_rollout))

    def apply(self, trainer: Trainer, *, save: Callable[[], None]) -> bool:
        """Change to the number that is due at the trainer's step, and save; return True if it saved.

        A request holds until the next step in the schedule; if it cannot be met, it is refused with a message.
        Changes are reported after saving. If a worker was just replaced, the change waits one more iteration.
        Raises UserError or VectorEnvError if the schedule cannot be met.
        """
        requested, self._requested = self._requested, None
        if requested is not None:
            return self._grant(trainer, requested, save)
        n_envs = self.config.run.n_envs_at(trainer.global_step)
        planned = not self._handed_in or self.config.run.n_envs_schedule
        if n_envs == self.n_envs or not planned:
            return False
        try:
            done = self._change(trainer, n_envs)
        except RescaleLater:  # retried after the next iteration
            return False
        save()
        self._say(f"By n_envs_schedule: {done}")
        return True

    def _grant(self, trainer: Trainer, n_envs: int, save: Callable[[], None]) -> bool:
        run, step, wanted = self.config.run, trainer.global_step, counted(n_envs, "environment")
        if n_envs == self.n_envs == run.n_envs_at(step):
            self._say(f"As requested: still {wanted}.")
            return False
        try:
            check_n_envs("The number", n_envs)
            self.config.ppo.check_change(n_envs)
            schedule = with_change(run.n_envs_schedule, step, n_envs)
            config = replace(self.config, run=replace(run, n_envs_schedule=schedule))
            stays = n_envs == self.n_envs
            done = f"from step {step:,} on, still {wanted}." if stays else self._change(trainer, n_envs)
        except RescaleLater:
            self._requested = n_envs
            return False
        except _NOT_TO_BE_HAD as error:
            self._say(f"The request for n_envs = {n_envs} is refused: {error or type(error).__name__}")
            return False
        self.config = config
        save()
        later = next(((at, n) for at, n in schedule.items() if at > step), None)
        until = "" if later is None else f" From step {later[0]:,} on, n_envs_schedule has {later[1]}."
        self._say(f"As requested: {done}{until}")
        return True

    def _change(self, trainer: Trainer, n_envs: int) -> str:
        """Move the trainer to this number of environments; return a description of the change."""
        if not isinstance(trainer, ChangesEnvs):
            raise UserError(f"{type(trainer).__name__} cannot change the number of environments while it trains.")
        if self._handed_in:
            raise UserError("The environments were passed in, so their number cannot change.")
        if isinstance(self.envs, ParallelEnv):
            self.envs.check_reported()
        before, n_workers = self.n_envs, n_workers_of(self.envs)
        moved = n_workers != self._n_workers_made  # WorkerScaling changed their number: keep it
        later = self._make_envs(n_envs, n_workers=n_workers if moved else None)
        try:
            missing = trainer.replace_envs(later)
        except BaseException:
            later.close()
            raise
        self.envs.close()
        self.envs, self.n_envs, self._n_workers_made = later, n_envs, n_workers_of(later)
        return f"from step {trainer.global_step:,} on, {self._told(before, n_envs, missing)}"

    def _make_envs(self, n_envs: int, *, n_workers: int | None = None) -> VectorEnv:
        def make() -> VectorEnv:
            rows = rows_of(self._ranks.rank, self._ranks.size, n_envs)
            with leasing(self._leases):
                return make_envs(self.config, self._task, n_envs=n_envs, n_workers=n_workers, rows=rows)

        return self._ranks.each("its environments", make)

    def _told(self, before: int, n_envs: int, missing: str) -> str:
        done = f"{counted(n_envs, 'environment')} instead of {before}."
        if n_envs < before:
            done += f" The unfinished {_episodes(before - n_envs)} of the last {before - n_envs} end as truncated."
        if missing and missing != self._said_missing:
            self._said_missing = missing
            done += f" All environments start new episodes: {missing.rstrip('.')}."
        n_workers = self.config.run.n_workers
        if isinstance(n_workers, int) and n_workers > n_envs:
            done += f" n_workers is {n_workers}, but each environment has at most one worker: now {n_envs}."
        return done


def n_workers_of(envs: VectorEnv) -> int:
    """The number of worker processes that step `envs`."""
    return envs.num_workers if isinstance(envs, ParallelEnv) else 0


def n_envs_in(saved: Mapping[str, Any] | None, run: RunConfig) -> int:
    """The number of environments a run continues with: from its checkpoint if it has one.

    Raises UserError if the number in the checkpoint is invalid.
    """
    if saved is None:
        return run.n_envs
    n_envs: Any = saved.get("n_envs")
    check_n_envs("n_envs in the checkpoint", n_envs)
    return n_envs


def _episodes(n: int) -> str:
    return "episode" if n == 1 else "episodes"

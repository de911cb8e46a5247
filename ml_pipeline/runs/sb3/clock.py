"""Where the time of an iteration goes: collecting, which is acting, stepping and waiting, or learning."""

import time

from ml_pipeline.models.rl.algorithms.iteration_statistics import TimeSpent
from ml_pipeline.runs.sb3.envs import WatchedEnvs


class Clock:
    """Told when the loop of Stable-Baselines3 begins to collect and to learn."""

    def __init__(self, watched: WatchedEnvs) -> None:
        self._watched = watched
        self._began: float | None = None
        self.elapsed_before_s = 0.0
        """Seconds of training before the last `begin`."""
        self.start_iteration(0)

    def elapsed_s(self) -> float:
        """Seconds of training so far."""
        return self.elapsed_before_s + (0.0 if self._began is None else time.perf_counter() - self._began)

    def begin(self, global_step: int) -> None:
        """Training begins, or goes on."""
        self._began = time.perf_counter()
        self.start_iteration(global_step)

    def end(self) -> None:
        self.elapsed_before_s, self._began = self.elapsed_s(), None

    def start_iteration(self, global_step: int) -> None:
        """Forget what was counted; what was done since the last call of anything here counts nowhere."""
        self._first_step = global_step
        self._collecting_s = self._learning_s = 0.0
        self._stepping_s, self._waited_s = self._watched.stepping_s, self._watched.parallel_env.waited_s
        self._mark = time.perf_counter()

    def collects(self) -> None:
        """A rollout begins: the time until now was learning."""
        self._learning_s += self._since_mark()

    def learns(self) -> None:
        """A rollout is over: the time until now was collecting."""
        self._collecting_s += self._since_mark()

    def take(self, global_step: int) -> tuple[int, TimeSpent]:
        """The transitions of the iteration that is over, and where its time went."""
        self.collects()
        stepped_s = self._watched.stepping_s - self._stepping_s
        waited_s = self._watched.parallel_env.waited_s - self._waited_s
        spent = TimeSpent(
            acting_s=max(0.0, self._collecting_s - stepped_s),
            stepping_s=max(0.0, stepped_s - waited_s),
            waiting_s=waited_s,
            learning_s=self._learning_s,
        )
        return global_step - self._first_step, spent

    def _since_mark(self) -> float:
        now = time.perf_counter()
        passed, self._mark = now - self._mark, now
        return passed

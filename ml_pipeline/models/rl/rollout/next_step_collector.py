"""Collecting from environments that reset in the step after an end (autoreset_mode NEXT_STEP, Gymnasium's default).

That step only resets: its action is ignored, and it is no transition. It is left out by giving each environment a place
of its own in the rollout, which moves on only by transitions. So rollouts have n_steps transitions of each environment,
as in other modes, and everything after collecting is the same.

The vector environment steps all environments together. An environment that has its n_steps transitions therefore acts
on until the others have theirs. These surplus transitions count for the return and length of its episode; they are not
learned from. Masking the steps that reset would waste none of them, but rollouts, minibatches and sequences for memory
would then differ in size.
"""

import warnings
from typing import Any

import numpy as np
import torch
from gymnasium.vector import VectorEnv

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.core.stepping.errors import VectorResultError
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.models.rl.ranks import Ranks
from ml_pipeline.models.rl.rollout.host_collector import HostCollector

Array = np.ndarray


class NextStepCollector(HostCollector):
    """`HostCollector` for NEXT_STEP. T steps, N environments.

    A rollout ends when each environment has T transitions; one whose episode just ended resets in the first step of the
    next rollout. The noise of T transitions is drawn beforehand, and that of surplus ones when they are taken. If the
    statistics of observations are updated after each step, they learn from all observations that are acted on. The last
    observations of episodes are not acted on; those of truncated episodes are normalized.
    `buffer.position` and `global_step` count the transitions that every environment has taken.
    """

    _autoreset_mode = "NEXT_STEP"
    _counts_whole_steps = False

    def __init__(
        self, envs: VectorEnv, policy: Policy, config: PPOConfig, *, seed: int, ranks: Ranks | None = None
    ) -> None:
        """The arguments are those of `Collector`; there is one rank."""
        super().__init__(envs, policy, config, seed=seed, ranks=ranks)
        self._each = np.arange(envs.num_envs)
        self._at = np.full(envs.num_envs, config.n_steps)  # transitions of each environment in this rollout
        self._ended, self._has_surplus, self._began_beyond = np.zeros((3, envs.num_envs), np.bool_)
        self._has_warned = False

    def _begin(self) -> None:
        super()._begin()
        self._at[:] = 0
        self._has_surplus[:], self._began_beyond[:] = False, False

    def _step(self) -> None:
        buffer, policy, at, n_steps = self.buffer, self._policy, self._at, self.buffer.n_steps
        assert buffer.noise is not None
        start, acting = self.rollout_start_step, ~self._ended
        inside, surplus = (acting & (at < n_steps)).nonzero()[0], (acting & (at == n_steps)).nonzero()[0]
        drawn = np.minimum(at, n_steps - 1) // self._steps_per_noise
        observed, noise = buffer.observations[at, self._each], buffer.noise[drawn, self._each]
        if len(surplus) and self._steps_per_noise == 1:  # noise by state keeps its last matrix
            noise[surplus] = policy.distribution.draw_noise(self._noise_generator, (len(surplus),))
        if not self._learns_by_step:
            observed = policy.observations.normalize(observed)
        actions, outputs = policy.choose_and_value(observed, noise, self._memory, self._at_hand)
        result = self._call_step(policy.fit_actions(actions))
        self._check_resets(*result[1:])
        observations, rewards, terminated, truncated, infos = result
        done = terminated | truncated
        if self._memory is not None:
            self._memory.forget(done | self._ended)  # also what it made of the last observation of an episode
        next_obs = self._next_observations(policy.observations.encode(observations), done)
        buffer.store_own_steps(
            at[inside],
            inside,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            outputs=outputs,
        )
        self._rewards[at[inside], inside] = rewards[inside]
        for i in inside[truncated[inside] & ~terminated[inside]].tolist():
            buffer.final_observations.append((int(at[i]), i, next_obs[i].copy()))
        self._go_beyond(surplus, done)
        at[inside] += 1
        buffer.observations[at, self._each] = next_obs
        self._ended = done
        first, buffer.position = buffer.position, int(at.min())
        buffer.n_ahead = int(at.max()) - buffer.position
        now = self._times[first : buffer.position] = self._elapsed_s()
        self.global_step = start + buffer.position * self.num_envs
        self.episodes.count_step(rewards, done & acting, acting, global_step=self.global_step, time_s=now)
        if self.episodes.infos is not None:  # in two steps, all environments move on, so that no two ends share a place
            self._keep_infos(terminated & acting, truncated & acting, {"final_info": infos})

    def _next_observations(self, encoded: Array, done: Array) -> Array:
        """The new observations as the buffer holds them; statistics do not learn from the last ones of episodes."""
        if not done.any():
            return self._learned(encoded)
        next_obs, going_on = encoded.copy(), (~done).nonzero()[0]
        if len(going_on):
            next_obs[going_on] = self._learned(encoded[going_on], going_on)
        if self._learns_by_step:
            next_obs[done] = self._policy.observations.normalize(encoded[done])
        return next_obs

    def _go_beyond(self, surplus: Array, done: Array) -> None:
        """Before the observations after T transitions are replaced by later ones, keep those that are bootstrapped."""
        buffer, last = self.buffer, self.buffer.n_steps - 1
        for i in surplus[~self._has_surplus[surplus]].tolist():
            self._has_surplus[i] = True
            if not (buffer.terminated[last, i] or buffer.truncated[last, i]):
                buffer.final_observations.append((last, i, buffer.observations[last + 1, i].copy()))
        self._began_beyond[surplus] |= done[surplus]

    def _count(self, first: int, *, global_step: int, rewards: Array, times: Array) -> None:
        super()._count(first, global_step=global_step, rewards=rewards, times=times)
        if self.buffer.full:  # in the order that a checkpoint has: the bits of their values may depend on it
            self.buffer.final_observations.sort(key=lambda each: each[:2])
        if self.buffer.full and self._reward_scaler is not None:
            self._reward_scaler.begin_episodes(self._began_beyond)
            self._began_beyond[:] = False  # once

    def _check_resets(self, rewards: Array, terminated: Array, truncated: Array, infos: dict[str, Any]) -> None:
        """Raise VectorResultError, or warn once, if the environments do not reset in the next step."""
        name, resetting = type(getattr(self._envs, "unwrapped", self._envs)).__name__, self._ended
        advice = 'if they reset in the same step, set metadata["autoreset_mode"] to AutoresetMode.SAME_STEP'
        if "final_obs" in infos:
            raise VectorResultError(
                f"{name} declares autoreset_mode NEXT_STEP, but its infos have final_obs, as in SAME_STEP; {advice}, "
                "else leave final_obs out."
            )
        if not resetting.any():
            return
        again = resetting & (terminated | truncated)
        if again.any() and "worker_restarted" not in infos:  # a lost worker truncates whatever its environments did
            raise VectorResultError(
                f"{name} declares autoreset_mode NEXT_STEP, but the episode of environment {int(again.argmax())} ended "
                f"again in the step that only resets it; {advice}, else return terminated and truncated False there."
            )
        given = resetting & (rewards != 0.0)
        if given.any() and not self._has_warned:
            self._has_warned = True
            i = int(given.argmax())
            warnings.warn(
                f"{name} declares autoreset_mode NEXT_STEP, but gave environment {i} the reward {rewards[i]:g} in a "
                f"step that only resets it. This step is left out; {advice}, which also needs final_obs.",
                stacklevel=2,
            )

    def _own_state(self) -> dict[str, Any]:
        under_way = None
        if not self.buffer.full:
            names = ("at", "has_surplus", "began_beyond")
            ahead = self._rewards[self.buffer.position : self.buffer.position + self.buffer.n_ahead]
            under_way = {
                **{name: getattr(self, f"_{name}").tolist() for name in names},
                "rewards": torch.from_numpy(ahead.copy()),  # before scaling
            }
        state = {"autoreset_mode": self._autoreset_mode, "ended": self._ended.tolist(), "under_way": under_way}
        return {**super()._own_state(), **state}

    def load_state_dict(self, state: dict[str, Any], *, environments_restored: bool) -> None:
        super().load_state_dict(state, environments_restored=environments_restored)
        self._ended[:] = state["ended"] if environments_restored else False
        self._at[:] = self.buffer.position
        under_way = state["under_way"] if environments_restored else None
        if under_way is not None:
            for name in ("at", "has_surplus", "began_beyond"):
                getattr(self, f"_{name}")[:] = under_way[name]
            first = self.buffer.position
            self._rewards[first : first + self.buffer.n_ahead] = under_way["rewards"].numpy()

"""A trainer goes on in more or fewer environments: running episodes keep running, and all else stays as it was."""

from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import ChangesEnvs
from ml_pipeline.models.rl.core.stepping.errors import EnvFailedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, RescaleLater, SerialEnv
from ml_pipeline.models.rl.ranks import rows_of
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import parse_train_start
from tests.models.rl.core.workers.probes import is_gone, wait_until
from tests.models.rl.distributed import tasks
from tests.models.rl.distributed.rank_server import RankServer

N_STEPS, SEED = 8, 3


class Walk(gymnasium.Env):
    """A seeded random walk in episodes of 13 steps, whose observation names the seed and the step of the episode."""

    observation_space = spaces.Box(-99, 99, (3,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seeded = seed if seed is not None else getattr(self, "seeded", -1)
        self.position, self.t = 0.0, 0
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        self.position += float(self.np_random.normal()) + 0.1 * float(action)
        return self._seen(), self.position, False, self.t == 13, {}

    def get_plain_state(self):
        return {"at": [self.seeded, self.position, self.t], "generator": self.np_random}

    def set_plain_state(self, state):
        (self.seeded, self.position, self.t), self.np_random = state["at"], state["generator"]

    def _seen(self):
        return np.array([self.seeded, self.t, np.clip(self.position, -99, 99)], np.float32)


class Unsaveable(Walk, gymnasium.utils.EzPickle):
    """Its pickle would begin anew, as that of simulators does."""


def broken():
    raise ValueError("no licence")


def config_of(**settings):
    usual = {"n_steps": N_STEPS, "minibatch_size": 12, "n_epochs": 2, "hidden_sizes": (8,)}
    return PPOConfig(**{**usual, **settings})


def trainer_of(n_envs, *, env=Walk, **settings):
    return PPOTrainer(SerialEnv([env] * n_envs), config_of(**settings), total_timesteps=1_000, seed=SEED)


def trained(trainer, n_iterations):
    for _ in range(n_iterations):
        trainer.train_episode_vectorized()
    return trainer


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()])


def seen_in_next_step(trainer):
    """(seed, step of its episode) of each environment, as the environments return them."""
    return trainer._envs.step(np.zeros(trainer._envs.num_envs, np.int64))[0][:, :2].astype(int).tolist()


def test_growing_keeps_running_episodes_and_resets_the_others_with_seed_plus_i():
    trainer = trained(trainer_of(2), 2)  # 16 steps: 3 into the second episode
    assert trainer.replace_envs(SerialEnv([Walk] * 4)) == ""
    assert seen_in_next_step(trainer) == [[SEED, 4], [SEED + 1, 4], [SEED + 2, 1], [SEED + 3, 1]]


def test_shrinking_keeps_the_first_environments_and_forgets_the_unfinished_episodes_of_the_last():
    trainer = trained(trainer_of(4), 2)
    before = trainer._collector.episodes.recent_mean_return()
    trainer.replace_envs(SerialEnv([Walk] * 2))
    assert trainer._collector.episodes.recent_mean_return() == before
    assert trainer._collector.episodes.take_finished() == []
    statistics = trainer.train_episode_vectorized()  # 3 + 8 steps of episodes of 13: none ends
    assert (statistics.n_envs, statistics.n_completed_episodes) == (2, 0)
    assert trainer.train_episode_vectorized().n_completed_episodes == 2
    assert trainer.global_step == 2 * N_STEPS * 4 + 2 * N_STEPS * 2


def test_the_last_values_of_environments_that_are_left_out_were_bootstrapped(monkeypatch):
    """As those of an episode that is truncated after its last step: the rollout before a change is a whole one."""
    ways = []
    for length in (99, N_STEPS):  # goes on after the rollout; or is truncated by its end

        class Timed(Walk):
            def step(self, action, length=length):
                *others, _ = super().step(action)
                return (*others[:3], self.t == length, {})

        trainer = trainer_of(2, env=Timed, normalize_obs=False, normalize_rewards=False)
        estimates = []
        estimate = trainer._collector.estimates
        monkeypatch.setattr(trainer._collector, "estimates", lambda e=estimate, to=estimates: to.append(e()) or to[0])
        trained(trainer, 1)
        ways.append(estimates[0].batch.inputs.advantages)
    assert torch.allclose(*ways, atol=1e-6)


@pytest.mark.parametrize(
    ("settings", "change"),
    [
        ({}, (3,)),
        ({"memory": "lstm", "memory_size": 4}, (3, 3)),
        # What further environments begin with enters the statistics, if there are any.
        ({"normalize_obs": False}, (5, 3)),
        ({"normalize_obs": False, "memory": "gru", "memory_size": 4}, (5, 3)),
    ],
    ids=str,
)
def test_a_change_that_is_none_leaves_every_bit(settings, change):
    plain, changed = (trained(trainer_of(3, **settings), 2) for _ in range(2))
    for n_envs in change:
        changed.replace_envs(ParallelEnv([Walk] * n_envs, num_workers=0, copy=False))
    assert torch.equal(weights_of(trained(plain, 3)), weights_of(trained(changed, 3)))
    assert changed._collector.state_dict()["episodes"] == plain._collector.state_dict()["episodes"]


@pytest.mark.parametrize("settings", [{}, {"memory": "gru", "memory_size": 4}], ids=str)
def test_a_change_is_the_same_whenever_it_is_made_by_whoever_steps_and_across_a_resumption(settings):
    first, second = (trained(trainer_of(3, **settings), 2) for _ in range(2))
    first.replace_envs(SerialEnv([Walk] * 5))
    with ParallelEnv([Walk] * 5, num_workers=2) as envs:
        second.replace_envs(envs)
        resumed = trainer_of(5, **settings)
        resumed.load_state_dict(second.state_dict())
        assert torch.equal(weights_of(trained(first, 2)), weights_of(trained(second, 2)))
    assert torch.equal(weights_of(first), weights_of(trained(resumed, 2)))


def test_learning_rates_follow_steps_and_training_ends_at_its_steps():
    trainer = trainer_of(3, learning_rate_schedule="linear", learning_rate=1.0)
    trained(trainer, 2)  # 48 of 1,000 steps
    trainer.replace_envs(SerialEnv([Walk] * 10))
    # 952 more in rollouts of 80 are 12 of them, to step 1,008.
    assert (trainer.total_timesteps, trainer.total_iterations) == (1008, 14)
    assert trainer.train_episode_vectorized().update.learning_rate == pytest.approx(1 - 48 / 1008)
    trainer.train(progress=False)
    assert (trainer.global_step, trainer.iteration, trainer.finished) == (1008, 14, True)


def test_batched_environments_grow_and_shrink_in_arrays_and_in_tensors():
    flags = ["--n-envs", "8", "--n-steps", "8", "--minibatch-size", "32", "--window", "2", "--episode-length", "11"]
    config = parse_train_start([*flags, "--vec-env", "batched", "--n-epochs", "1", "--hidden-sizes", "8"]).config
    task = make_task(config)
    for device in (None, "cpu"):

        def weights(*changes, device=device):
            envs = task.batched_train_env(8, device=device)
            trainer = trained(PPOTrainer(envs, config.ppo, total_timesteps=10_000, seed=SEED), 2)
            for n_envs in changes:
                assert trainer.replace_envs(task.batched_train_env(n_envs, device=device)) == ""
                trained(trainer, 2)
            return weights_of(trained(trainer, 4 - 2 * len(changes)))

        assert torch.equal(weights(8), weights())
        assert torch.equal(weights(12, 4), weights(12, 4))
        assert not torch.equal(weights(12, 4), weights())


def test_environments_without_a_state_begin_new_episodes_and_the_reason_is_told():
    trainer = trained(trainer_of(2, env=Unsaveable), 2)
    why = trainer.replace_envs(SerialEnv([Unsaveable] * 3))
    assert "pickles only its constructor's arguments" in why
    trained(trainer, 1)
    # Other seeds than at the start, where they would play the same episodes: 3 + 32 steps, plus i.
    assert seen_in_next_step(trainer) == [[35 + i, 9] for i in range(3)]


def test_a_vector_environment_of_somebody_else_begins_new_episodes():
    trainer = trained(trainer_of(2), 1)
    theirs = SyncVectorEnv([Walk] * 3, autoreset_mode=AutoresetMode.SAME_STEP)
    assert "SyncVectorEnv has no continue_from()" in trainer.replace_envs(theirs)
    assert trained(trainer, 1).global_step == 16 + 24
    assert trainer.replace_envs(SerialEnv([Walk] * 2)) != ""


def test_environments_may_change_before_the_first_rollout():
    trainer = trainer_of(2)
    trainer.replace_envs(SerialEnv([Walk] * 3))
    assert torch.equal(weights_of(trained(trainer, 2)), weights_of(trained(trainer_of(3), 2)))


def test_the_trainer_closes_the_environments_that_it_made_and_no_others():
    with PPOTrainer([Walk] * 2, config_of(), total_timesteps=1_000) as trainer:
        made = trainer._envs
        mine, theirs = SerialEnv([Walk] * 3), SerialEnv([Walk] * 4)
        trainer.replace_envs(mine)
        assert made.closed
        trainer.replace_envs(theirs)
        assert not mine.closed
        trainer.replace_envs([Walk] * 2)
        made = trainer._envs
    assert made.closed
    assert not theirs.closed
    assert isinstance(trainer, ChangesEnvs)


def test_environments_that_do_not_fit_leave_the_trainer_as_it_was():
    trainer, other = (trained(trainer_of(3), 2) for _ in range(2))

    class Wider(Walk):
        observation_space = spaces.Box(-99, 99, (4,))

    for envs, sentence in (
        (SerialEnv([Walk]), "1 environments are too few for a minibatch of 12: .* 2 is the nearest number that does"),
        (SerialEnv([Wider] * 3), "observations"),
        ([], "env_fns must hold at least one"),
    ):
        with pytest.raises(UserError, match=sentence):
            trainer.replace_envs(envs)
    with pytest.raises(EnvFailedError, match="no licence"):
        trainer.replace_envs([Walk, Walk, Walk, broken])
    assert torch.equal(weights_of(trained(trainer, 2)), weights_of(trained(other, 2)))


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "not noticed yet"])
def test_episodes_of_a_lost_worker_are_reported_before_environments_are_replaced(is_noticed):
    with ParallelEnv([Walk] * 4, num_workers=2, on_worker_failure="restart") as envs:
        trainer = trained(PPOTrainer(envs, config_of(), total_timesteps=1_000, seed=SEED), 1)
        lost = psutil.Process(envs.worker_pids[1])
        lost.kill()
        wait_until(lambda: is_gone(lost))
        if is_noticed:
            envs.get_states()
        with SerialEnv([Walk] * 3) as later:
            with pytest.raises(RescaleLater):
                trainer.replace_envs(later)
            # Environments 0 and 1 end theirs after 13 steps, 2 and 3 lost theirs in the ninth.
            assert trainer.train_episode_vectorized().episode_length == (13 + 13 + 9 + 9) / 4
            assert trainer.replace_envs(later) == ""


def test_environments_are_not_replaced_in_the_middle_of_a_rollout():
    trainer = trainer_of(2)
    step = trainer._envs.step
    trainer._envs.step = lambda actions: (trainer.request_stop(), step(actions))[1]
    trainer.train(progress=False)
    assert trainer.mid_rollout
    with pytest.raises(UserError, match=r"between two iterations, but a rollout is under way; call train\(\) first"):
        trainer.replace_envs(SerialEnv([Walk] * 3))


def trained_in_changing_numbers(ranks: Any, numbers: list[int]) -> tuple[str, int]:
    """Trains one iteration in each of these numbers of environments; what it ends with, and after which step."""
    with tasks.trainer_of(
        ranks, "masked", n_envs=numbers[0], minibatch_size=16, timesteps=tasks.N_STEPS * sum(numbers)
    ) as trainer:
        trainer.train_episode_vectorized()
        for n_envs in numbers[1:]:
            rows = slice(None) if ranks is None else rows_of(ranks.rank, ranks.size, n_envs)
            later = ParallelEnv(([tasks.TASKS["masked"][0]] * n_envs)[rows], num_workers=0, copy=False)
            before = trainer._envs
            assert trainer.replace_envs(later) == ""
            before.close()
            trainer.train_episode_vectorized()
        return tasks.hash_of(trainer), trainer.global_step


@pytest.mark.long
def test_ranks_learn_what_one_process_learns_in_changing_numbers_of_environments(server: RankServer):
    numbers = [4, 9, 3, 12]
    (alone,) = server.values(trained_in_changing_numbers, 0, numbers)
    assert alone[1] == tasks.N_STEPS * sum(numbers)
    for size in (1, 2, 3):
        assert server.values(trained_in_changing_numbers, size, numbers) == [alone] * size

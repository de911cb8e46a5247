"""Training in vector environments of other libraries: every autoreset mode, any kind of arrays, exact resumption."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, SyncVectorEnv, VectorEnv, VectorWrapper
from gymnasium.vector.utils import batch_space

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv

N, T = 3, 10
SAME, NEXT, DISABLED = AutoresetMode.SAME_STEP, AutoresetMode.NEXT_STEP, AutoresetMode.DISABLED


class Drift(gymnasium.Env):
    """A seeded random walk with terminations and truncations; `seen` makes an observation of two numbers."""

    observation_space = spaces.Box(-99, 99, (2,))
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x, self.t = self.np_random.normal(size=2), 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        self.x += self.np_random.normal(size=2) + 0.2 * (action - 0.5)
        return self.seen(), -float(abs(self.x[1])), bool(abs(self.x[0]) > 3), self.t >= 7, {"t": self.t}

    def seen(self):
        return self.x.astype(np.float32)


class InParts(Drift):
    observation_space = spaces.Dict(x=spaces.Box(-99, 99, (2,)), is_late=spaces.Discrete(2))

    def seen(self):
        return {"x": self.x.astype(np.float32), "is_late": np.int64(self.t > 3)}


def trainer_of(envs, *, n_rollouts=4, n_steps=T, **settings):
    config = PPOConfig(n_steps=n_steps, minibatch_size=n_steps, n_epochs=2, hidden_sizes=(8,), **settings)
    return PPOTrainer(envs, config, total_timesteps=n_rollouts * n_steps * envs.num_envs, seed=3)


def trained(envs, **settings):
    trainer = trainer_of(envs, **settings)
    trainer.train(progress=False)
    envs.close()
    assert trainer.global_step == 4 * T * envs.num_envs
    return weights_of(trainer)


def weights_of(trainer):
    return torch.cat([parameter.detach().flatten() for parameter in trainer.policy.network.parameters()])


@pytest.mark.parametrize("env", [Drift, InParts])
def test_disabled_autoreset_gives_the_weights_of_same_step(env):
    expected = trained(SerialEnv([env] * N))
    assert torch.equal(trained(SyncVectorEnv([env] * N, autoreset_mode=SAME)), expected)
    assert torch.equal(trained(SyncVectorEnv([env] * N, autoreset_mode=DISABLED)), expected)
    assert torch.equal(trained(SerialEnv([env] * N, autoreset_mode=DISABLED, copy=False)), expected)


class Overwriting(VectorWrapper):
    """Its reset() clears the flags and rewards that its last step() returned."""

    def step(self, actions):
        observations, *self.of_step, infos = self.env.step(actions)
        return observations, *self.of_step, infos

    def reset(self, *, seed=None, options=None):
        for array in self.of_step if options else ():
            array[:] = 0
        return self.env.reset(seed=seed, options=options)


def test_a_reset_that_writes_into_the_arrays_of_the_step_loses_no_ends():
    envs = SyncVectorEnv([Drift] * N, autoreset_mode=DISABLED)
    assert torch.equal(trained(Overwriting(envs)), trained(SerialEnv([Drift] * N)))


@pytest.mark.parametrize("settings", [{"normalize_obs": False}, {"normalize_update": "rollout"}], ids=str)
def test_a_single_environment_learns_the_same_in_every_mode(settings):
    expected = trained(SerialEnv([Drift]), **settings)
    for mode in (NEXT, DISABLED):
        assert torch.equal(trained(SerialEnv([Drift], autoreset_mode=mode), **settings), expected)


@pytest.mark.parametrize("env", [Drift, InParts])
def test_next_step_gives_the_same_weights_whoever_steps(env):
    expected = trained(SyncVectorEnv([env] * N))  # NEXT_STEP is Gymnasium's default
    assert torch.equal(trained(SerialEnv([env] * N, autoreset_mode=NEXT, copy=False)), expected)


@pytest.mark.parametrize("mode", AutoresetMode)
def test_callbacks_receive_each_episode_once_with_its_last_info(mode):
    seen = []
    trainer = trainer_of(SyncVectorEnv([Drift] * N, autoreset_mode=mode), n_steps=5)
    trainer.train(after_episode=lambda trainer, episode: seen.append(episode), progress=False)
    assert len(seen) > 5
    assert all(episode.info["t"] == episode.length for episode in seen)


class Stopping(VectorWrapper):
    """Requests a stop of `trainer` in a step; counts the steps."""

    def __init__(self, env, at):
        super().__init__(env)
        self.at, self.n, self.trainer = at, 0, None

    def step(self, actions):
        self.n += 1
        if self.n == self.at:
            self.trainer.request_stop()
        return super().step(actions)

    def get_states(self):
        return self.env.get_states()


@pytest.mark.parametrize(
    "settings",
    [{}, {"normalize_update": "rollout"}, {"memory": "gru", "memory_size": 4}, {"normalize_obs": False}],
    ids=str,
)
def test_a_run_that_stops_at_any_step_resumes_to_the_bit(settings, tmp_path):
    def new():
        return SerialEnv([Drift] * N, autoreset_mode=NEXT)

    settings = {"n_steps": 5, **settings}
    whole = trainer_of(new(), **settings)
    whole.train(progress=False)
    expected = weights_of(whole)
    for at in range(6, 24, 1 if len(settings) == 1 else 4):  # among them steps between an end and its reset
        envs = Stopping(new(), at)
        first = envs.trainer = trainer_of(envs, **settings)
        first.train(progress=False)
        torch.save(first.state_dict(), tmp_path / "state.pt")
        second = trainer_of(new(), **settings)
        second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=False))
        second.train(progress=False)
        assert torch.equal(weights_of(second), expected), at


def test_environments_that_cannot_be_saved_begin_new_episodes():
    for at in range(14, 20):
        envs = Stopping(SyncVectorEnv([Drift] * N), at)
        first = envs.trainer = trainer_of(envs)
        first.train(progress=False)
        state = first.state_dict()
        assert state["environments"] is None
        second = trainer_of(SyncVectorEnv([Drift] * N))
        second.load_state_dict(state)
        assert torch.equal(weights_of(second), weights_of(first))
        second.train(progress=False)
        assert second.global_step >= 4 * T * N


def test_environments_are_replaced_with_their_pending_resets():
    mode = {"autoreset_mode": NEXT}
    plain, moved = trainer_of(SerialEnv([Drift] * N, **mode)), trainer_of(SerialEnv([Drift] * N, **mode))
    for k in range(4):
        plain.train_episode_vectorized()
        moved.train_episode_vectorized()
        assert moved.replace_envs(SerialEnv([Drift] * N, **mode)) == "", k
    assert torch.equal(weights_of(moved), weights_of(plain))
    moved.replace_envs(SerialEnv([Drift] * (N + 2), **mode))
    moved.train_episode_vectorized()
    assert moved.replace_envs(SerialEnv([Drift] * N)) == "only one of both resets in the step after an end (NEXT_STEP)"


def test_a_checkpoint_of_another_autoreset_mode_is_refused():
    saved = trainer_of(SerialEnv([Drift] * N, autoreset_mode=NEXT)).state_dict()
    with pytest.raises(UserError, match="autoreset_mode NEXT_STEP, but here it is SAME_STEP or DISABLED"):
        trainer_of(SerialEnv([Drift] * N)).load_state_dict(saved)


def test_every_transition_of_cartpole_counts_once():
    envs = gymnasium.make_vec("CartPole-v1", 8, vectorization_mode="vector_entry_point")
    assert envs.metadata["autoreset_mode"] == NEXT
    episodes = []
    trainer = trainer_of(envs, n_rollouts=20)
    trainer._sink = type("Sink", (), {"write": lambda self, metrics, ended: episodes.extend(ended)})()
    trainer.train(progress=False)
    assert len(episodes) > 40
    assert all(episode.episode_return == episode.length for episode in episodes)  # a reward of 1 per transition


class WithDlpack:
    """An array that can only be read by DLPack."""

    def __init__(self, array):
        self._array = np.array(array)

    def __dlpack__(self, **options):
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self._array.__dlpack_device__()


class WithArray:
    """An array that can only be read by __array__, and never be written to, as those of JAX."""

    def __init__(self, array):
        self._array = np.array(array)
        self._array.flags.writeable = False

    def __array__(self, dtype=None, copy=None):
        return self._array if dtype is None else self._array.astype(dtype)


@pytest.mark.parametrize("kind", [WithDlpack, WithArray])
@pytest.mark.parametrize("mode", AutoresetMode)
def test_arrays_of_other_libraries_are_read(kind, mode):
    class Foreign(VectorWrapper):
        def reset(self, **options):
            observations, infos = self.env.reset(**options)
            return kind(observations), infos

        def step(self, actions):
            *arrays, infos = self.env.step(actions)
            return *map(kind, arrays), infos

    def envs():
        return SyncVectorEnv([Drift] * N, autoreset_mode=mode)

    assert torch.equal(trained(Foreign(envs())), trained(envs()))


class Scripted(VectorEnv):
    """Two environments of one number; `change` edits each result of a step, (observations, ..., infos)."""

    def __init__(self, mode, change, reset=None):
        self.num_envs, self.metadata = 2, {"autoreset_mode": mode}
        self.single_observation_space, self.single_action_space = spaces.Box(-9, 9, (1,)), spaces.Discrete(2)
        self.observation_space = batch_space(self.single_observation_space, 2)
        self.action_space = batch_space(self.single_action_space, 2)
        self._change, self._reset, self.t = change, reset, 0

    def reset(self, *, seed=None, options=None):
        if self._reset is not None and options is not None:
            return self._reset()
        return np.zeros((2, 1), np.float32), {}

    def step(self, actions):
        self.t += 1
        none = np.zeros(2, bool)
        return self._change(self.t, [np.zeros((2, 1), np.float32), np.ones(2), none, none, {}])


def changed(**parts):
    names = ("observations", "rewards", "terminated", "truncated", "infos")
    return lambda t, result: tuple(parts.get(name, each) for name, each in zip(names, result, strict=True))


SEEN = np.zeros((2, 1), np.float32)
FIRST, BOTH = np.array([True, False]), np.array([True, True])


@pytest.mark.parametrize(
    ("envs", "sentence"),
    [
        (Scripted(None, changed()), r"must declare how it resets, in metadata\[.autoreset_mode.\], but has None"),
        (Scripted("Sometimes", changed()), "has Sometimes; set it to gymnasium.vector.AutoresetMode.SAME_STEP"),
        (Scripted(SAME, changed(observations=np.zeros((2, 3)))), r"must be float32 \(2, 1\), but got float64 \(2, 3\)"),
        (Scripted(SAME, changed(observations=np.array([["a"], ["b"]]))), r"float32 \(2, 1\), but got <U1 \(2, 1\)"),
        (Scripted(SAME, changed(observations={"x": 1})), r"must be float32 \(2, 1\), but got object \(\)"),
        (Scripted(SAME, changed(rewards=1.0)), r"rewards must be 2 numbers in an array, but got float64 \(\)"),
        (Scripted(SAME, changed(terminated=np.zeros(2))), r"terminated must be 2 bools in an array, but got float64"),
        (Scripted(SAME, changed(infos=[{}, {}])), "infos must be a dict, but got a list of 2"),
        (Scripted(SAME, lambda t, result: tuple(result[:4])), "must be .*, but got a tuple of 4; return all five"),
        (Scripted(SAME, changed(truncated=FIRST)), "but got none when environment 0 was truncated"),
        (
            Scripted(SAME, changed(truncated=FIRST, infos={"final_observation": [0, 0]})),
            'under the name "final_observation" of Gymnasium before 1.0 when environment 0',
        ),
        (Scripted(NEXT, changed(terminated=FIRST)), "environment 0 ended again in the step that only resets it"),
        (Scripted(NEXT, changed(terminated=FIRST, infos={"final_obs": 0})), "have final_obs, as in SAME_STEP"),
        (
            Scripted(DISABLED, changed(terminated=FIRST), reset=lambda: (np.ones((2, 1), np.float32), {})),
            r'outside options\["reset_mask"\], \[True, False\], but got others; reset only',
        ),
        (
            Scripted(DISABLED, changed(terminated=FIRST, observations=SEEN), reset=lambda: (SEEN.__iadd__(1), {})),
            r'outside options\["reset_mask"\], \[True, False\], but got others; reset only',
        ),
        (
            Scripted(DISABLED, changed(terminated=FIRST), reset=lambda: (np.ones((1, 1), np.float32), {})),
            r"the observations of reset\(\) must be float32 \(2, 1\), but got float32 \(1, 1\)",
        ),
        (Scripted(DISABLED, changed(terminated=BOTH), reset=lambda: np.ones((2, 1))), r"must be \(observations, infos"),
    ],
)
def test_results_that_cannot_be_used_are_named_in_one_sentence(envs, sentence):
    with pytest.raises(UserError, match=sentence) as caught:
        trainer_of(envs).train(progress=False)
    assert "\n" not in str(caught.value)


def test_a_reward_in_a_step_that_only_resets_is_left_out_and_warned_of_once():
    def ends_in_every_second_step(t, result):
        result[2] = np.array([t % 2 == 1, False])
        return tuple(result)

    trainer = trainer_of(Scripted(NEXT, ends_in_every_second_step), n_rollouts=2)
    with pytest.warns(UserWarning, match="gave environment 0 the reward 1 in a step that only resets it") as warned:
        trainer.train(progress=False)
    assert len(warned) == 1
    assert trainer._collector.episodes.recent_mean_return() == 1.0


def test_numbers_of_another_type_are_converted():
    exact = trained(Scripted(SAME, changed()))
    for parts in ({"observations": np.zeros((2, 1))}, {"rewards": np.ones(2, np.int32)}, {"rewards": [1, 1]}):
        assert torch.equal(trained(Scripted(SAME, changed(**parts))), exact)


def test_a_class_that_is_both_a_vector_and_a_single_environment_is_a_vector_environment():
    class Both(Scripted, gymnasium.Env):  # as those of EnvPool
        pass

    assert trained(Both(NEXT, changed())).isfinite().all()


@pytest.mark.slow
def test_workers_give_the_weights_of_one_process_with_next_step():
    env_class = Drift  # by value, because workers cannot import this file

    def make():
        return env_class()

    expected = trained(SerialEnv([make] * N, autoreset_mode=NEXT))
    assert torch.equal(trained(ParallelEnv([make] * N, num_workers=2, autoreset_mode=NEXT, copy=False)), expected)

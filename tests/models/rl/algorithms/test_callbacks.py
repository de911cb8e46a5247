"""Callbacks are called in order, reach the environments, and continue from a checkpoint to the bit."""

import io

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.models.rl.algorithms.callbacks import MOMENTS, CallbackFailed
from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
from ml_pipeline.models.rl.algorithms.trainer import Every
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import hash_of

CONFIG = PPOConfig(n_steps=8, minibatch_size=16, n_epochs=2, hidden_sizes=(8,))
N_ENVS, N_ITERATIONS = 4, 6


class Walk(gymnasium.Env):
    """A random walk of 3 to 6 steps that pays `gain` times the action; its last info has the number of its steps."""

    observation_space = spaces.Box(-9, 9, (2,))
    action_space = spaces.Discrete(2)
    gain = 1.0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(3, 7))
        return self._seen(), {}

    def step(self, action):
        self.t += 1
        over = self.t == self.end
        info = {"worth": 100.0 + self.t, "by": {"steps": self.t}, "path": np.arange(2), "self": self} if over else {}
        return self._seen(), self.gain * float(action), over, False, info

    def gained(self, times):
        return self.gain * times

    def _seen(self):
        return self.np_random.normal(size=2).clip(-9, 9).astype(np.float32)

    def get_plain_state(self):
        return {"at": [self.t, self.end], "gain": self.gain, "generator": self.np_random}

    def set_plain_state(self, state):
        (self.t, self.end), self.gain, self.np_random = state["at"], state["gain"], state["generator"]


class Curriculum:
    """Raises the gain with the number of episodes, and lowers the learning rate."""

    def __init__(self):
        self.episodes, self.gain, self.worths = 0, 1.0, np.zeros(3)

    def before_rollout(self, trainer):
        trainer.envs.set_attr("gain", self.gain)
        return {"own/gain": self.gain}

    def after_episode(self, trainer, episode):
        self.episodes += 1
        self.worths[self.episodes % 3] = episode.info["worth"]
        return {"own/worth": episode.info["worth"]}

    def after_iteration(self, trainer, statistics):
        self.gain = 1.0 + sum(trainer.envs.call("gained", 0.01)) + self.episodes / 64
        trainer.change(learning_rate=3e-4 / (1 + self.episodes), ent_coef=0.001 * self.episodes)

    def state_dict(self):
        return {"episodes": self.episodes, "gain": self.gain, "worths": self.worths}

    def load_state_dict(self, state):
        self.episodes, self.gain, self.worths = state["episodes"], state["gain"], state["worths"]


class Recorder:
    def __init__(self):
        self.metrics = []

    def write(self, metrics, episodes):
        self.metrics.append(metrics)

    def close(self):
        pass


def trainer_for(envs=None, config=CONFIG, **further):
    envs = SerialEnv([Walk] * N_ENVS) if envs is None else envs
    return PPOTrainer(envs, config, total_timesteps=N_ENVS * 8 * N_ITERATIONS, **further)


def outcome(trainer, curriculum):
    return hash_of(trainer), curriculum.episodes, curriculum.gain, curriculum.worths.tolist(), trainer.config.ent_coef


def uninterrupted():
    trainer, curriculum = trainer_for(), Curriculum()
    trainer.train(callbacks=[curriculum])
    return outcome(trainer, curriculum)


def through_a_file(state):
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_the_moments_come_in_order_and_an_object_comes_before_functions():
    told = []

    def recording(name, moment):
        return lambda trainer, *given: told.append((name, moment, trainer.iteration, len(given)))

    observer = type("Observer", (), {m: staticmethod(recording("object", m)) for m in MOMENTS})()
    trainer = trainer_for()
    trainer.train(
        callbacks=[observer],
        evaluate=Every(4, lambda trainer: {"eval/score": 1.0}),
        **{moment: recording("function", moment) for moment in MOMENTS},
    )
    n_episodes = [sum(each[:3] == ("object", "after_episode", k) for each in told) for k in range(N_ITERATIONS)]
    assert min(n_episodes) > 0
    expected = [
        (who, moment, k + moment.endswith(("iteration", "evaluation")), "before_rollout after_rollout".find(moment) < 0)
        for k in range(N_ITERATIONS)
        for moment, times in zip(MOMENTS, (1, n_episodes[k], 1, 1, k in (3, 5)), strict=True)
        for _ in range(times)
        for who in ("object", "function")
    ]
    assert told == expected


def test_episodes_have_their_return_length_environment_and_last_info():
    seen, sink = [], Recorder()
    trainer = trainer_for(sink=sink)
    trainer.train(after_episode=lambda trainer, episode: seen.append(episode))
    for episode in seen:
        assert episode.info["worth"] == 100.0 + episode.length
        assert episode.info["by"] == {"steps": episode.length}
        assert episode.info["path"].tolist() == [0, 1]
        assert "self" not in episode.info  # no plain data
    assert [each.global_step for each in seen] == sorted(each.global_step for each in seen)
    assert len(seen) == sum(each["rollout/n_completed_episodes"] for each in sink.metrics)
    by_env = {}
    for episode in seen:
        by_env[episode.env_index] = by_env.get(episode.env_index, 0) + episode.length
    assert all(0 <= N_ITERATIONS * 8 - steps < 6 for steps in by_env.values())


def test_returned_numbers_are_metrics_and_those_of_episodes_are_means():
    sink, lengths = Recorder(), []
    trainer_for(sink=sink).train(
        before_rollout=lambda trainer: {"own/before": 1},
        after_episode=lambda trainer, episode: {"own/length": episode.length},
        after_rollout=lambda trainer: {"own/at": trainer.global_step},
        after_iteration=lambda trainer, statistics: lengths.append(statistics.episode_length),
        after_evaluation=lambda trainer, metrics: {"own/twice": 2 * metrics["eval/score"]},
        evaluate=Every(N_ITERATIONS, lambda trainer: {"eval/score": 4.0}),
    )
    assert [each["own/before"] for each in sink.metrics] == [1] * N_ITERATIONS
    assert [each["own/length"] for each in sink.metrics] == pytest.approx(lengths)
    assert [each["own/at"] for each in sink.metrics] == [32 * k for k in range(1, N_ITERATIONS + 1)]
    assert [each.get("own/twice") for each in sink.metrics] == [None] * (N_ITERATIONS - 1) + [8.0]


def test_infos_are_kept_only_for_a_callback_that_takes_them():
    trainer = trainer_for()
    trainer.train(after_iteration=lambda trainer, statistics: None)
    assert trainer._collector.episodes.infos is None
    assert "callbacks" not in trainer.state_dict()


def test_workers_change_neither_the_order_of_episodes_nor_what_is_learned():
    def run(n_workers):
        with ParallelEnv([Walk] * N_ENVS, num_workers=n_workers) as envs:
            trainer, curriculum, order = trainer_for(envs), Curriculum(), []
            trainer.train(callbacks=[curriculum], after_episode=lambda trainer, episode: order.append(episode[:4]))
            return outcome(trainer, curriculum), order

    alone, shared = run(0), run(2)
    assert alone == shared
    assert alone[0] == uninterrupted()


@pytest.mark.parametrize("stop_after", [32, 36, 64, 84])
def test_a_resumed_training_equals_the_uninterrupted_one(stop_after):
    trainer, curriculum = trainer_for(), Curriculum()
    step = trainer._envs.step

    def counted(actions):
        if trainer.global_step + N_ENVS == stop_after:
            trainer.request_stop()
        return step(actions)

    trainer._envs.step = counted
    trainer.train(callbacks=[curriculum])
    assert trainer.global_step == stop_after
    state = through_a_file(trainer.state_dict())
    trainer, curriculum = trainer_for(), Curriculum()
    trainer.load_state_dict(state)
    assert trainer.state_dict()["callbacks"] == state["callbacks"]
    sink = trainer._sink = Recorder()
    trainer.train(callbacks=[curriculum])
    assert outcome(trainer, curriculum) == uninterrupted()
    assert all("own/gain" in each for each in sink.metrics)


def test_a_state_of_each_iteration_goes_on_to_the_same_end():
    states = []
    trainer_for().train(callbacks=[Curriculum()], save=Every(2, lambda trainer: states.append(trainer.state_dict())))
    for state in states:
        trainer, curriculum = trainer_for(), Curriculum()
        trainer.load_state_dict(through_a_file(state))
        trainer.train(callbacks=[curriculum])
        assert outcome(trainer, curriculum) == (uninterrupted() if curriculum.episodes else None)


def trained_by(ranks, n_ranks_before, state):
    config = PPOConfig(**{**vars(CONFIG), "normalize_update": "rollout"})
    with PPOTrainer([Walk] * N_ENVS, config, total_timesteps=N_ENVS * 8 * N_ITERATIONS, ranks=ranks) as trainer:
        curriculum, order = Curriculum(), []
        if state is not None:
            trainer.load_state_dict(state)
        each = range(N_ENVS)

        def own(trainer):
            trainer.envs.set_attr("mark", [10 * i for i in each])
            assert trainer.envs.get_attr("mark") == tuple(10 * i for i in each)

        trainer.train(
            callbacks=[curriculum],
            before_rollout=own,
            after_episode=lambda trainer, episode: order.append(tuple(episode[:4])),
            after_rollout=lambda trainer: trainer.request_stop() if trainer.iteration == n_ranks_before else None,
            progress=False,
        )
        saved = trainer.state_dict()
        return outcome(trainer, curriculum), order, saved


def test_ranks_have_the_callbacks_of_one_process(server: RankServer):
    ((alone, order, _),) = server.values(trained_by, 0, None, None)
    for of_rank, order_of_rank, _ in server.values(trained_by, 2, None, None):
        assert of_rank == alone
        assert order_of_rank == order
    stopped = server.values(trained_by, 2, 2, None)[0][2]
    for of_rank, _, _ in server.values(trained_by, 0, None, stopped):
        assert of_rank == alone


def test_a_change_holds_unless_the_trainer_has_a_value_of_its_own():
    trainer = trainer_for()
    trainer.train(after_rollout=lambda trainer: trainer.change(learning_rate=1e-5, target_kl=0.5))
    state = through_a_file(trainer.state_dict())
    same, other = trainer_for(), trainer_for(config=PPOConfig(**{**vars(CONFIG), "learning_rate": 0.5}))
    for each in (same, other):
        each.load_state_dict(state)
    assert (same.config.learning_rate, same.config.target_kl) == (1e-5, 0.5)
    assert (other.config.learning_rate, other.config.target_kl) == (0.5, 0.5)


def test_numbers_of_numpy_are_saved_as_plain_ones():
    trainer = trainer_for()
    trainer.train(
        before_rollout=lambda trainer: {"mine/number": np.float32(1.0)},
        after_rollout=lambda trainer: trainer.change(ent_coef=np.float64(0.01)),
        after_iteration=lambda trainer, statistics: trainer.request_stop(),
    )
    assert through_a_file(trainer.state_dict())["changed"]["ent_coef"] is not None


def test_a_change_is_used_by_the_next_update():
    rates = []
    trainer_for().train(
        after_rollout=lambda trainer: trainer.change(learning_rate=1e-3 * (1 + trainer.iteration)),
        after_iteration=lambda trainer, statistics: rates.append(statistics.update.learning_rate),
    )
    assert rates == pytest.approx([1e-3 * k for k in range(1, N_ITERATIONS + 1)])


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"gamma": 0.9}, "gamma cannot be changed during training. Known names: clip_range"),
        ({"learning_rat": 0.9}, 'learning_rat cannot be changed .* Did you mean "learning_rate"'),
        ({"learning_rate": -1.0}, "learning_rate must be"),
        ({"ent_coef": "0.1"}, "ent_coef must be a number, but got '0.1'"),
    ],
)
def test_a_change_that_is_impossible_changes_nothing(settings, message):
    trainer = trainer_for()
    with pytest.raises(UserError, match=message):
        trainer.change(vf_coef=0.1, **settings)
    assert trainer.config == CONFIG


class Failing:
    def __init__(self, moment):
        setattr(self, moment, self.fail)

    def fail(self, trainer, *given):
        if trainer.iteration >= 2:
            raise KeyError("worth")


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_callback_that_raises_ends_the_training_after_its_iteration(moment):
    trainer, curriculum, sink = trainer_for(), Curriculum(), Recorder()
    trainer._sink = sink
    evaluate = Every(1, lambda trainer: {"eval/score": 1.0})
    line = Failing.fail.__code__.co_firstlineno + 2
    where = rf"{moment} failed in line {line} of test_callbacks.py"
    message = rf"^The callback Failing.{where}: KeyError: 'worth'\. Correct it, then resume"
    with pytest.raises(CallbackFailed, match=message) as failure:
        trainer.train(callbacks=[Failing(moment), curriculum], evaluate=evaluate)
    assert isinstance(failure.value.__cause__, KeyError)
    n_done = 3 if moment in ("after_episode", "after_rollout") else 2
    assert trainer.iteration == n_done
    assert [each["time/iteration"] for each in sink.metrics] == list(range(1, n_done + 1))
    trainer.train(callbacks=[curriculum], evaluate=evaluate)  # the trainer is whole
    if moment != "before_rollout":  # called once more
        assert outcome(trainer, curriculum) == uninterrupted()


@pytest.mark.parametrize("returned", [1.0, "fee", [("own/fee", 1.0)], {"own/fee": "high"}, {1: 2.0}])
def test_only_numbers_by_name_are_metrics(returned):
    with pytest.raises(CallbackFailed, match=r"after_rollout=.*lambda.* must return None or a dict of numbers by name"):
        trainer_for().train(after_rollout=lambda trainer: returned)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"callbacks": Curriculum()}, r"callbacks must be a list of objects, such as \[Curriculum\(\)\], but got <"),
        ({"callbacks": [Curriculum]}, "must be an object with one of the methods .*, but got the class Curriculum"),
        ({"callbacks": [print]}, "must be an object with one of the methods .* pass functions by keyword"),
        ({"after_iteration": 3}, "after_iteration must be a function, but got 3"),
        ({"after_episodes": print}, 'no argument "after_episodes". Did you mean "after_episode"'),
    ],
)
def test_what_is_no_callback_is_said_in_a_sentence(arguments, message):
    with pytest.raises(UserError, match=message):
        trainer_for().train(**arguments)


def test_a_callback_with_a_state_must_be_passed_again():
    trainer = trainer_for()
    trainer.train(callbacks=[Curriculum(), Curriculum()])
    state = trainer.state_dict()
    trainer = trainer_for()
    trainer.load_state_dict(state)
    with pytest.raises(UserError, match="holds the state of the callback Curriculum 2, which is not here; pass it ag"):
        trainer.train(callbacks=[Curriculum()])
    assert trainer.state_dict()["callbacks"] == state["callbacks"]


def test_a_state_must_be_plain_data():
    curriculum = Curriculum()
    curriculum.state_dict = lambda: {"trainer": curriculum}
    trainer = trainer_for()
    trainer.train(callbacks=[curriculum])
    with pytest.raises(CallbackFailed, match=r"Curriculum.state_dict must return numbers, .* but holds a Curriculum"):
        trainer.state_dict()


def test_environments_without_attributes_are_said_in_a_sentence():
    envs = SerialEnv([Walk] * N_ENVS)
    envs.set_attr = None
    trainer = trainer_for(envs)
    with pytest.raises(CallbackFailed, match=r"SerialEnv has no set_attr\(\); train in functions that make one"):
        trainer.train(callbacks=[Curriculum()])

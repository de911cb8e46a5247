"""Playing a trained policy: the same episodes as its evaluation, and every frame of them."""

import json

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces
from PIL import Image, ImageSequence

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained import enjoy
from ml_pipeline.runs.trained.configs import EnjoyConfig, parse_enjoy
from ml_pipeline.runs.trained.enjoy import play

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]
SMALL += ["--iterations", "2", "--vec-env", "serial"]


class Walk(gymnasium.Env):
    """Ends at a random step; its frames are as bright as steps were taken."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(3)

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.end = 0, int(self.np_random.integers(3, 9))
        return self._observe(), {}

    def step(self, action):
        self.t += 1
        return self._observe(), float(action), self.t == self.end, False, {}

    def render(self):
        return np.full((20, 30, 3), 20 * self.t, np.uint8)

    def _observe(self):
        return self.np_random.uniform(-1, 1, 2).astype(np.float32)


class Unseen(Walk):
    metadata = {"render_modes": []}  # noqa: RUF012


class Stubborn(Walk):
    def __init__(self):
        super().__init__()


class Unpainted(Walk):
    def render(self):
        raise gymnasium.error.DependencyNotInstalled('easel is not installed, run `pip install "easel"`')


class Wider(Walk):
    observation_space = spaces.Box(-1, 1, (3,))


ENVS = (Walk, Unseen, Stubborn, Unpainted)


@pytest.fixture(autouse=True)
def registered():
    for env_class in ENVS:
        gymnasium.register(f"{env_class.__name__}-v0", env_class)
    yield
    for env_class in ENVS:
        del gymnasium.registry[f"{env_class.__name__}-v0"]


def _train(folder, *args):
    assert train_ppo.main([*SMALL, *args, "--checkpoint-dir", str(folder)]) == 0
    return folder


@pytest.fixture
def run(tmp_path):
    return _train(tmp_path / "run", "--env-id", "Walk-v0", "--eval-episodes", "5")


def _returns(result):
    return [episode.episode_return for episode in result.episodes]


def test_it_plays_the_first_episodes_of_the_evaluation_and_tells_each(run):
    told = []
    result = play(EnjoyConfig(run=run), on_episode=told.append)
    evaluation = json.loads((run / "evaluation.json").read_text())
    assert _returns(result) == evaluation["returns"][:3]
    assert [episode.length for episode in result.episodes] == evaluation["lengths"][:3]
    assert tuple(told) == result.episodes
    assert [episode.episode for episode in told] == [1, 2, 3]


def test_a_seed_plays_other_episodes_and_chance_depends_on_it_alone(run):
    likeliest = [play(EnjoyConfig(run=run, seed=seed, episodes=6)) for seed in (1, 1, 2)]
    assert likeliest[0].episodes == likeliest[1].episodes != likeliest[2].episodes
    drawn = [play(EnjoyConfig(run=run, seed=1, episodes=6, stochastic=True)) for _ in range(2)]
    assert drawn[0].episodes == drawn[1].episodes != likeliest[0].episodes


def test_memory_begins_anew_in_each_episode_also_where_actions_are_drawn(tmp_path, monkeypatch):
    folder = _train(tmp_path / "run", "--env-id", "Walk-v0", "--memory", "gru", "--memory-size", "4")
    began = []
    original = enjoy.load_policy

    def watched(path):
        policy = original(path)
        begin_episode = policy.act.begin_episode
        policy.act.begin_episode = lambda: (began.append(1), begin_episode())
        return policy

    monkeypatch.setattr(enjoy, "load_policy", watched)
    play(EnjoyConfig(run=folder, episodes=4, stochastic=True))
    assert len(began) == 4


def test_a_video_holds_the_frame_after_each_reset_and_each_step(run, tmp_path):
    result = play(EnjoyConfig(run=run, episodes=2, video=tmp_path / "out.gif"))
    expected = [20 * t for episode in result.episodes for t in range(episode.length + 1)]
    with Image.open(tmp_path / "out.gif") as gif:
        assert [image.convert("RGB").getpixel((5, 5))[0] for image in ImageSequence.Iterator(gif)] == expected
        assert gif.info["duration"] == 50
    assert result.n_frames == len(expected)


def test_ctrl_c_ends_it_and_the_video_keeps_what_it_has(run, tmp_path):
    def interrupt(played):
        if played.episode == 2:
            raise KeyboardInterrupt

    result = play(EnjoyConfig(run=run, episodes=9, video=tmp_path / "out.gif"), on_episode=interrupt)
    assert type(result.interrupted) is KeyboardInterrupt
    with Image.open(tmp_path / "out.gif") as gif:
        assert gif.n_frames == result.n_frames == sum(episode.length + 1 for episode in result.episodes)


@pytest.mark.slow
def test_a_market_is_passed_through_once_and_drawn_now_and_then(tmp_path, monkeypatch):
    folder = _train(tmp_path / "run")
    monkeypatch.setattr(enjoy, "_MARKET_FRAMES", 2)
    result = play(EnjoyConfig(run=folder, video=tmp_path / "out.gif"))
    (episode,) = result.episodes
    report = json.loads((folder / "evaluation.json").read_text())
    assert episode.length == report["n_bars"] - 1
    assert episode.episode_return == pytest.approx(report["agent"]["return"], rel=1e-5)
    assert result.n_frames == 3  # the first bar, one in the middle, the last
    with pytest.raises(UserError, match="A market cannot be shown in a window; record it instead"):
        play(EnjoyConfig(run=folder, render="human"))


@pytest.mark.parametrize(
    ("env_id", "sentence"),
    [
        ("Unseen-v0", 'Unseen-v0 cannot be rendered as "rgb_array": its render modes are none.'),
        ("Stubborn-v0", 'Stubborn-v0 cannot be rendered as "rgb_array": .* unexpected keyword argument'),
        ("Unpainted-v0", "Unpainted-v0 cannot be rendered: easel is not installed, run"),
    ],
)
def test_an_environment_that_cannot_be_rendered_is_one_sentence(env_id, sentence, tmp_path):
    folder = _train(tmp_path / "run", "--env-id", env_id)
    with pytest.raises(UserError, match=sentence) as told:
        play(EnjoyConfig(run=folder, video=tmp_path / "out.gif"))
    assert "\n" not in str(told.value)
    assert not (tmp_path / "out.gif").exists()
    assert len(play(EnjoyConfig(run=folder)).episodes) == 3


def test_an_environment_that_is_another_now_is_one_sentence(run):
    gymnasium.registry["Walk-v0"].entry_point = Wider
    with pytest.raises(
        UserError, match=r"The policy was made for observations Box.*\(2,\), float32\), but those of the"
    ):
        play(EnjoyConfig(run=run))


def test_settings_come_from_the_command_line():
    config = parse_enjoy(["run", "--episodes", "5", "--video", "out.mp4", "--stochastic"], prog="enjoy")
    assert (str(config.run), config.episodes, str(config.video), config.stochastic) == ("run", 5, "out.mp4", True)


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["run", "--episodes", "0"], "episodes must be a whole number of at least 1, but got 0"),
        (["run", "--seed", "-1"], "seed must be a whole number of at least 0"),
        (["run", "--render", "humna"], "--render must be human or none"),
        ([], "RUN is missing"),
        (["run", "--render", "human", "--video", "out.gif"], "use one of them"),
    ],
)
def test_a_bad_flag_is_one_sentence(args, sentence):
    with pytest.raises(UserError, match=sentence):
        parse_enjoy(args, prog="enjoy")

"""Nothing of a run folder runs code unless this user's own run wrote it, and nothing of an own run is lost."""

import contextlib
import hashlib
import os
import pickle
import shutil
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.models.rl.core.stepping.state import PickledState
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs import checkpoint
from ml_pipeline.runs.checkpoint import PICKLES, NotOpened, join_pickles, load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime import user_key

PPO = PPOConfig(n_steps=32, minibatch_size=64, n_epochs=2, hidden_sizes=(8,))
N_ITERATIONS = 6


class Walk(gymnasium.Env):
    """Its state can only be pickled, and matters: episodes are longer than a rollout."""

    observation_space = gymnasium.spaces.Box(-9, 9, (2,))
    action_space = gymnasium.spaces.Discrete(3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.t, self.position = 0, self.np_random.normal(size=2).astype(np.float32)
        return self.position.copy(), {}

    def step(self, action):
        self.t += 1
        self.position = np.clip(self.position + self.np_random.normal(size=2) * 0.1, -9, 9).astype(np.float32)
        return self.position.copy(), float(self.position[0] * action), self.t == 50, False, {}


@pytest.fixture(scope="module", autouse=True)
def registered():
    gymnasium.register("Walk-v0", Walk)
    yield
    del gymnasium.registry["Walk-v0"]


def use_keys_in(folder, monkeypatch):
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(folder))


@pytest.fixture(autouse=True)
def key(tmp_path, monkeypatch):
    use_keys_in(tmp_path / "state", monkeypatch)


class Heard(RunListener):
    def __init__(self):
        self.sentences = []

    def say(self, sentence):
        self.sentences.append(sentence)

    def about(self, words):
        return [sentence for sentence in self.sentences if words in sentence]


class StopAfter:
    """A sink that asks for a stop after an iteration."""

    def __init__(self, stop, iteration):
        self._stop, self._iteration = stop, iteration

    def write(self, metrics, episodes):
        if metrics["time/iteration"] == self._iteration:
            self._stop.request()

    def close(self):
        pass


def task():
    return GymTask("Walk-v0", eval_episodes=1, seed=0)


def train(folder, *, stop_after=None, env_id="Walk-v0", **options):
    run = RunConfig(
        env_id=env_id,
        n_envs=2,
        vec_env="serial",
        iterations=N_ITERATIONS,
        eval_episodes=1,
        checkpoint_interval=1,
        eval_interval=2,
        checkpoint_dir=folder,
    )
    stop, heard = StopRequest(), Heard()
    sinks = [StopAfter(stop, stop_after)] if stop_after else []
    config = TrainConfig(run=run, ppo=PPO)
    Run(config, GymTask(env_id, eval_episodes=1, seed=0), sinks=sinks, stop=stop, listener=heard, **options).train()
    return heard


def resume(folder, name="latest.pt", *, trust=False, stopped=False):
    heard, stop = Heard(), StopRequest()
    if stopped:
        stop.request()  # it loads everything, and takes no step
    config = resumed_config(folder / name, {})
    options = {"checkpoint": folder / name, "trust_checkpoint": trust, "listener": heard, "stop": stop}
    Run(config, task(), **options).train()
    return heard


def weights(folder):
    network = load_checkpoint(folder / "latest.pt")["trainer"]["policy"]["network"]
    return torch.cat([weight.flatten() for weight in network.values()])


def pickles_of(folder, stem="*"):
    return sorted(folder.glob(f"environments-{stem}-*.pkl*"))


def as_by_somebody_else(monkeypatch, tmp_path):
    use_keys_in(tmp_path / "somebody else", monkeypatch)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The folder of a whole run, of a run that was stopped after iteration 3, and of the key that signed them."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        use_keys_in(folder / "state", patch)
        train(folder / "whole")
        train(folder / "stopped", stop_after=3)
    return folder


@pytest.fixture
def whole(runs):
    return weights(runs / "whole")


@pytest.fixture
def run(runs, tmp_path, key):
    """The folder of a run of this user that was stopped after iteration 3."""
    shutil.copytree(runs / "state", tmp_path / "state")
    return shutil.copytree(runs / "stopped", tmp_path / "run")


def test_an_own_run_goes_on_bit_for_bit_also_from_a_folder_that_was_moved(tmp_path, whole):
    assert train(tmp_path / "run", stop_after=3).about("signature") == []
    (tmp_path / "run").rename(tmp_path / "moved")
    assert resume(tmp_path / "moved").about("new episodes") == []
    assert torch.equal(weights(tmp_path / "moved"), whole)


def test_each_checkpoint_has_its_own_states_and_old_ones_are_removed(run, whole):
    assert len(pickles_of(run, "latest")) == len(pickles_of(run, "best")) == 1
    assert len(pickles_of(run)) == 2
    # best.pt is of iteration 2, latest.pt of 3: both end where the uninterrupted run does.
    assert resume(run, "best.pt").about("new episodes") == []
    assert torch.equal(weights(run), whole)


def test_a_checkpoint_holds_no_pickle(run, tmp_path):
    for name in ("latest.pt", "best.pt"):
        state = torch.load(run / name, weights_only=True)
        assert state["trainer"]["environments"] == [None, None]
    train(tmp_path / "plain", stop_after=3, env_id="CartPole-v1")
    assert pickles_of(tmp_path / "plain") == []
    saved = torch.load(tmp_path / "plain" / "latest.pt", weights_only=True)["trainer"]
    assert [set(state) for state in saved["environments"]] == [{"layers", "rest"}] * 2


def test_another_users_run_begins_new_episodes_and_says_so_unless_it_is_trusted(tmp_path, run, whole, monkeypatch):
    for name in ("strange", "trusted"):
        shutil.copytree(run, tmp_path / name)
    as_by_somebody_else(monkeypatch, tmp_path)
    (sentence,) = resume(tmp_path / "strange").about("start new episodes")
    assert "none of your runs on this machine signed it" in sentence
    assert sentence.endswith("if you trust its author, add --trust-checkpoint.")
    assert not torch.equal(weights(tmp_path / "strange"), whole)
    assert resume(tmp_path / "trusted", trust=True).about("new episodes") == []
    assert torch.equal(weights(tmp_path / "trusted"), whole)


def test_a_run_without_a_home_trains_unsigned_and_says_so_once(tmp_path, whole, monkeypatch):
    (tmp_path / "file").write_text("")
    for variable in ("XDG_STATE_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(variable, str(tmp_path / "file"))
    heard = train(tmp_path / "run", stop_after=3)
    (sentence,) = heard.about("without a signature")
    assert sentence.endswith("A resumed run loads them only with --trust-checkpoint.")
    assert resume(tmp_path / "run", trust=True).about("new episodes") == []
    assert torch.equal(weights(tmp_path / "run"), whole)


class Killed(BaseException):
    """As SIGKILL: nothing after it happens."""


@pytest.mark.parametrize("dies_in", ["write_pickles", "save_checkpoint", "remove_old_pickles"])
@pytest.mark.parametrize("before", [True, False])
def test_a_run_killed_between_the_files_goes_on_bit_for_bit(tmp_path, whole, monkeypatch, dies_in, before):
    original, calls = getattr(checkpoint, dies_in), []

    def dying(path, *args):
        calls.append(path.name)
        if calls.count("latest.pt") < 4:
            return original(path, *args)
        if not before:
            original(path, *args)
        raise Killed

    with monkeypatch.context() as patched:
        patched.setattr(checkpoint, dies_in, dying)
        with pytest.raises(Killed):
            train(tmp_path / "run")
    assert resume(tmp_path / "run").about("new episodes") == []
    assert torch.equal(weights(tmp_path / "run"), whole)
    assert len(pickles_of(tmp_path / "run", "latest")) == 1


# Attacks: a file that a pickle would write shows that code ran.


class Code:
    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return (Path.touch, (Path(self.path),))


@pytest.fixture
def attacked(tmp_path, run, monkeypatch):
    """A run folder that somebody else wrote, and the file that shows whether its code ran."""
    as_by_somebody_else(monkeypatch, tmp_path)
    return run, tmp_path / "code ran"


def _replace_pickles(folder, pickled, *, first=b"ml-pipeline pickled environments 2", signature=b"-"):
    """As an attacker who knows this program: checkpoint and file agree."""
    body = b"%d 0\n" % len(pickled) + pickled
    digest = hashlib.sha256(body).hexdigest()
    for name in ("latest", "best"):
        (old,) = pickles_of(folder, name)
        old.unlink()
        (folder / f"environments-{name}-{digest[:12]}.pkl").write_bytes(b"\n".join([first, signature, body]))
        state = torch.load(folder / f"{name}.pt", weights_only=True)
        state["trainer"]["pickled_environments"] = {"digest": digest}
        torch.save(state, folder / f"{name}.pt")


@pytest.mark.parametrize("name", ["latest.pt", "best.pt"])
def test_pickles_of_somebody_else_run_no_code(attacked, name):
    folder, ran = attacked
    stranger = user_key.sign(b"something else").encode()
    body = pickle.dumps(Code(ran))
    for i, signature in enumerate((b"-", b"", b"0" * 64, stranger)):
        copy = shutil.copytree(folder, folder.with_name(f"copy {i}"))
        _replace_pickles(copy, body, signature=signature)
        assert resume(copy, name).about("start new episodes")
        assert not ran.exists()
    _replace_pickles(folder, body)
    with pytest.raises(UserError, match="the state of environment 0: it cannot be restored"):
        resume(folder, name, trust=True)
    assert ran.exists()  # as the attack would, where it is let in


def test_a_file_that_changes_after_it_was_signed_is_not_opened(run, tmp_path):
    (path,) = pickles_of(run, "latest")
    ran = tmp_path / "code ran"
    first, signature, _ = path.read_bytes().split(b"\n", maxsplit=2)
    path.write_bytes(b"\n".join([first, signature, pickle.dumps(Code(ran))]))
    (sentence,) = resume(run).about("start new episodes")
    assert "is not the one that was saved with the checkpoint" in sentence
    assert not ran.exists()


def test_a_checkpoint_cannot_cut_signed_pickles_elsewhere(run):
    (path,) = pickles_of(run, "latest")
    sizes = [int(size) for size in path.read_bytes().split(b"\n")[2].split()]
    assert len(sizes) == 2
    state = torch.load(run / "latest.pt", weights_only=True)
    known = state["trainer"]["pickled_environments"]
    assert list(known) == ["digest"]
    known["sizes"] = [sizes[0] - 7, sizes[1] + 7]
    saved = checkpoint.join_pickles(state["trainer"], run, trusted=False)["environments"]
    assert [len(each) for each in saved] == sizes
    assert [each[-1:] for each in saved] == [pickle.STOP] * 2


def test_a_file_of_another_version_is_not_opened(attacked):
    folder, ran = attacked
    _replace_pickles(folder, pickle.dumps(Code(ran)), first=b"ml-pipeline pickled environments 1")
    (sentence,) = resume(folder, trust=True).about("start new episodes")
    assert "was written by another version" in sentence
    assert not ran.exists()


def test_saving_removes_no_file_of_the_user(run):
    (old,) = pickles_of(run, "latest")
    left = old.with_name(f"{old.name}.tmp")  # as of a run that was killed
    mine = [old.with_name(name) for name in ("environments-latest-mine.pkl.bak", f"{old.name}.bak")]
    for path in (left, *mine):
        path.touch()
    resume(run)
    assert [path.exists() for path in (old, left, *mine)] == [False, False, True, True]


def _fields(value, path=()):
    """Every place in a nested state."""
    yield path
    if isinstance(value, dict | list | tuple):
        for key, each in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _fields(each, (*path, key))


def _with(value, path, new):
    if not path:
        return new
    key, *rest = path
    if isinstance(value, dict):
        return {**value, key: _with(value[key], rest, new)}
    changed = list(value)
    changed[key] = _with(value[key], rest, new)
    return type(value)(changed)


@pytest.mark.parametrize("name", ["latest.pt", "best.pt"])
def test_code_in_any_field_of_a_checkpoint_does_not_run(attacked, name):
    folder, ran = attacked
    state = torch.load(folder / name, weights_only=True)
    for path in _fields(state):
        torch.save(_with(state, path, Code(ran)), folder / name)
        with pytest.raises(UserError, match="cannot be read as a checkpoint"):
            resumed_config(folder / name, {})
        assert not ran.exists(), path


def _about_environments(path):
    """Whether this is a place where a checkpoint kept pickles once, or names them now."""
    return path in {(), ("trainer",)} or any("environments" in str(key) for key in path)


@pytest.mark.parametrize("name", ["latest.pt", pytest.param("best.pt", marks=pytest.mark.long)])
@pytest.mark.parametrize("everywhere", [False, pytest.param(True, marks=pytest.mark.long)])
def test_bytes_and_tensors_of_a_checkpoint_are_never_taken_for_pickles(attacked, name, everywhere):
    folder, ran = attacked
    state = torch.load(folder / name, weights_only=True)
    pickled = pickle.dumps(Code(ran))
    for path in _fields(state):
        if path[:1] != ("config",) and len(path) < 4 and (everywhere or _about_environments(path)):
            for new in (torch.frombuffer(bytearray(pickled), dtype=torch.uint8), pickled):
                torch.save(_with(state, path, new), folder / name)
                with contextlib.suppress(Exception):  # whatever a value of another type breaks
                    resume(folder, name, stopped=True)
                assert not ran.exists(), path


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.unlink(), "is not in the checkpoint's folder"),
        (lambda path: path.write_bytes(b""), "cannot be read"),
        (lambda path: path.write_bytes(path.read_bytes()[:-1]), "is not the one that was saved"),
        (lambda path: (path.unlink(), path.mkdir()), "cannot be read"),
        (lambda path: path.write_bytes(os.urandom(999).replace(b"\n", b"")), "cannot be read"),
    ],
    ids=["gone", "empty", "cut short", "a folder", "rubbish"],
)
def test_a_damaged_file_of_states_costs_the_episodes_alone(run, damage, sentence):
    damage(pickles_of(run, "latest")[0])
    (said,) = resume(run).about("start new episodes")
    assert sentence in said
    assert load_checkpoint(run / "latest.pt")["trainer"]["iteration"] == N_ITERATIONS


@pytest.mark.parametrize("digest", ["../../x", "*" * 64, "", "0" * 63 + "/"])
def test_a_checkpoint_names_no_other_file(attacked, digest):
    folder, _ = attacked
    state = torch.load(folder / "latest.pt", weights_only=True)
    state["trainer"]["pickled_environments"]["digest"] = digest
    torch.save(state, folder / "latest.pt")
    assert resume(folder, trust=True).about("the checkpoint names no file with their states")


def test_a_pickled_state_is_never_read_from_a_checkpoint(tmp_path):
    torch.save({"state": PickledState(b"x")}, tmp_path / "state.pt")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "state.pt", weights_only=True)


@pytest.mark.timeout(30)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_the_pickles_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / f"environments-latest-{'0' * 12}.pkl")
    with pytest.raises(NotOpened, match=r"environments-latest-0+\.pkl cannot be read"):
        join_pickles({PICKLES: {"digest": "0" * 64}, "environments": [None]}, tmp_path, trusted=True)

"""A run folder stands for its best policy, and a damaged checkpoint is one sentence, whichever command opens it."""

import pickle
import shutil
from pathlib import Path

import pytest
import torch

from ml_pipeline import train_ppo
from ml_pipeline.config.errors import UserError
from ml_pipeline.monitoring.listener import RunListener
from ml_pipeline.runs.checkpoint import FORMAT
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.run import Run
from ml_pipeline.runs.stop import StopRequest
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.trained import export
from ml_pipeline.runs.trained.configs import EnjoyConfig, ExportConfig, parse_evaluation
from ml_pipeline.runs.trained.enjoy import play
from ml_pipeline.runs.trained.evaluate import evaluate_checkpoint
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.runs.trained.restore import find_policy
from ml_pipeline.trading.task import TradingTask

pytestmark = pytest.mark.long

SMALL = ["--n-envs", "2", "--n-steps", "32", "--minibatch-size", "32", "--hidden-sizes", "8", "--n-epochs", "1"]
SMALL += ["--iterations", "2", "--eval-interval", "1", "--vec-env", "serial", "--seed", "3"]
KINDS = {"CartPole-v1": ["--env-id", "CartPole-v1", "--eval-episodes", "1"], "trading": []}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folders = {kind: tmp_path_factory.mktemp("runs") / kind for kind in KINDS}
    for kind, flags in KINDS.items():
        assert train_ppo.main([*SMALL, *flags, "--checkpoint-dir", str(folders[kind])]) == 0
    return folders


@pytest.fixture(autouse=True)
def no_file_is_exported(monkeypatch):
    """Its proof takes seconds; the policy that would be exported was restored by then."""
    portable = type("Portable", (), {"input_names": (), "output_names": ()})
    monkeypatch.setattr(export, "export_policy", lambda policy, env, path, file_format: portable)


def resume(path):
    stop = StopRequest()
    stop.request()  # everything is loaded, and no step is taken
    config = resumed_config(path, {"iterations": 3})
    Run(config, make_task(config), checkpoint=path, stop=stop, listener=RunListener()).train()


OPENING = {
    "load_policy": load_policy,
    "enjoy": lambda path: play(EnjoyConfig(run=path, episodes=1)),
    "evaluate": lambda path: evaluate_checkpoint(parse_evaluation([str(path)], prog="evaluate")),
    "export": lambda path: export.export_checkpoint(ExportConfig(checkpoint=path, format="torch")),
    "resume": resume,
}


def test_a_folder_is_evaluated_and_exported_by_its_best_policy(runs, tmp_path):
    folder = shutil.copytree(runs["CartPole-v1"], tmp_path / "run")
    (folder / "evaluation.json").unlink()
    report = evaluate_checkpoint(parse_evaluation([str(folder)], prog="evaluate"))
    assert report.folder == folder
    assert (folder / "evaluation.json").is_file()
    exported = export.export_checkpoint(ExportConfig(checkpoint=folder))
    assert (exported.path, exported.checkpoint) == (folder / "best.onnx", folder / "best.pt")
    (folder / "best.pt").unlink()
    assert find_policy(folder) == folder / "latest.pt"
    assert evaluate_checkpoint(parse_evaluation([str(folder)], prog="evaluate")).folder == folder / "evaluation-latest"
    assert export.export_checkpoint(ExportConfig(checkpoint=folder)).path == folder / "latest.onnx"


@pytest.mark.parametrize("opened_by", OPENING)
@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:5000]), "cannot be read as a checkpoint"),
        (lambda path: path.write_bytes(b""), "cannot be read as a checkpoint"),
        (lambda path: path.unlink(), "There is no checkpoint"),
        (lambda path: (path.unlink(), path.mkdir()), r"has no best\.pt and no|is a folder"),
        (lambda path: torch.save({"format": FORMAT}, path), "is not a checkpoint of this program"),
        (
            lambda path: torch.save({"format": FORMAT, "version": 99}, path),
            "has checkpoint version 99",
        ),
        (lambda path: torch.save([1], path), "is not a checkpoint of this program"),
    ],
    ids=["cut short", "empty", "gone", "a folder", "no version", "another version", "a list"],
)
def test_a_file_that_is_no_checkpoint_is_one_sentence(runs, tmp_path, opened_by, damage, sentence):
    folder = shutil.copytree(runs["CartPole-v1"], tmp_path / "run")
    damage(folder / "latest.pt")
    before = _contents(folder)
    with pytest.raises(UserError, match=sentence) as told:
        OPENING[opened_by](folder / "latest.pt")
    assert "\n" not in str(told.value)
    assert _contents(folder) == before


class Code:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.mark.parametrize("opened_by", OPENING)
def test_no_command_runs_code_of_a_checkpoint_or_a_file_beside_it(runs, tmp_path, opened_by):
    folder, ran = shutil.copytree(runs["CartPole-v1"], tmp_path / "run"), tmp_path / "code ran"
    for name in ("environments.pkl", "environments-best-0123456789ab.pkl", "environments-latest-0123456789ab.pkl"):
        (folder / name).write_bytes(pickle.dumps(Code(ran)))
    (folder / "config.yaml").write_text(f"n_envs: !!python/object/apply:os.mkdir ['{ran}']\n")
    OPENING[opened_by](folder / "latest.pt")
    assert not ran.exists()
    state = torch.load(folder / "latest.pt", weights_only=True)
    torch.save({**state, "more": Code(ran)}, folder / "latest.pt")
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        OPENING[opened_by](folder / "latest.pt")
    assert not ran.exists()


def _places(value, path=()):
    """Every key and every tensor of a nested state."""
    if path:
        yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _places(each, (*path, key))


def _without(value, path):
    key, *rest = path
    if not rest:
        return {name: each for name, each in value.items() if name != key}
    return {**value, key: _without(value[key], rest)}


def _larger(value, path):
    key, *rest = path
    if rest:
        return {**value, key: _larger(value[key], rest)}
    value = {**value}
    if isinstance(value[key], torch.Tensor) and value[key].ndim:
        value[key] = torch.cat([value[key], value[key]])
    elif isinstance(value[key], list):
        value[key] = value[key] * 2
    return value


@pytest.fixture
def no_report_is_written(monkeypatch):
    """It takes seconds; the policy acts all the same."""
    monkeypatch.setattr(GymTask, "report", lambda task, act, folder: str(task.score(act)))
    monkeypatch.setattr(TradingTask, "evaluate", lambda task, act, *_, **__: {"table": str(task.score(act))})


@pytest.mark.usefixtures("no_report_is_written")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("opened_by", OPENING)
@pytest.mark.parametrize("damage", [_without, _larger], ids=["lacking", "larger"])
def test_a_checkpoint_that_lacks_something_or_has_other_shapes_is_one_sentence(runs, tmp_path, kind, opened_by, damage):
    folder = shutil.copytree(runs[kind], tmp_path / "run")
    state = torch.load(folder / "best.pt", weights_only=True)
    told = set()
    for path in _places(state):
        of_policy = path[0] == "trainer" and path[:2] != ("trainer", "environments")
        if len(path) > 1 and not (path[0] == "task" or (of_policy and kind != "trading")):
            continue
        copy = folder if opened_by != "resume" else shutil.copytree(folder, tmp_path / "-".join(map(str, path)))
        torch.save(damage(state, path), copy / "best.pt")
        before = _contents(copy)
        sentence = _told(OPENING[opened_by], copy / "best.pt")
        if sentence is not None:
            assert "\n" not in sentence, path
            assert len(sentence) < 700, path
            assert _contents(copy) == before, path
            told.add(path)
    if damage is _without:
        assert {("format",), ("version",), ("trainer",)} <= told


def _told(opened, path):
    try:
        opened(path)
    except UserError as error:
        return str(error)
    return None


def _contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}

"""The report of a Gymnasium run, in a run folder and elsewhere."""

import json
from dataclasses import replace

import pytest
from PIL import Image

from ml_pipeline.config.files import write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.models.rl.algorithms.evaluation import EvaluationResult
from ml_pipeline.runs.gym_task import result_sentence, write_gym_report
from ml_pipeline.runs.train_config import TrainConfig

RESULT = EvaluationResult(returns=(1.0, 3.0), lengths=(10, 1200))


@pytest.fixture(scope="module")
def undrawn_reports():
    """Here they are drawn."""


def _write_run(folder):
    config = TrainConfig()
    write_yaml(folder / "config.yaml", flatten(replace(config, run=replace(config.run, env_id="<Mine>-v0", n_envs=4))))
    lines = [
        {"time/global_step": 1000 * i, "time/learning_s": 0.5, "rollout/episode_return": i, "eval/score": 2.0 * i}
        for i in (1, 2)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines) + '{"time/glo')


def test_a_run_folder_gets_a_page_with_result_curve_and_settings(tmp_path):
    _write_run(tmp_path)
    write_gym_report(tmp_path, "<Mine>-v0", RESULT)
    with Image.open(tmp_path / "learning_curve.png") as picture:
        assert picture.width > 500
    page = (tmp_path / "report.html").read_text()
    assert "return 2.00 ± 1.00 over 2 episodes." in page
    assert (
        "2,000 environment steps in 1.0 s of training (2,000 steps/s). Best score of an evaluation (mean return): 4."
        in page
    )
    assert "<td>2</td><td>3</td><td>1,200</td>" in page  # episode, return, length
    assert "<td>n_envs</td><td>4</td><td>1</td>" in page  # setting, value, default
    assert "<td>hidden_sizes</td><td>64 64</td><td>64 64</td>" in page
    assert "fee_bps" not in page
    assert "data:image/png;base64," in page
    assert "<Mine>" not in page


def test_figures_are_as_before(tmp_path):
    write_gym_report(tmp_path, "Mine-v0", RESULT)
    assert json.loads((tmp_path / "evaluation.json").read_text()) == {
        "mean_return": 2.0, "std_return": 1.0, "returns": [1.0, 3.0], "lengths": [10, 1200],
    }  # fmt: skip


def test_elsewhere_the_page_has_the_result_alone(tmp_path):
    write_gym_report(tmp_path, "Mine-v0", RESULT)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["evaluation.json", "report.html"]
    page = (tmp_path / "report.html").read_text()
    assert "Settings" not in page
    assert "Training" not in page


def test_a_run_without_an_iteration_has_no_curve(tmp_path):
    _write_run(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    write_gym_report(tmp_path, "Mine-v0", RESULT)
    assert not (tmp_path / "learning_curve.png").exists()


def test_the_sentence_names_mean_and_deviation():
    assert result_sentence("Mine-v0", RESULT) == "Evaluation on a single Mine-v0: return 2.00 ± 1.00 over 2 episodes"


def test_random_actions_stand_beside_the_policy(tmp_path):
    random = EvaluationResult(returns=(0.5,), lengths=(7,))  # the second did not end in the steps that there were
    sentence = "return 2.00 ± 1.00 over 2 episodes; random actions: 0.50 ± 0.00"
    assert result_sentence("Mine-v0", RESULT, random).endswith(sentence)
    write_gym_report(tmp_path, "Mine-v0", RESULT, random)
    page = (tmp_path / "report.html").read_text()
    assert sentence in page
    assert "<td>1</td><td>1</td><td>10</td><td>0.5</td><td>7</td>" in page
    assert "<td>2</td><td>3</td><td>1,200</td><td>-</td><td>-</td>" in page
    assert json.loads((tmp_path / "evaluation.json").read_text())["random"]["mean_return"] == 0.5


def test_a_policy_that_does_not_beat_random_actions_is_warned_of():
    assert "Warning: the policy did not beat random actions" in result_sentence("Mine-v0", RESULT, RESULT)

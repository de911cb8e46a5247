"""The heading of a report names its run, seed and settings, and a command that makes the same settings."""

import shlex

import pytest

from ml_pipeline.config.files import read_settings, write_yaml
from ml_pipeline.config.settings import flatten
from ml_pipeline.reporting.html_page import write_html_page
from ml_pipeline.runs.report_heading import command_of, write_report_heading
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig


@pytest.mark.parametrize(
    "flags",
    [
        "",
        "--env-id CartPole-v1 --n-envs 8 --hidden-sizes 32 16 --seed 3 --normalize-obs --total-timesteps 4096",
        "--no-allow-short --fee-bps 7.5 --features rsi_14 ema_distance_20 --learning-rate 0.0001234567890123",
        '--env-id Taxi-v3 --env-kwargs {"is_rainy":true}',
    ],
)
def test_the_command_makes_the_same_settings(tmp_path, flags):
    config = _config_of(shlex.split(flags) if "{" not in flags else flags.split())
    write_yaml(tmp_path / "config.yaml", flatten(config))
    command = shlex.split(command_of(read_settings(tmp_path / "config.yaml", TrainConfig)))
    assert command[:2] == ["ml-pipeline", "train"]
    assert flatten(_config_of(command[2:])) == flatten(config)


def _config_of(argv):
    return parse_train_start(argv).config


def test_a_report_says_which_run_it_is_of(tmp_path):
    folder = tmp_path / "a<b"
    folder.mkdir()
    write_yaml(folder / "config.yaml", flatten(_config_of(["--env-id", "CartPole-v1", "--seed", "7"])))
    write_html_page(folder / "report.html", "A title", ["<p>The rest</p>"])
    write_report_heading(folder, folder)
    text = (folder / "report.html").read_text()
    assert "Run <b>a&lt;b</b>, seed 7: <code>ml-pipeline train --env-id CartPole-v1 --seed 7</code>" in text
    assert "Settings that differ from the defaults: 2" in text
    assert text.index("A title") < text.index("seed 7") < text.index("The rest")


def test_without_readable_settings_a_report_stays_as_it_is(tmp_path):
    write_html_page(tmp_path / "report.html", "A title", [])
    before = (tmp_path / "report.html").read_text()
    write_report_heading(tmp_path, tmp_path)
    (tmp_path / "config.yaml").write_text("no_such_setting: 1\n")
    write_report_heading(tmp_path, tmp_path)
    assert (tmp_path / "report.html").read_text() == before

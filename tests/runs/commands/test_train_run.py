"""What the command prints of a run that is refused."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.commands.train_run import TypedCommand, train_run
from ml_pipeline.runs.tasks import make_task
from ml_pipeline.runs.train_command_line import TrainStart
from tests.small_runs import config_of


def test_a_run_that_is_refused_says_nothing_before(tmp_path, capsys):
    (tmp_path / "latest.pt").touch()
    config = config_of(tmp_path)
    start = TrainStart(config=config, checkpoint=None, notice="Several processes do it so.")
    with pytest.raises(UserError, match="already holds a run"):
        train_run(start, make_task(config), TypedCommand("train", ["train"]))
    assert capsys.readouterr().out == ""

"""Stopping a trial of a study that goes on."""

import json

import pytest

from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.service.commands import stop


@pytest.mark.parametrize("is_going_on", [True, False])
def test_stopping_a_single_trial_says_that_its_study_takes_it_up_again(is_going_on, tmp_path, monkeypatch, capsys):
    trial = tmp_path / "eurusd" / "trial-0001" / "seed-1"
    trial.mkdir(parents=True)
    told = {"state": "running" if is_going_on else "stopped", "writer": this_process()._asdict()}
    (tmp_path / "eurusd" / "study.json").write_text(json.dumps(told))
    monkeypatch.setattr(stop, "find_run", lambda *_, **__: trial)
    monkeypatch.setattr(stop, "stop_run", lambda *_: "seed-1 saves and stops.")
    assert stop.main([str(trial), "--root", str(tmp_path)]) == 0
    again = " The study eurusd will continue it; to stop the study: ml-pipeline stop eurusd"
    assert capsys.readouterr().out == f"seed-1 saves and stops.{again if is_going_on else ''}\n"

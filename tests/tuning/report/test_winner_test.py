"""The test is opened for the winner, once; afterwards everybody hears that it was, when, and how often."""

import json
import threading
from dataclasses import asdict

import pytest

from ml_pipeline.models.rl.algorithms.evaluation import evaluate
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.runtime.process_identity import this_process
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.report import winner_test
from ml_pipeline.tuning.report.test_opening import ATTRIBUTE, read_openings
from ml_pipeline.tuning.report.winner_test import Candidate, see_test
from ml_pipeline.tuning.study_files import trial_folder
from tests.tuning.written_studies import new_study, untrained_cartpole, untrained_trader


def candidate(folder, number=0, *, is_final=True):
    unfinished = "" if is_final else "1 of 2 trials have finished."
    return Candidate(number=number, folder=trial_folder(folder, number), is_final=is_final, unfinished=unfinished)


@pytest.fixture
def evaluated(monkeypatch):
    """How often a trial was evaluated, by its folder; the evaluation itself costs nothing."""
    runs = []

    def held_out_test(folder):
        def run(report, look):
            runs.append(folder.name)
            return {"sharpe": 0.5}

        return winner_test.HeldOutTest("the test split", f"digest of {folder.name}", run)

    monkeypatch.setattr(winner_test, "held_out_test", held_out_test)
    return runs


@pytest.mark.slow
def test_a_trader_is_evaluated_on_the_test_split_and_the_record_says_so(tmp_path):
    study, folder = new_study(), untrained_trader(trial_folder(tmp_path, 0))
    seen = see_test(study, tmp_path, candidate(tmp_path))
    (opening,) = seen.openings
    assert opening == seen.of_winner
    task = TradingTask(TradingConfig(features=("log_return_1",), data=tmp_path / "walk-0.csv"))
    expected = task.evaluate(load_policy(folder).act, "test")["agent"]
    assert opening.result["max_drawdown"] == expected["max_drawdown"]
    assert opening.result["total_return"] == expected["total_return"]
    page = (tmp_path / "winner_test" / "report.html").read_text(encoding="utf-8")
    assert "Run <b>trial-0000</b>, seed 0: <code>ml-pipeline train --data " in page
    assert seen.sentences[0].startswith(f"The test was opened once, on {opening.when[:10]}")


@pytest.mark.slow
def test_cartpole_is_played_in_episodes_that_no_trial_was_scored_by(tmp_path):
    folder = untrained_cartpole(trial_folder(tmp_path, 0))
    result = see_test(new_study(), tmp_path, candidate(tmp_path)).of_winner.result
    env = GymEnv(env_id="CartPole-v1").make(training=False)
    returns = evaluate(env, load_policy(folder).act, n_episodes=30, seed=2_000_000).returns
    mean = sum(returns) / 30
    deviation = (sum((each - mean) ** 2 for each in returns) / 29) ** 0.5
    assert result["episodes"] == 30
    assert result["mean_return"] == pytest.approx(mean)
    assert result["mean_return_se"] == pytest.approx(deviation / 30**0.5)
    page = (tmp_path / "winner_test" / "report.html").read_text(encoding="utf-8")
    assert "Run <b>trial-0000</b>, seed 0: <code>ml-pipeline train --env-id CartPole-v1</code>" in page


def test_the_record_is_written_before_the_evaluation_begins(tmp_path, monkeypatch):
    study = new_study()

    def run(report, look):
        assert [each["trial"] for each in study.user_attrs[ATTRIBUTE]] == [0]
        assert (tmp_path / "test_opened.jsonl").read_text().count("\n") == 1
        raise KeyboardInterrupt

    monkeypatch.setattr(
        winner_test, "held_out_test", lambda folder: winner_test.HeldOutTest("the test split", "ab", run)
    )
    with pytest.raises(KeyboardInterrupt):
        see_test(study, tmp_path, candidate(tmp_path))
    (opening,) = read_openings(study, tmp_path)
    assert opening.result is None


def test_asked_again_it_tells_what_is_recorded(tmp_path, evaluated):
    study = new_study()
    first = see_test(study, tmp_path, candidate(tmp_path))
    for how in ("once", "again", "never"):
        assert see_test(study, tmp_path, candidate(tmp_path), how) == first
    assert evaluated == ["trial-0000"]


def test_another_winner_does_not_open_it_again_by_itself(tmp_path, evaluated):
    study = new_study()
    see_test(study, tmp_path, candidate(tmp_path))
    later = see_test(study, tmp_path, candidate(tmp_path, 5))
    assert later.of_winner is None
    assert later.sentences[1].startswith("The winner is now trial 5, but the test was opened for trial 0.")
    assert evaluated == ["trial-0000"]


def test_opened_again_it_counts(tmp_path, evaluated):
    study = new_study()
    see_test(study, tmp_path, candidate(tmp_path))
    later = see_test(study, tmp_path, candidate(tmp_path, 5), "again")
    assert later.sentences[0].startswith("The test was opened 2 times: ")
    assert [each.trial for each in later.openings] == [0, 5]
    assert [each.folder for each in later.openings] == ["winner_test", "winner_test-2"]
    assert later.of_winner.result == {"sharpe": 0.5}
    assert evaluated == ["trial-0000", "trial-0005"]


@pytest.mark.parametrize("how", ["once", "again"])
def test_the_test_of_an_unfinished_study_stays_closed(tmp_path, evaluated, how):
    seen = see_test(new_study(), tmp_path, candidate(tmp_path, is_final=False), how)
    assert (seen.openings, evaluated) == ((), [])
    assert seen.sentences == ("1 of 2 trials have finished.",)


def test_without_a_winner_there_is_nothing_to_open(tmp_path, evaluated):
    assert see_test(new_study(), tmp_path, None).sentences == ("There is no winner to test.",)


def test_a_winner_whose_folder_is_elsewhere_leaves_the_test_closed(tmp_path):
    study = new_study()
    seen = see_test(study, tmp_path, candidate(tmp_path))
    assert "best.pt does not exist; write the report on the machine that has this trial's folder" in seen.sentences[0]
    assert seen.openings == ()
    assert ATTRIBUTE not in study.user_attrs


def test_data_that_were_moved_leave_the_test_closed(tmp_path):
    untrained_trader(trial_folder(tmp_path, 0))
    (tmp_path / "walk-0.csv").unlink()
    seen = see_test(new_study(), tmp_path, candidate(tmp_path))
    assert seen.openings == ()
    assert seen.sentences[0].startswith("The test could not be opened: ")


def cut_off(study, folder):
    """Make the process that evaluates a dead one."""
    (opening,) = read_openings(study, folder)
    dead = asdict(opening) | {"process": this_process()._replace(started="0"), "result": None}
    study.set_user_attr(ATTRIBUTE, [dead])


def test_an_evaluation_that_was_cut_off_is_ended_and_counts_once(tmp_path, evaluated):
    study = new_study()
    see_test(study, tmp_path, candidate(tmp_path))
    cut_off(study, tmp_path)
    told = see_test(study, tmp_path, candidate(tmp_path), "never")
    assert told.sentences[-1] == "The evaluation for trial 0 was cut off before its result was recorded."
    seen = see_test(study, tmp_path, candidate(tmp_path))
    assert seen.of_winner.result == {"sharpe": 0.5}
    assert seen.sentences[0].startswith("The test was opened once, ")
    assert evaluated == ["trial-0000"] * 2


def test_another_checkpoint_does_not_end_an_evaluation_that_was_cut_off(tmp_path, evaluated, monkeypatch):
    study = new_study()
    see_test(study, tmp_path, candidate(tmp_path))
    cut_off(study, tmp_path)
    other = winner_test.HeldOutTest("the test split", "another", lambda report, look: pytest.fail("evaluated"))
    monkeypatch.setattr(winner_test, "held_out_test", lambda folder: other)
    seen = see_test(study, tmp_path, candidate(tmp_path))
    assert "has changed since" in seen.sentences[-1]
    assert seen.of_winner.result is None


def test_two_at_once_evaluate_once(tmp_path, evaluated, monkeypatch):
    study, n = new_study(), 2
    barrier = threading.Barrier(n)
    load = winner_test.held_out_test

    def together(folder):
        test = load(folder)
        barrier.wait()
        return test

    monkeypatch.setattr(winner_test, "held_out_test", together)
    threads = [threading.Thread(target=see_test, args=(study, tmp_path, candidate(tmp_path))) for _ in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert evaluated == ["trial-0000"]
    assert len(read_openings(study, tmp_path)) == 1


def test_what_is_recorded_can_be_read_by_anyone(tmp_path, evaluated):
    study = new_study()
    see_test(study, tmp_path, candidate(tmp_path))
    (record,) = json.loads(json.dumps(study.user_attrs[ATTRIBUTE]))
    assert {"when", "trial", "version", "by", "result"} <= {*record}

"""The report of a study: its words first, every trial in it, and nothing that a hostile name could start."""

import json
import math
import re
import shutil

import optuna
import pytest
from optuna.trial import TrialState

from ml_pipeline.runs.tasks import describe_task
from ml_pipeline.runs.trained.configs import EvaluationConfig, EvaluationStart
from ml_pipeline.runs.trained.evaluate import evaluate_checkpoint
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.report.study_report import trials_asked_for, write_study_report
from ml_pipeline.tuning.report.study_trials import trial_rows
from ml_pipeline.tuning.report.test_opening import ATTRIBUTE
from ml_pipeline.tuning.study_files import trial_folder
from ml_pipeline.tuning.winner_statistics import finished_trials, judge
from tests.small_runs import trained
from tests.tuning.written_studies import (
    add_trial,
    new_study,
    noise_study,
    untrained_cartpole,
    untrained_trader,
    write_returns,
)

EVIL = "</script><img src=x onerror=document.title='broken'>"


@pytest.fixture(autouse=True)
def quiet():
    optuna.logging.set_verbosity(optuna.logging.WARNING)


def data_of(report, name="study"):
    text = report.path.read_text(encoding="utf-8")
    (data,) = re.findall(rf'<script type="application/json" id="{name}">(.*?)</script>', text)
    return json.loads(data)


def test_every_trial_is_drawn_with_its_state_and_value(tmp_path):
    study = noise_study(tmp_path, 20)
    report = write_study_report(study, tmp_path, n_trials=30)
    drawn = data_of(report)
    trials = study.get_trials()
    assert drawn["number"] == list(range(20))
    assert drawn["state"].count("pruned") == 4
    assert drawn["state"][16] == "failed"
    complete = [trial.value for trial in trials if trial.state == TrialState.COMPLETE]
    assert drawn["best"][-1] == max(complete)
    assert drawn["winner"] == next(trial.number for trial in trials if trial.value == max(complete))
    assert [setting["name"] for setting in drawn["settings"] if setting["log"]] == ["learning_rate"]


def test_the_verdict_comes_first_and_of_noise_it_is_no_evidence(tmp_path):
    report_study = noise_study(tmp_path, 20)
    report = write_study_report(report_study, tmp_path, n_trials=20)
    assert report.sentences[0].startswith("No evidence")
    text = report.path.read_text(encoding="utf-8")
    assert text.index("No evidence") < text.index("The winner: trial") < text.index("deflated Sharpe ratio, counting")
    assert data_of(report)["logits"]["counts"]
    logits = data_of(report)["logits"]
    red = sum(n for n, right in zip(logits["counts"], logits["edges"][1:], strict=True) if right <= 1e-9)
    judgement = judge(finished_trials(report_study, tmp_path))
    assert red / sum(logits["counts"]) == pytest.approx(judgement.pbo)
    for name, value in (("trials", judgement.dsr_of_trials), ("checkpoints", judgement.dsr_of_checkpoints)):
        assert f"deflated Sharpe ratio, counting {name}</td><td>{value:.4f}</td>" in text


def test_importance_is_the_same_each_time_and_finds_the_setting_that_matters(tmp_path):
    study = new_study()
    for number in range(40):
        chosen = {"ent_coef": (number * 7 % 40) / 1000, "n_epochs": 1 + number * 3 % 20}
        add_trial(study, chosen["n_epochs"] ** 2.0, params=chosen)
    pages = [write_study_report(study, tmp_path, n_trials=99).path.read_text() for _ in range(2)]
    assert pages[0] == pages[1]
    shares = [float(share) for share in re.findall(r"</div><span>([\d.]+)%</span>", pages[0])]
    assert data_of(write_study_report(study, tmp_path, n_trials=99))["settings"][0]["name"] == "n_epochs"
    assert shares[0] > 90


def test_settings_drawn_on_another_scale_are_shown_under_the_names_of_train(tmp_path):
    study = new_study()
    for number in range(12):
        steps, rest = 5 + number % 5, 0.001 * (1 + number % 3)
        settings = {"n_steps": 2**steps, "gamma": 1 - rest}
        add_trial(study, number, params={"log2_n_steps": steps, "one_minus_gamma": rest}, settings=settings)
    report = write_study_report(study, tmp_path, n_trials=99)
    drawn = {setting["name"]: setting for setting in data_of(report)["settings"]}
    assert drawn["n_steps"]["values"][:2] == [32, 64]
    assert drawn["1 - gamma"]["values"][:2] == [0.001, 0.002]
    assert drawn["n_steps"]["log"]
    assert drawn["1 - gamma"]["log"]
    text = report.path.read_text(encoding="utf-8")
    headings = [column["label"] for column in data_of(report, "data")["tables"][0]["columns"]]
    assert {"n_steps", "gamma"} <= {*headings}
    assert "log2_n_steps" not in text
    assert "one_minus_gamma" not in text


@pytest.mark.parametrize(
    ("objective", "base", "unit"),
    [
        ({"objective": "sharpe"}, {"score": "sharpe"}, "Sharpe ratio"),
        ({"objective": "score"}, {}, "log return"),
        ({"objective": "score"}, {"env_id": "CartPole-v1"}, "mean return"),
        ("odd", ["odd"], None),
    ],
)
def test_values_have_their_unit_wherever_they_stand(tmp_path, objective, base, unit):
    study = new_study()
    add_trial(study, 1.5)
    study.set_user_attr("identity", {"objective": objective, "base settings": base})
    report = write_study_report(study, tmp_path, n_trials=2)
    text = report.path.read_text(encoding="utf-8")
    in_brackets, after_comma = (f" ({unit})", f", {unit}") if unit else ("", "")
    assert data_of(report)["unit"] == (unit or "value")
    assert data_of(report, "data")["tables"][0]["columns"][2]["label"] == f"value{after_comma}"
    assert f"<span>best value{after_comma}</span>" in text
    assert f"Value 1.5{in_brackets}. Its run" in text
    assert report.sentences[0].startswith(f"Trial 0 has the highest value, 1.5{in_brackets}, of 1 finished trial.")


def test_what_the_winner_came_to_on_the_test_split_is_said_beside_buy_and_hold(tmp_path):
    study = new_study()
    add_trial(study, write_returns(trial_folder(tmp_path, 0), mean=0.001))
    result = {"total_return": -0.0425, "sharpe": -4.747, "sharpe_se": 2.579}
    result |= {"buy_and_hold_total_return": 0.0359, "buy_and_hold_sharpe": 3.93}
    opening = {"when": "2026-05-04T03:02:01+00:00", "trial": 0, "version": "1", "by": "here", "result": result}
    study.set_user_attr(ATTRIBUTE, [opening])
    report = write_study_report(study, tmp_path, n_trials=1)
    assert report.sentences[-2] == (
        "On the test split, after costs, trial 0 returned -4.2 % with a Sharpe ratio of -4.75 ± 2.58 (standard error), "
        "and buy and hold +3.6 % with one of 3.93."
    )


def test_too_few_trials_say_so_in_place_of_importance(tmp_path):
    report = write_study_report(noise_study(tmp_path, 5), tmp_path, n_trials=5)
    assert "Too few trials: 4 were scored, and importance needs 10." in report.path.read_text(encoding="utf-8")


@pytest.mark.parametrize("n_failed", [0, 3])
def test_without_any_scored_trial_there_is_no_winner(tmp_path, n_failed):
    study = new_study()
    for _ in range(n_failed):
        add_trial(study, None, state=TrialState.FAIL, reason="Out of memory.")
    report = write_study_report(study, tmp_path, n_trials=10)
    expected = (
        "No trial has begun." if not n_failed else "of 3 trials, 3 failed. All failed for one reason: Out of memory."
    )
    assert report.sentences[0].endswith(expected)
    assert report.test.openings == ()


def test_one_reason_is_told_once_with_how_often_it_was_met(tmp_path):
    study = new_study()
    for _ in range(30):
        add_trial(study, None, state=TrialState.FAIL, reason="Out of memory.")
    tables = data_of(write_study_report(study, tmp_path, n_trials=30), "data")["tables"]
    assert tables[1]["columns"][0]["values"]["words"] == ["Out of memory."]
    assert tables[1]["columns"][2]["values"]["first"] == 30


def test_a_stopped_trial_is_told_as_the_later_one_that_goes_on_with_it(tmp_path):
    study = new_study()
    add_trial(study, None, state=TrialState.FAIL, reason="stopped")
    add_trial(study, 1.0, failed_trial=0)
    report = write_study_report(study, tmp_path, n_trials=1)
    assert data_of(report)["number"] == [0, 1]
    text = report.path.read_text(encoding="utf-8")
    assert "Failures" not in text
    assert "resumes trial 0, which was interrupted" in text


def test_a_single_finished_trial_is_reported(tmp_path):
    study = new_study()
    add_trial(study, write_returns(trial_folder(tmp_path, 0), mean=0.001))
    report = write_study_report(study, tmp_path, n_trials=2)
    assert "The winner: trial 0" in report.path.read_text(encoding="utf-8")


def test_lost_races_are_no_trials_and_impossible_ones_are_told_apart(tmp_path):
    study = new_study()
    add_trial(study, 1.0)
    add_trial(study, None, state=TrialState.FAIL, void=True)
    add_trial(study, None, state=TrialState.PRUNED, impossible=True, reason="minibatch_size must divide 64.")
    drawn = data_of(write_study_report(study, tmp_path, n_trials=9))
    assert (drawn["number"], drawn["state"]) == ([0, 2], ["complete", "impossible"])


def test_a_trial_that_was_trained_further_does_not_complete_a_study(tmp_path):
    study = noise_study(tmp_path, 4)
    add_trial(study, 0.0, continues=0)
    report = write_study_report(study, tmp_path, n_trials=5)
    assert "4 of 5 trials have finished" in report.sentences[-1]


def test_the_test_of_an_unfinished_study_is_closed_with_a_sentence(tmp_path):
    report = write_study_report(noise_study(tmp_path, 4), tmp_path, n_trials=10)
    assert report.sentences[-1].startswith("The test is closed: 4 of 10 trials have finished")
    unknown = write_study_report(noise_study(tmp_path, 4), tmp_path, n_trials=None)
    assert "is unknown; give it with --n-trials" in unknown.sentences[-1]


@pytest.mark.slow
def test_a_complete_study_opens_the_test_and_links_its_report(tmp_path):
    study = noise_study(tmp_path, 4)
    winner = max(study.get_trials(), key=lambda trial: -9 if trial.value is None else trial.value).number
    untrained_trader(trial_folder(tmp_path, winner))
    report = write_study_report(study, tmp_path, n_trials=4)
    assert [each["trial"] for each in study.user_attrs[ATTRIBUTE]] == [winner]
    text = report.path.read_text(encoding="utf-8")
    assert 'href="./winner_test/report.html"' in text
    assert "The test was opened once" in text
    assert "sharpe, standard error" in text


@pytest.mark.slow
def test_a_study_of_cartpole_leaves_statistics_out_and_gives_a_standard_error(tmp_path):
    study = new_study()
    for number in range(2):
        untrained_cartpole(trial_folder(tmp_path, number), policy_seed=number)
        add_trial(study, 20.0 + number)
    trained(trial_folder(tmp_path, 2))
    add_trial(study, 30.0)
    report = write_study_report(study, tmp_path, n_trials=3)
    assert report.sentences[0].startswith("Trial 2 has the highest value, 30, of 3 finished trials.")
    assert re.match(r"In 30 fresh episodes, .* it returns [\d.]+ ± [\d.]+ \(standard error\)", report.sentences[1])
    assert "the effect of selection is unknown" in report.sentences[2]
    assert "Luck or skill" not in report.path.read_text(encoding="utf-8")


def evil_study(folder):
    study = new_study(EVIL)
    (folder / "trial-0000").mkdir(exist_ok=True)
    for number in range(12):
        params = {"activation": "tanh", "n_epochs": 1 + number}
        add_trial(study, float(number), params=params, host=EVIL, reason=EVIL, settings={EVIL: EVIL}, folders=[EVIL])
    add_trial(study, None, state=TrialState.FAIL, reason=EVIL, folders=["../..", "/etc"])
    study.set_user_attr("identity", {EVIL: {EVIL: EVIL}})
    study.set_user_attr(ATTRIBUTE, [{"when": EVIL, "trial": 0, "by": EVIL, "folder": "../x", "result": {EVIL: EVIL}}])
    return study


def test_hostile_names_are_text_and_lead_nowhere(tmp_path):
    report = write_study_report(evil_study(tmp_path), tmp_path, n_trials=20)
    text = report.path.read_text(encoding="utf-8")
    assert "<img" not in text
    assert text.count("</script>") == 6
    assert not re.search(r'href="(?!\./trial-)', text)
    assert set(data_of(report, "data")["tables"][0]["columns"][3]["links"]) == {""}


@pytest.mark.system
def test_a_browser_draws_a_study_and_marks_one_trial_in_every_chart(tmp_path, browser_page):
    report = write_study_report(noise_study(tmp_path, 40), tmp_path, n_trials=50)
    page = browser_page(report.path)
    page.wait_for_selector("html[data-drawn=true]")
    assert page.locator("html").get_attribute("data-plots") == str(1 + 4 + 1 + 1 + 1)
    axes = page.locator(".plot").evaluate_all("plots => plots.map(({dataset}) => [dataset.x, dataset.y])")
    assert axes == [
        ["logit of the winner's rank in the other half", "splits in halves"],
        ["trial", "value"],
        *([each["name"], "value"] for each in data_of(report)["settings"]),
        [None, None],  # each parallel axis has its name above it
        ["minutes since the first trial began", "host"],
    ]
    page.locator("#history").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("html").get_attribute("data-chosen") == "0"
    assert "trial 0, complete" in page.locator("#tip").inner_text()
    page.locator("#trials th button", has_text="value").click()
    page.locator("#trials th button", has_text="value").click()
    values = [float(each) for each in page.locator("#trials tbody td:nth-child(3)").all_inner_texts() if each != "–"]
    assert values == sorted(values, reverse=True)
    first = page.locator("#trials tbody tr").first
    first.click()
    assert page.locator("html").get_attribute("data-chosen") == first.locator("td").first.inner_text()

    # Dragging along the axis of values keeps the trials between.
    page.locator("#parallel").scroll_into_view_if_needed()
    box = page.locator("#parallel canvas").first.bounding_box()
    page.mouse.move(box["x"] + 40, box["y"] + 40)
    page.mouse.down()
    page.mouse.move(box["x"] + 40, box["y"] + 120, steps=4)
    page.mouse.up()
    assert re.match(r"\d+ of \d+ scored trials are in the chosen ranges", page.locator("#parallel-told").inner_text())


@pytest.mark.system
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_narrow_screen_and_hostile_names_start_nothing(tmp_path, browser_page, scheme):
    report = write_study_report(evil_study(tmp_path), tmp_path, n_trials=20)
    page = browser_page(report.path, color_scheme=scheme, viewport={"width": 390, "height": 844})
    page.wait_for_selector("html[data-drawn=true]")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for wide in ("[data-scrolls] #parallel", "#trials [data-scrolls]"):
        page.wait_for_selector(wide)
    assert page.title() == f"Study {EVIL}"
    assert page.locator("img").count() == 0


@pytest.mark.long
def test_five_hundred_trials_take_less_than_a_megabyte(tmp_path):
    study = new_study()
    for number in range(500):
        add_trial(study, float(number % 7), seconds=number)
    report = write_study_report(study, tmp_path, n_trials=600)
    assert report.path.stat().st_size < 1_000_000


@pytest.mark.parametrize(("told", "expected"), [(7, 7), ("7", None), (0, None), (None, None)])
def test_how_many_trials_were_asked_for_is_read_from_the_study(told, expected):
    study = new_study()
    study.set_user_attr("n_trials", told)
    assert trials_asked_for(study) == expected
    assert trials_asked_for(new_study()) is None


def test_a_score_of_minus_infinity_wins_nothing(tmp_path):
    study = new_study()
    add_trial(study, -math.inf)
    report = write_study_report(study, tmp_path, n_trials=9)
    assert report.sentences[0] == "No trial has a finite score, so there is no winner: of 1 trial, 1 complete."


def test_a_stopped_trial_that_was_queued_again_is_no_failure(tmp_path):
    study = new_study()
    add_trial(study, None, state=TrialState.FAIL, reason="stopped")
    add_trial(study, 1.0, failed_trial=0)
    assert [(row.number, row.state) for row in trial_rows(study)] == [(0, "stopped"), (1, "complete")]


def test_a_feature_that_may_see_ahead_comes_before_the_verdict_and_makes_it_no_evidence(tmp_path):
    study = noise_study(tmp_path, 6)
    add_trial(
        study, write_returns(trial_folder(tmp_path, 6), mean=0.01, seed=9), **{"feature warnings": [f"up {EVIL}"]}
    )
    study.set_user_attr("identity", {"feature warnings": ["week has a rank correlation of 0.29"]})
    report = write_study_report(study, tmp_path, n_trials=10)
    assert report.sentences[0].endswith("make every figure wrong: week has a rank correlation of 0.29")
    assert report.sentences[1].endswith(f"up {EVIL}")
    assert report.sentences[2].startswith("Evidence")
    text = report.path.read_text(encoding="utf-8")
    assert 'class="verdict bad"' in text
    assert "<img" not in text


def test_without_a_trade_there_is_no_winner(tmp_path):
    study = new_study()
    for number in range(3):
        folder = trial_folder(tmp_path, number)
        write_returns(folder, deviation=0.0)
        add_trial(study, 0.0)
    report = write_study_report(study, tmp_path, n_trials=3)
    assert report.sentences[0].startswith("There is no winner: trial 0 has the highest value, 0, but it never traded")
    assert "undefined" not in " ".join(report.sentences)
    assert report.test.openings == ()


@pytest.mark.slow
def test_looks_are_counted_over_copies_of_a_study_and_evaluations_of_its_trials(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "state"))
    study, folder = new_study(), tmp_path / "root/study"
    run = untrained_trader(trial_folder(folder, 0))
    add_trial(study, write_returns(run, mean=0.001))
    task = TradingTask(TradingConfig(features=("log_return_1",), data=folder / "walk-0.csv"))
    study.set_user_attr("identity", {"task": describe_task(task)})
    shutil.copytree(folder, tmp_path / "copy/study")
    copied = new_study("copied")
    add_trial(copied, 0.1)
    copied.set_user_attr("identity", {"task": describe_task(task)})
    evaluate_checkpoint(EvaluationStart(config=EvaluationConfig(checkpoint=run, split="test"), changes={}))
    assert (
        "looked at once, by evaluate of"
        in write_study_report(copied, tmp_path / "copy/study", n_trials=9).sentences[-1]
    )
    write_study_report(copied, tmp_path / "copy/study", n_trials=1)
    said = write_study_report(study, folder, n_trials=1).sentences[-1]
    assert said.startswith("The test part of these data was looked at 3 times, by ")
    assert "report of the study copied for trial 0, report of the study first for trial 0" in said
    again = write_study_report(study, folder, n_trials=1).sentences[-1]
    assert again == said
    shutil.rmtree(tmp_path / "state")
    assert "looked at 2 times, by evaluate of" in write_study_report(study, folder, n_trials=1).sentences[-1]

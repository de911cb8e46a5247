"""The winner of a study is deployed where it deserves it, and refused with the figures where it does not."""

import json
import math
import shutil
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
from optuna.trial import TrialState

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained import export
from ml_pipeline.runs.trained.deployed import warned_of
from ml_pipeline.runs.trained.load_policy import load_policy
from ml_pipeline.trading.evaluation.looks import Look, looks_in_words, read_looks, record_look
from ml_pipeline.trading.traded_market import TradedMarket
from ml_pipeline.tuning.config import PromotionRules
from ml_pipeline.tuning.promotion import promotion as promotion_module
from ml_pipeline.tuning.promotion import version_files
from ml_pipeline.tuning.promotion.model_store import ModelStore, write_link
from ml_pipeline.tuning.promotion.promotion import Promotion, follow_study
from ml_pipeline.tuning.promotion.verdict import FEWEST_EPISODES, NotPromoted, SavedPolicy, compare_on_validation
from ml_pipeline.tuning.report.test_opening import record_opening
from ml_pipeline.tuning.storage.open_storage import open_study
from ml_pipeline.tuning.study_files import IDENTITY_ATTRIBUTE, STUDY_FILE
from tests.small_runs import PPO, trained
from tests.tuning.small_studies import add_trial, new_study, returns_of, small_market, train_on_market

pytestmark = pytest.mark.slow

ANY = PromotionRules(min_dsr=0.0)


@pytest.fixture(scope="module")
def carts(tmp_path_factory):
    """Two runs of a few steps, the better one on fresh episodes first."""
    folder = tmp_path_factory.mktemp("carts")
    rates = {"slow": 1e-4, "fast": 1e-2}
    runs = [trained(folder / name, ppo=replace(PPO, learning_rate=rate)).folder for name, rate in rates.items()]
    first, second = map(SavedPolicy, runs)
    return runs if compare_on_validation(first, second).difference > 0 else runs[::-1]


@pytest.fixture(scope="module")
def markets(tmp_path_factory):
    """Two runs on one market, of other features and windows, the better one on validation data first."""
    folder = tmp_path_factory.mktemp("markets")
    data = small_market(folder / "bars.csv")
    runs = [
        train_on_market(folder / "0", seed=0, data=data),
        train_on_market(folder / "1", seed=1, data=data, features=("log_return_5",), window=7),
    ]
    first, second = map(SavedPolicy, runs)
    return runs if compare_on_validation(first, second).difference > 0 else runs[::-1]


@pytest.fixture(scope="module")
def leaking(tmp_path_factory):
    """A run on a market with a column that tells a little of the next bar."""
    folder = tmp_path_factory.mktemp("leaking")
    data = small_market(folder / "bars.csv", n=1500, hint=0.36)
    return train_on_market(folder / "run", data=data, features=("log_return_1", "feature_hint"))


@pytest.fixture(autouse=True)
def quick_export(request, monkeypatch):
    """Writing ONNX takes seconds: only the tests of it do so."""
    if not any(each in request.node.name for each in ("by ONNX", "exported_by_torch")):
        monkeypatch.setattr(export, "export_checkpoint", lambda config: config.path.write_text("exported"))


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models", "toy")


@pytest.fixture
def toy(tmp_path):
    return new_study(tmp_path / "studies")


def promoted(toy, store, rules=ANY):
    return Promotion(*toy, store, rules).attempt()


# What is deployed


@pytest.mark.parametrize("export", ["by a stand-in", pytest.param("by ONNX", marks=pytest.mark.long)])
def test_a_version_holds_the_winner_exported_and_why_it_won(toy, store, carts, export):
    study, folder = toy
    add_trial(study, folder, carts[1], value=1.0)
    add_trial(study, folder, carts[0], value=2.0)
    version = promoted(toy, store).version
    names = {path.relative_to(version.folder).as_posix() for path in version.folder.rglob("*") if path.is_file()}
    expected = {"best.pt", "config.yaml", "data.json", "policy.onnx", "promotion.json", "validation/evaluation.json"}
    assert names >= expected
    record = version.promotion
    assert (record["trial"], record["study"], record["value"], record["run"]) == (1, "toy", 2.0, "trial-0001")
    assert record["compared_with"] is None
    assert record["exported"] == {"file": "policy.onnx", "format": "onnx"}
    assert record["statistics"] is None
    assert record["settings"] == {"gamma": 0.9}
    assert record["test"] is None
    assert json.loads((version.folder / "data.json").read_text())["environment"] == "CartPole-v1"
    page = (version.folder / "validation/report.html").read_text(encoding="utf-8")
    assert "Run <b>trial-0001</b>, seed 0: <code>ml-pipeline train --env-id CartPole-v1 " in page
    version.require_whole()
    assert (version.folder / "best.pt").read_bytes() == (carts[0] / "best.pt").read_bytes()
    assert load_policy(store.folder / "current").checkpoint == version.folder / "best.pt"


def test_a_market_s_version_holds_the_statistics_and_the_fingerprint(toy, store, markets):
    study, folder = toy
    add_trial(study, folder, markets[0], value=2.0)
    version = promoted(toy, store).version
    assert version.promotion["statistics"]["n_trials"] == 1
    data = json.loads((version.folder / "data.json").read_text())
    assert len(data["data"]) == 32
    assert data["splits"]["train"]["last"] < data["splits"]["validation"]["first"]
    figures = json.loads((version.folder / "validation/evaluation.json").read_text())
    assert figures["split"] == "validation"


def test_without_the_extra_onnx_the_policy_is_exported_by_torch(toy, store, carts, monkeypatch):
    monkeypatch.setattr(version_files, "find_spec", lambda name: None)
    add_trial(*toy, carts[0], value=1.0)
    version = promoted(toy, store).version
    assert version.promotion["exported"] == {"file": "policy.pt2", "format": "torch"}
    assert (version.folder / "policy.pt2").is_file()


def test_a_named_trial_is_promoted_in_place_of_the_winner(toy, store, carts):
    study, folder = toy
    add_trial(study, folder, carts[0], value=2.0)
    add_trial(study, folder, carts[1], value=1.0)
    version = promoted(toy, store, PromotionRules(trial=1)).version
    assert (version.promotion["trial"], version.promotion["chosen"]) == (1, "named by --trial")
    with pytest.raises(UserError, match="no finished trial 7; finished trials: 0, 1"):
        promoted(toy, store, PromotionRules(trial=7))


def test_the_same_model_again_is_deployed_already(toy, store, carts):
    add_trial(*toy, carts[0], value=1.0)
    promoted(toy, store)
    again = promoted(toy, store)
    assert again.was_there
    assert again.sentences == ("Trial 0 is already deployed, as v1 of toy.",)
    assert len(store.versions()) == 1


def test_a_test_split_that_the_report_opened_is_told_with_how_often(toy, store, carts):
    study, folder = toy
    add_trial(study, folder, carts[0], value=1.0)
    looks = [
        {"when": "2026-01-01", "trial": 0, "by": "me", "result": {"sharpe": 0.5}},
        {"when": "2026-01-02", "trial": 3, "by": "me", "result": {"sharpe": 0.7}},
    ]
    study.set_user_attr("test_opened", looks)
    version = promoted(toy, store).version
    assert version.promotion["test"] == {"opened": 2, "file": "test.json"}
    told = json.loads((version.folder / "test.json").read_text())
    assert (told["times_opened"], told["result"]) == (2, {"sharpe": 0.5})


def test_an_opening_that_only_the_folder_tells_of_is_told_as_well(toy, store, carts):
    """As where the storage was restored from a copy of before."""
    study, folder = toy
    add_trial(study, folder, carts[0], value=1.0)
    record_opening(study, folder, trial=0, checkpoint="", expected=[], folder="winner_test")
    study.set_user_attr("test_opened", [])
    version = promoted(toy, store).version
    assert version.promotion["test"] == {"opened": 1, "file": "test.json"}


def test_promotion_never_reads_the_test_split(toy, store, markets, monkeypatch):
    read = []
    split = TradedMarket.split
    monkeypatch.setattr(TradedMarket, "split", lambda self, name: (read.append(name), split(self, name))[1])
    add_trial(*toy, markets[1], value=1.0)
    promoted(toy, store)
    add_trial(*toy, markets[0], value=2.0)
    promoted(toy, store, PromotionRules(min_dsr=0.0, margin=0.0))
    assert set(read) <= {"train", "validation"}
    assert "validation" in read


# Refusals


def test_a_study_without_a_finished_trial_is_refused(toy, store, carts):
    study, folder = toy
    with pytest.raises(NotPromoted, match=r"has no finished trial yet\."):
        promoted(toy, store)
    add_trial(study, folder, state=TrialState.FAIL)
    add_trial(study, folder, carts[0], state=TrialState.PRUNED)
    with pytest.raises(NotPromoted, match=r"no finished trial to promote \(1 failed, 1 pruned\)"):
        promoted(toy, store)
    with pytest.raises(NotPromoted, match="Trial 1 of toy has no score"):
        promoted(toy, store, PromotionRules(trial=1))
    assert not store.folder.exists()


def test_a_winner_that_may_be_luck_is_refused(toy, store, markets):
    study, folder = toy
    for i in range(4):
        add_trial(study, folder, markets[0], value=float(i), returns=returns_of(0.0001 * i, seed=i))
    with pytest.raises(NotPromoted) as refusal:
        promoted(toy, store, PromotionRules())
    sentence = str(refusal.value)
    assert sentence.startswith("Trial 3 is not promoted: it has a deflated Sharpe ratio of ")
    assert "as the best of 4 trials" in sentence
    assert "at least 0.95 is required (--min-dsr)" in sentence
    assert not store.folder.exists()


def test_a_winner_that_is_more_than_luck_is_deployed(toy, store, markets):
    study, folder = toy
    for i, mean in enumerate((0.0, 0.0001, 0.003)):
        add_trial(study, folder, markets[0], value=float(i), returns=returns_of(mean, seed=i))
    statistics = promoted(toy, store, PromotionRules()).version.promotion["statistics"]
    assert (statistics["evidence"], statistics["winner"]) == ("evidence", 2)


def test_a_ratio_that_is_undefined_is_refused(toy, store, markets):
    study, folder = toy
    flat = returns_of(0.001, deviation=0.0)
    add_trial(study, folder, markets[0], value=1.0, returns=flat)
    add_trial(study, folder, markets[0], value=0.0, returns=returns_of(0.001))
    with pytest.raises(NotPromoted, match="it has no deflated Sharpe ratio") as refusal:
        promoted(toy, store, PromotionRules())
    assert "undefined" not in str(refusal.value)
    assert "nan" not in str(refusal.value)


@pytest.mark.parametrize("rules", [ANY, PromotionRules(min_dsr=0.0, trial=0)])
def test_a_winner_that_never_traded_is_refused_whatever_is_asked_for(toy, store, markets, rules):
    add_trial(*toy, markets[0], value=0.0, returns=returns_of(0.0, deviation=0.0))
    add_trial(*toy, markets[0], value=-0.1)
    with pytest.raises(NotPromoted, match="never traded on the validation data"):
        promoted(toy, store, rules)
    assert store.versions() == []


# A feature that may use later data


def test_a_feature_that_may_see_ahead_is_promoted_for_a_reason_alone_which_the_version_keeps(toy, store, leaking):
    add_trial(*toy, leaking, value=1.0)
    with pytest.raises(NotPromoted, match=r"because a feature may use later data: .*feature_hint .*--despite"):
        promoted(toy, store)
    found = promoted(toy, store, PromotionRules(min_dsr=0.0, despite="it is published on Mondays"))
    told = warned_of(found.version.folder)
    assert told.despite == found.version.promotion["despite"] == "it is published on Mondays"
    assert "feature_hint has a rank correlation" in told.warnings[0]
    assert "It was promoted despite this: it is published on Mondays." in found.sentences


def test_a_warning_that_only_another_trial_of_the_study_has_is_kept_as_well(toy, store, markets):
    toy[0].set_user_attr("identity", {"feature warnings": ["up tells of the next bar"]})
    add_trial(*toy, markets[0], value=1.0)
    add_trial(*toy, markets[0], value=0.0, **{"feature warnings": ["down tells of it, too"]})
    with pytest.raises(NotPromoted, match="up tells of the next bar; down tells of it, too"):
        promoted(toy, store)


def test_a_reason_without_a_warning_is_not_kept(toy, store, markets):
    add_trial(*toy, markets[0], value=1.0)
    found = promoted(toy, store, PromotionRules(min_dsr=0.0, despite="for any case"))
    assert warned_of(found.version.folder) == ((), None)


# Beside buy and hold


def test_a_version_says_how_often_the_test_part_of_its_data_was_looked_at(toy, store, markets):
    study, folder = toy
    add_trial(study, folder, markets[0], value=1.0)
    policy = SavedPolicy(markets[0])
    task = policy.trading_task(policy.config)
    study.set_user_attr(IDENTITY_ATTRIBUTE, {"task": {"data": task.account.fingerprint}})
    record_look(Look("evaluate of elsewhere/best.pt"), task.fingerprints)
    found = promoted(toy, store)
    (sentence,) = found.version.promotion["looks_at_test"]
    assert sentence == looks_in_words(read_looks(task.fingerprints))
    assert "by evaluate of elsewhere/best.pt" in sentence
    assert sentence in found.sentences


def test_a_version_says_whether_it_beats_holding(toy, store, markets):
    add_trial(*toy, markets[0], value=1.0)
    found = promoted(toy, store)
    card = found.version.promotion["beside_holding"]
    agent, holding = (_validation_figures(found.version)[name] for name in ("agent", "buy_and_hold"))
    assert card["beats"] == (agent["total_return"] > holding["total_return"])
    assert card["sentence"] in found.sentences
    assert (
        f"{100 * agent['total_return']:+,.2f} % and buy and hold {100 * holding['total_return']:+,.2f} %"
        in card["sentence"]
    )


def test_a_winner_that_is_buy_and_hold_to_the_digit_says_so(toy, store, markets, monkeypatch):
    holds = lambda policy, env: lambda observation: env.action_space.n - 1  # noqa: E731
    monkeypatch.setattr(SavedPolicy, "act_in", holds)
    add_trial(*toy, markets[0], value=1.0)
    card = promoted(toy, store).version.promotion["beside_holding"]
    assert (card["same"], card["beats"]) == (True, False)
    assert "it equals buy and hold exactly" in card["sentence"]


def _validation_figures(version):
    return json.loads((version.folder / "validation/evaluation.json").read_text())


def test_a_market_s_winner_without_returns_is_refused(toy, store, markets):
    own = add_trial(*toy, markets[0], value=1.0)
    (own / "validation_returns.npz").unlink()
    with pytest.raises(NotPromoted, match="Trial 0 has no validation returns"):
        promoted(toy, store, PromotionRules())


def test_a_winner_must_beat_what_is_deployed_by_the_margin(toy, store, markets):
    study, folder = toy
    add_trial(study, folder, markets[1], value=1.0)
    promoted(toy, store)
    add_trial(study, folder, markets[0], value=2.0)
    found = compare_on_validation(SavedPolicy(markets[0]), SavedPolicy(markets[1]))
    ratio = found.difference / found.standard_error
    with pytest.raises(NotPromoted) as refusal:
        promoted(toy, store, PromotionRules(min_dsr=0.0, margin=ratio * 1.01))
    assert "Trial 1 is not promoted: it does not beat the deployed v1 by more" in str(refusal.value)
    assert str(found) in str(refusal.value)
    assert store.current == 1
    version = promoted(toy, store, PromotionRules(min_dsr=0.0, margin=ratio * 0.99)).version
    assert version.number == store.current == 2
    compared = version.promotion["compared_with"]
    assert (compared["version"], compared["difference"], compared["unit"]) == ("v1", found.difference, "bar")
    assert compared["standard_error"] == found.standard_error


def test_the_difference_on_a_market_is_that_of_two_evaluations(markets):
    """Each policy in another environment, with a ledger: bars that both have, by their times."""
    ledgers = []
    for run in markets:
        policy = SavedPolicy(run)
        task = policy.trading_task(SavedPolicy(markets[0]).config)
        with task.evaluation_env("validation") as env:
            act = policy.act_in(env)
        ledgers.append(task.compare(act, "validation").evaluation.agent)
    growth = [dict(zip(each["time"][1:].tolist(), np.diff(np.log(each["equity"])), strict=True)) for each in ledgers]
    common = sorted(set(growth[0]) & set(growth[1]))
    differences = np.array([growth[0][time] - growth[1][time] for time in common])
    found = compare_on_validation(*map(SavedPolicy, markets))
    assert found.n == len(common)
    assert found.difference == pytest.approx(differences.mean(), abs=1e-12)
    assert found.standard_error > 0


def test_episodes_are_of_the_same_seeds_and_paired(carts):
    found = compare_on_validation(*map(SavedPolicy, carts))
    returns = [_played(run) for run in carts]
    differences = returns[0] - returns[1]
    assert (found.unit, found.n) == ("episode", FEWEST_EPISODES)
    assert found.difference == differences.mean()
    assert found.standard_error == pytest.approx(differences.std(ddof=1) / math.sqrt(FEWEST_EPISODES))
    same = compare_on_validation(SavedPolicy(carts[0]), SavedPolicy(carts[0]))
    assert (same.difference, same.standard_error) == (0.0, 0.0)


def _played(run):
    """Returns of the episodes that begin with the seeds from 3,000,000 on: CartPole gives 1 per step."""
    act, env, lengths = load_policy(run).act, gymnasium.make("CartPole-v1"), []
    for i in range(FEWEST_EPISODES):
        observation, done, length = env.reset(seed=3_000_000 + i)[0], False, 0
        while not done:
            observation, _, terminated, truncated, _ = env.step(act(observation))
            done, length = terminated or truncated, length + 1
        lengths.append(length)
    return np.array(lengths, dtype=float)


def test_a_model_of_another_environment_is_refused(toy, store, carts, markets):
    add_trial(*toy, carts[0], value=1.0)
    promoted(toy, store)
    add_trial(*toy, markets[0], value=2.0)
    with pytest.raises(
        UserError, match=r"it was trained on CartPole-v1, and the study on a market; promote under another --name"
    ):
        promoted(toy, store)


def test_a_deployed_model_that_was_changed_is_not_compared_with(toy, store, carts):
    study, folder = toy
    add_trial(study, folder, carts[1], value=1.0)
    best = promoted(toy, store).version.folder / "best.pt"
    best.chmod(0o644)
    shutil.copyfile(carts[0] / "latest.pt", best)
    add_trial(study, folder, carts[0], value=2.0)
    with pytest.raises(UserError, match="not the file that was promoted"):
        promoted(toy, store)


def test_a_deployed_version_that_was_deleted_is_compared_with_nothing(toy, store, carts):
    add_trial(*toy, carts[0], value=1.0)
    shutil.rmtree(promoted(toy, store).version.folder)
    found = promoted(toy, store)
    assert found.version.number == 2
    assert "v1 was deployed, but its folder was deleted" in found.sentences[1]


def test_a_trial_whose_folder_is_on_another_machine_is_told(toy, store, carts):
    shutil.rmtree(add_trial(*toy, carts[0], value=1.0))
    with pytest.raises(UserError, match="promote on the machine that trained it"):
        promoted(toy, store)


def test_who_promotes_meanwhile_is_compared_with(toy, store, carts, monkeypatch):
    study, folder = toy
    add_trial(study, folder, carts[1], value=1.0)
    first = Promotion(study, folder, store, ANY)
    deploy, others = first._deploy, []

    def slowly(*arguments, **options):
        if not others:  # another process is quicker
            others.append(promoted(toy, store).version)
        return deploy(*arguments, **options)

    monkeypatch.setattr(first, "_deploy", slowly)
    again = first.attempt()
    assert again.was_there
    assert [version.name for version in store.versions()] == ["v1"]


def test_a_full_disk_leaves_nothing_behind(toy, store, carts, monkeypatch):
    add_trial(*toy, carts[0], value=1.0)

    def no_space(run, folder):
        (folder / "half").write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(promotion_module, "write_version", no_space)
    with pytest.raises(UserError, match="No space left on device"):
        promoted(toy, store)
    assert list(store.folder.iterdir()) == []


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"min_dsr": 1.5}, "from 0 to 1"),
        ({"min_dsr": math.nan}, "from 0 to 1"),
        ({"margin": -1.0}, "0 or more"),
        ({"margin": math.inf}, "0 or more"),
        ({"trial": -1}, "trial"),
    ],
)
def test_rules_out_of_range_are_refused(values, sentence):
    with pytest.raises(UserError, match=sentence):
        PromotionRules(**values)


# Following a study


def _next_of(events):
    def wait():
        next(events)()

    return wait


def test_watching_promotes_each_new_winner_until_the_study_is_finished(toy, store, carts):
    study, folder = toy
    events = [
        lambda: add_trial(study, folder, carts[1], value=1.0),
        lambda: None,  # nothing new
        lambda: add_trial(study, folder, carts[0], value=2.0),
        lambda: add_trial(study, folder, carts[1], value=0.5),
        lambda: (folder / STUDY_FILE).write_text('{"state": "running"}'),
        lambda: (folder / STUDY_FILE).write_text('{"state": "finished"}'),
    ]
    remaining = iter(events)
    rules = PromotionRules(min_dsr=0.0, margin=0.0)
    said = list(follow_study(study, folder, Promotion(study, folder, store, rules), _next_of(remaining)))
    assert list(remaining) == []
    assert said[0] == "The study toy has no finished trial yet."
    assert said[1].startswith("v1 of toy is deployed. Its deflated Sharpe ratio was not checked")
    assert said[2].startswith("v2 of toy is deployed.")
    assert "It beats v1 by more than 0 standard errors" in said[2]
    assert said[3] == "Trial 1 is already deployed, as v2 of toy."
    assert len(said) == 4


def test_watching_says_a_refusal_once_and_compares_once(toy, store, carts, monkeypatch):
    study, folder = toy
    add_trial(study, folder, carts[0], value=1.0)
    promoted(toy, store)
    add_trial(study, folder, carts[1], value=2.0)
    compared = []
    monkeypatch.setattr(
        promotion_module,
        "compare_on_validation",
        lambda *both: compared.append(both) or compare_on_validation(*both),
    )
    events = iter(
        [
            lambda: add_trial(study, folder, carts[0], value=0.0),
            lambda: (folder / STUDY_FILE).write_text('{"state": "finished"}'),
        ]
    )
    said = list(follow_study(study, folder, Promotion(study, folder, store, ANY), _next_of(events)))
    assert [sentence.partition(":")[0] for sentence in said] == ["Trial 1 is not promoted"]
    assert len(compared) == 1


# Names


def test_a_study_that_is_not_there_is_told_with_the_nearest(toy, tmp_path):
    with pytest.raises(UserError, match=r'There is no study toyy in .*Did you mean "toy"\?'):
        open_study("toyy", tmp_path / "studies", storage=None, say=print)
    assert not (tmp_path / "studies/toyy").exists()
    with pytest.raises(UserError, match="Start one with"):
        open_study("toy", tmp_path / "nowhere", storage=None, say=print)


@pytest.mark.parametrize("name", ["../toy", "", ".", "/etc", "a/b", ".."])
def test_a_study_outside_of_the_root_is_refused(toy, tmp_path, name):
    with pytest.raises(UserError, match="is not the name of a study"):
        open_study(name, tmp_path / "studies", storage=None, say=print)


@pytest.mark.parametrize("name", ["workers.log", "winner_test", "test_opened.jsonl"])
def test_a_study_with_links_in_its_folder_is_refused_since_it_would_be_written_elsewhere(toy, tmp_path, name):
    (toy[1] / name).symlink_to(tmp_path)
    with pytest.raises(UserError, match=f"{name} is a link to"):
        open_study("toy", tmp_path / "studies", storage=None, say=print)


def test_a_study_is_opened_by_name(toy, tmp_path):
    study, folder = open_study("toy", tmp_path / "studies", storage=None, say=print)
    assert (study.study_name, folder) == ("toy", toy[1])
    with pytest.raises(UserError, match="There is no study other in this storage"):
        open_study("other", tmp_path / "studies", storage=str(toy[1] / "journal.log"), say=print)


def test_what_was_rolled_back_may_be_promoted_again(toy, store, carts):
    study, folder = toy
    add_trial(study, folder, carts[1], value=1.0)
    promoted(toy, store)
    add_trial(study, folder, carts[0], value=2.0)
    rules = PromotionRules(min_dsr=0.0, margin=0.0)
    assert promoted(toy, store, rules).version.number == 2
    write_link(store.folder / "current", 1)
    assert promoted(toy, store, rules).version.number == 3


@pytest.mark.parametrize("how", ["name", "link of the folder", "link of the file"])
def test_a_winner_outside_of_the_study_is_not_promoted(toy, store, carts, tmp_path, how):
    study, folder = toy
    victim = tmp_path / "victim"
    shutil.copytree(carts[0], victim)
    names = {"name": ["../../victim"], "link of the folder": ["linked"], "link of the file": ["own"]}
    add_trial(study, folder, value=1.0, folders=names[how])
    (folder / "linked").symlink_to(victim)
    (folder / "own").mkdir()
    (folder / "own/best.pt").symlink_to(victim / "best.pt")
    with pytest.raises(UserError, match=r"which is not in it|is a link"):
        promoted(toy, store)
    assert store.versions() == []

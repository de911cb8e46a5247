from dataclasses import replace

import numpy as np
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.live.decisions.deployed_policy import ImpossibleAction, load_deployed_policy
from ml_pipeline.live.decisions.policy_runner import PolicyRunner
from ml_pipeline.models.rl.policies.policy import Policy
from ml_pipeline.runs.checkpoint import save_checkpoint
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runs.trained.deployed import PROMOTION_FILE
from ml_pipeline.trading.market.bar_set import bar_sets_of
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.market.timeframes import Calendar
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets

TRADING = TradingConfig(features=("log_return_1", "rsi_3"), window=2)
ONE, TWO = (synthetic_market(n_bars=80, n_symbols=n) for n in (1, 2))


def saved_policy(folder, market=ONE, trading=TRADING, *, change=lambda saved: None, run=None, **ppo):
    """The folder of an untrained policy, whose checkpoint was changed."""
    config = TrainConfig(trading=trading, ppo=PPOConfig(hidden_sizes=(4,), **ppo), run=run or RunConfig())
    task = TradingTask(trading, market=market)
    env = task.evaluation_env("all")
    if run is None:
        policy = Policy(env.observation_space, env.action_space, config.ppo)
    else:
        from ml_pipeline.runs.sb3.policy import SB3Policy, untrained_model

        spaces = env.observation_space, env.action_space
        policy = SB3Policy(untrained_model(run, config.ppo, *spaces, device="cpu"), run, *spaces)
    saved = {"config": flatten(config), "task": task.state(), "trainer": {"policy": policy.state_dict()}}
    change(saved)
    folder.mkdir(parents=True, exist_ok=True)
    save_checkpoint(folder / "best.pt", saved)
    return folder, task, policy


def ready(deployed, market=ONE):
    decider = PolicyRunner(deployed, market.symbols, market.timing)
    decider.observe_all(list(bar_sets_of(market)))
    return decider


def test_observations_and_actions_are_as_trained_and_the_rest_as_asked(tmp_path):
    trading = replace(TRADING, symbols=("SYNTH",), periods_per_year=100.0, sell_fee_bps=9.0, action_mode="trade")
    folder, *_ = saved_policy(tmp_path / "run", trading=trading)
    deployed = load_deployed_policy(folder, {"fee_bps": 3.0, "max_position": 0.5})
    assert (deployed.window, deployed.config.features, deployed.rules.action_mode) == (2, TRADING.features, "trade")
    assert (deployed.rules.fee_bps, deployed.rules.sell_fee_bps, deployed.rules.max_position) == (3.0, None, 0.5)
    assert (deployed.config.symbols, deployed.symbols) == ((), ("SYNTH",))
    assert deployed.calendar(Calendar("24/7", 365.0, "")).periods_per_year == 365.0  # 100 was of other data
    assert load_deployed_policy(folder, {"periods_per_year": 7.0}).calendar(ONE.calendar).periods_per_year == 7.0
    assert load_deployed_policy(folder).rules.sell_fee_bps == 9.0


def test_symbols_are_those_of_the_training_if_the_data_have_them_or_as_many_others(tmp_path):
    folder, *_ = saved_policy(tmp_path / "run", TWO)
    deployed = load_deployed_policy(folder)
    assert deployed.symbols_on(["X", "SYNTH2", "SYNTH1"]) == ("SYNTH1", "SYNTH2")
    assert deployed.symbols_on(["X", "Y"]) == ("X", "Y")
    assert load_deployed_policy(folder, {"symbols": ("Y", "X")}).symbols == ("Y", "X")
    with pytest.raises(UserError, match=r"trained on 2 symbols \(SYNTH1, SYNTH2\), but the data have 1 \(X\)"):
        deployed.symbols_on(["X"])
    with pytest.raises(UserError, match="but the data have 1"):
        PolicyRunner(deployed, ["X"], ONE.timing)


def test_a_deployed_model_is_read_through_current_once(tmp_path):
    folder, *_ = saved_policy(tmp_path / "models" / "eurusd" / "v3")
    (folder / PROMOTION_FILE).write_text("{}")
    (folder.parent / "current").symlink_to("v3")
    deployed = load_deployed_policy(folder.parent / "current")
    assert deployed.checkpoint == folder / "best.pt"
    assert (deployed.name, deployed.version) == ("eurusd", "v3")
    other, *_ = saved_policy(tmp_path / "run")
    assert (load_deployed_policy(other).name, load_deployed_policy(other).version) == ("run", None)


def test_what_cannot_trade_one_account_is_refused_in_a_sentence(tmp_path):
    each = TradingTask(
        per_symbol := replace(TRADING, per_symbol=True), accounts=traded_markets(per_symbol, {"A": ONE, "B": ONE})
    )
    folder, *_ = saved_policy(tmp_path / "each", change=lambda saved: saved.update(task=each.state()))
    with pytest.raises(UserError, match="trained with per_symbol, one account for each symbol"):
        load_deployed_policy(folder)
    folder, *_ = saved_policy(tmp_path / "pole", change=lambda saved: saved["config"].update(env_id="CartPole-v1"))
    with pytest.raises(UserError, match="is a policy for CartPole-v1, not for a market"):
        load_deployed_policy(folder)
    with pytest.raises(UserError, match=r"has no best\.pt"):
        load_deployed_policy(tmp_path)


def test_a_scaler_of_other_features_is_refused(tmp_path):
    folder, *_ = saved_policy(tmp_path / "run", TWO, replace(TRADING, features=("rsi_3", "time_of_day")))
    folder, *_ = saved_policy(tmp_path / "run", TWO, change=lambda saved: saved["task"].update(features=["rsi_3"]))
    decider = PolicyRunner(load_deployed_policy(folder), TWO.symbols, TWO.timing)
    with pytest.raises(UserError, match="The scaler has 4 features, but there are 2"):
        decider.observe(next(bar_sets_of(TWO)))


def test_a_checkpoint_holds_the_ranges_of_features_in_training_and_out_of_them_is_told(tmp_path):
    folder, task, _ = saved_policy(tmp_path / "run")
    deployed = load_deployed_policy(folder)
    train = task.account.split("train")
    seen = task.account.features.values[train.start - 1 : train.stop]
    np.testing.assert_array_equal(deployed.ranges.low, seen.min(axis=0))
    np.testing.assert_array_equal(deployed.ranges.high, seen.max(axis=0))
    jump = replace(ONE, close=np.where(np.arange(80)[:, None] == 79, 10 * ONE.close, ONE.close))
    (column, value, low, high), *_ = ready(deployed, jump).decide([0.0]).out_of_range
    assert column == "SYNTH:log_return_1"
    assert value == np.log(jump.close[-1, 0] / jump.close[-2, 0])
    assert (low, high) == (seen[:, 0].min(), seen[:, 0].max())
    inside = ready(deployed, ONE.bars(0, train.stop))
    assert inside.decide([0.0]).out_of_range == []


def test_of_an_older_checkpoint_what_its_scaler_does_not_clip_is_the_range(tmp_path):
    folder, task, _ = saved_policy(tmp_path / "run", change=lambda saved: saved["task"].pop("feature_ranges"))
    ranges = load_deployed_policy(folder).ranges
    np.testing.assert_array_equal(ranges.low, task.account.scaler.mean - 5 * task.account.scaler.deviation)
    assert not load_deployed_policy(folder).ranges.outside(task.account.scaler.mean, ("a", "b"))


@pytest.mark.parametrize("action_mode", ["discrete", "target_weights"])
@pytest.mark.parametrize("memory", ["none", "lstm"])
def test_a_policy_that_gives_nan_trades_nothing_and_forgets_it(tmp_path, action_mode, memory):
    folder, *_ = saved_policy(tmp_path / "run", trading=replace(TRADING, action_mode=action_mode), memory=memory)
    deployed = load_deployed_policy(folder)
    decider = ready(deployed)
    decider.decide([0.0])
    before = decider.state()
    weights = list(deployed.act.policy.network.parameters())
    kept = [weight.detach().clone() for weight in weights]
    for weight in weights:
        weight.data.fill_(np.nan)
    deployed.act.policy.refresh()
    with pytest.raises(ImpossibleAction, match="network returned NaN"):
        decider.decide([0.0])
    assert decider.state() == before
    for weight, value in zip(weights, kept, strict=True):
        weight.data.copy_(value)
    deployed.act.policy.refresh()
    assert np.isfinite(decider.decide([0.0]).weights).all()


def test_an_observation_that_is_nan_is_not_acted_on(tmp_path):
    decider = ready(load_deployed_policy(saved_policy(tmp_path / "run")[0]))
    with pytest.raises(ImpossibleAction, match="observation is not finite"):
        decider.decide([np.nan])


def test_an_action_beyond_a_limit_is_impossible_where_rules_refuse_it_and_changes_nothing(tmp_path):
    trading = replace(TRADING, action_mode="discrete")
    folder, *_ = saved_policy(tmp_path / "run", trading=trading, memory="gru")
    deployed = load_deployed_policy(folder, {"on_limit": "refuse", "max_position": 0.5})
    decider = ready(deployed)
    deployed.act._of_own = lambda policy, observation: (policy.parameters(observation[None], deployed.act._memory), 2)[
        1
    ]
    before = decider.state()
    with pytest.raises(ImpossibleAction, match=r"target of SYNTH is 1 of the equity, but max_position is 0\.5"):
        decider.decide([0.0])
    assert decider.state() == before


@pytest.mark.parametrize("algorithm", ["A2C", "DQN"])
def test_a_policy_of_stable_baselines3_acts_as_in_an_evaluation(tmp_path, algorithm):
    pytest.importorskip("stable_baselines3")
    folder, task, policy = saved_policy(tmp_path / "run", run=RunConfig(algorithm=algorithm))
    deployed = load_deployed_policy(folder)
    decider = ready(deployed)
    features = task.account._prepared.features
    observation = np.concatenate([features[-2], features[-1], [0.0]]).astype(np.float32)
    assert decider.observation([0.0]).tobytes() == observation.tobytes()
    assert decider.decide([0.0]).action == policy.act(observation)
    next(deployed.act.policy.model.policy.parameters()).data.fill_(np.nan)
    with pytest.raises(ImpossibleAction, match="weights are not finite"):
        decider.decide([0.0])


def test_nothing_is_decided_before_the_window_is_complete(tmp_path):
    decider = PolicyRunner(load_deployed_policy(saved_policy(tmp_path / "run")[0]), ONE.symbols, ONE.timing)
    bars = list(bar_sets_of(ONE))
    assert [decider.observe(each) for each in bars[:6]] == [False] * 4 + [True] * 2  # rsi_3 takes 4 bars, the window 2
    early = PolicyRunner(decider.policy, ONE.symbols, ONE.timing)
    early.observe(bars[0])
    with pytest.raises(UserError, match="After 1 bars the features of 2 bars are not complete"):
        early.decide([0.0])
    assert decider.waits_for == ""


def test_after_a_switch_of_models_choices_are_those_of_the_positions_held(tmp_path):
    folder, *_ = saved_policy(tmp_path / "run", TWO, replace(TRADING, action_mode="discrete"))
    deployed = load_deployed_policy(folder)
    decider = ready(deployed, TWO)
    decider.follow_holdings([3.0, -2.0])
    deployed.act._of_own = lambda policy, observation: np.array([2, 0])  # long, short
    assert decider.decide([0.5, -0.5]).may_trade == [False, False]
    deployed.act._of_own = lambda policy, observation: np.array([2, 1])  # long, flat
    assert decider.decide([0.5, -0.5]).may_trade == [False, True]


def test_a_short_that_the_new_model_cannot_want_is_closed_by_any_choice(tmp_path):
    folder, *_ = saved_policy(tmp_path / "run", trading=replace(TRADING, action_mode="discrete", allow_short=False))
    decider = ready(load_deployed_policy(folder))
    decider.follow_holdings([-2.0])
    decision = decider.decide([-0.5])
    assert decision.may_trade == [True]
    assert decision.weights[0] in {0.0, 1.0}


@pytest.mark.parametrize("state", [{}, {"choices": [1, 1], "before": [1], "memory": None}, {"choices": 3}])
def test_a_state_of_something_else_is_refused(tmp_path, state):
    decider = ready(load_deployed_policy(saved_policy(tmp_path / "run")[0]))
    with pytest.raises(UserError, match="not the state of a policy runner"):
        decider.set_state(state)
    with pytest.raises(UserError, match="policy with another recurrent state"):
        decider.set_state({"choices": [1], "before": [1], "memory": [0.5]})


def test_choices_are_taken_back_once(tmp_path):
    trading = replace(TRADING, action_mode="discrete", limit_bps=3.0)
    folder, *_ = saved_policy(tmp_path / "run", TWO, trading)
    deployed = load_deployed_policy(folder)
    decider = ready(deployed, TWO)
    for wanted in ([2, 0], [0, 2]):
        deployed.act._of_own = lambda policy, observation, wanted=wanted: np.array(wanted)
        assert decider.decide([0.0, 0.0]).may_trade == [True, True]
        decider.note_settled(filled=[1.0, 0.0], exited=[0.0, 0.0], holdings=[1.0, 0.0])
    assert decider.state()["choices"] == [0, 1]  # what was not filled is as before: flat
    decider.note_settled(filled=[0.0, 0.0], exited=[0.0, 0.0], holdings=[1.0, 0.0])  # nothing was decided
    assert decider.state()["choices"] == [0, 1]
    decider.note_settled(["SYNTH1"], filled=[0.0, 0.0], holdings=[1.0, 0.0])
    assert decider.state()["choices"] == [0, 1]
    decider.note_settled(filled=[1.0, 0.0], exited=[-1.0, 0.0], holdings=[0.0, 0.0])
    assert decider.state()["choices"] == [1, 1]  # stopped


def test_the_choice_of_an_order_that_waits_is_taken_back_when_it_lapses(tmp_path):
    folder, *_ = saved_policy(tmp_path / "run", TWO, replace(TRADING, action_mode="discrete"))
    deployed = load_deployed_policy(folder)
    decider = ready(deployed, TWO)
    deployed.act._of_own = lambda policy, observation: np.array([2, 0])
    decider.decide([0.0, 0.0])
    decider.note_settled(filled=[0.0, -1.0], holdings=[0.0, -1.0], waiting=["SYNTH1"])
    assert decider.state()["choices"] == [2, 0]
    decider.note_settled(["SYNTH1"], filled=[1.0, 1.0], holdings=[0.0, -1.0])  # in a bar without a decision
    assert decider.state()["choices"] == [1, 0]


def test_symbols_other_than_those_trained_on_are_told(tmp_path):
    deployed = load_deployed_policy(saved_policy(tmp_path / "run", market=TWO)[0])
    a, b = TWO.symbols

    assert deployed.notices_on((b, a)) == ()
    assert deployed.notices_on(("X", a)) == (f"the policy was trained on {a}, {b}, and trades X, {a} here",)

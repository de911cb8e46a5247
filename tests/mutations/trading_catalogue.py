"""Mistakes that are easily made in trading environments, as `catalogue` has those of PPO."""

from tests.mutations.catalogue import Mutation

TRADING = "ml_pipeline/trading"
TESTS = "tests/trading"

TRADING_MUTATIONS = (
    Mutation(
        "sales pay no fee",
        f"{TRADING}/orders.py",
        "cost = terms.fixed_fee - value * (terms.sell_rate + half_spread)",
        "cost = terms.fixed_fee - value * half_spread",
        f"{TESTS}/test_execution.py::test_a_sale_pays_its_costs_out_of_the_proceeds",
    ),
    Mutation(
        "fees are not paid out of cash",
        f"{TRADING}/orders.py",
        "return where(is_order, bought, 0.0), value + cost, cost",
        "return where(is_order, bought, 0.0), value, cost",
        f"{TESTS}/test_execution.py::test_cash_never_goes_below_zero_and_every_cent_is_accounted_for",
    ),
    Mutation(
        "proceeds of sales cannot be spent in the same bar",
        f"{TRADING}/execution.py",
        "            cash = cash + proceeds\n            costs = costs + cost\n",
        "            spent = spent - proceeds\n            costs = costs + cost\n",
        f"{TESTS}/test_execution.py::test_sells_pay_for_buys_wherever_they_stand_in_the_row",
    ),
    Mutation(
        "buys are not scaled to the cash there is",
        f"{TRADING}/orders.py",
        "return available / greatest(greatest(needed, available), _TINY)",
        "return available / greatest(available, _TINY)",
        f"{TESTS}/test_execution.py::test_buys_that_exceed_the_cash_shrink_alike",
    ),
    Mutation(
        "a called account goes on",
        f"{TRADING}/execution.py",
        "return cash - paid, costs + paid, cash - paid + worth, fee > cash\n",
        "return cash - paid, costs + paid, cash - paid + worth, fee < 0.0\n",
        f"{TESTS}/test_execution.py::"
        "test_a_borrowing_fee_that_finds_too_little_cash_takes_what_there_is_and_calls_the_account",
    ),
    Mutation(
        "three lots of 0.1 are not 0.3",
        f"{TRADING}/orders.py",
        "_LOT_ROUNDING = 1e-9",
        "_LOT_ROUNDING = 0.0",
        f"{TESTS}/test_execution.py::test_whole_lots_despite_rounding",
    ),
    Mutation(
        "orders are filled at the close they were decided on",
        f"{TRADING}/prepared_market.py",
        'if fill_at == "close":',
        "if True:",
        f"{TESTS}/test_fast_env.py::test_an_asset_without_a_bar_keeps_what_it_has",
    ),
    Mutation(
        "the observation is a bar ahead",
        f"{TRADING}/fast_env.py",
        "stop = (self._bar + 1) * self._row_size",
        "stop = (min(self._bar + 1, self._last_bar) + 1) * self._row_size",
        f"{TESTS}/test_fast_env.py::test_observations_hold_the_window_oldest_first",
    ),
    Mutation(
        "the scaler has seen the test split",
        f"{TRADING}/task.py",
        "rows = features.values[train.start - config.window + 1 : train.stop]",
        "rows = features.values[train.start - config.window + 1 :]",
        f"{TESTS}/test_task.py::test_scaled_features_of_the_training_split_have_mean_0_and_deviation_1",
    ),
)

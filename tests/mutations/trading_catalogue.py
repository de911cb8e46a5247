"""Mistakes that are easily made in trading environments."""

from tests.mutations.mutation import TRADING, TRADING_TESTS, Mutation

MARKETS = (
    Mutation(
        "prices are filled backwards",
        f"{TRADING}/market/data.py",
        "    return np.take_along_axis(values, np.maximum(latest, 0), axis=0)",
        "    first = np.argmax(known, axis=0)\n"
        "    return np.take_along_axis(values, np.where(latest < 0, first, latest), axis=0)",
        f"{TRADING_TESTS}/market/test_data.py::"
        "test_what_is_missing_is_masked_and_valued_at_the_last_close_never_filled_backwards",
        "T1b",
    ),
    Mutation(
        "prices are filled across assets",
        f"{TRADING}/market/data.py",
        "latest = np.maximum.accumulate(rows, axis=0)",
        "latest = np.maximum.accumulate(np.broadcast_to(rows.max(axis=1, keepdims=True), rows.shape), axis=0)",
        f"{TRADING_TESTS}/market/test_data.py::"
        "test_what_is_missing_is_masked_and_valued_at_the_last_close_never_filled_backwards",
        "T1b",
    ),
    Mutation(
        "a bar that is missing can be traded",
        f"{TRADING}/market/data.py",
        "        tradable=tradable,\n",
        "        tradable=np.ones_like(tradable),\n",
        f"{TRADING_TESTS}/market/test_data.py::"
        "test_what_is_missing_is_masked_and_valued_at_the_last_close_never_filled_backwards",
        "T3",
    ),
    Mutation(
        "bars before the last listing are dropped",
        f"{TRADING}/market/files.py",
        "    times = np.unique(np.concatenate([bars.times for bars in read]))\n",
        "    from dataclasses import replace\n\n    begin = max(bars.times[0] for bars in read)\n"
        "    times = np.unique(np.concatenate([bars.times for bars in read]))\n"
        "    times = times[times >= begin]\n"
        "    read = [replace(bars, times=bars.times[bars.times >= begin], fields={name: "
        "values[bars.times >= begin] for name, values in bars.fields.items()}) for bars in read]\n",
        f"{TRADING_TESTS}/market/test_files.py::test_a_wide_file_has_the_symbols_side_by_side",
        "T3",
    ),
    Mutation(
        "an order is filled in an asset's first bar",
        f"{TRADING}/envs/prepared_market.py",
        "self.tradable[1:] & (self.close[:-1] > 0)",
        "self.tradable[1:]",
        f"{TRADING_TESTS}/envs/test_fast.py::test_an_asset_without_a_bar_keeps_what_it_has",
        "T1b",
    ),
    Mutation(
        "a feature is a bar ahead",
        f"{TRADING}/features/indicators.py",
        "latest = np.cumsum(own) - 1",
        "latest = np.minimum(np.cumsum(own), own.sum() - 1)",
        f"{TRADING_TESTS}/features/test_indicators.py::test_changing_the_future_leaves_every_feature_up_to_now_bit_for_bit",
        "T1c",
    ),
    Mutation(
        "a feature is scaled by all of its values",
        f"{TRADING}/features/indicators.py",
        "return _after(span, sliding_window_view(returns, span).std(axis=-1))",
        "return _after(span, sliding_window_view(returns, span).std(axis=-1) / returns.std())",
        f"{TRADING_TESTS}/features/test_indicators.py::test_changing_the_future_leaves_every_feature_up_to_now_bit_for_bit",
        "T1c",
    ),
    Mutation(
        "nobody looks whether a feature sees ahead",
        f"{TRADING}/features/leaks.py",
        "if not same.all():",
        "if False:",
        f"{TRADING_TESTS}/features/test_leaks.py::test_training_refuses_a_function_that_sees_ahead_and_names_it",
        "T1c",
    ),
    Mutation(
        "the scaler has seen the test split",
        f"{TRADING}/task.py",
        "rows = features.values[train.start - config.window + 1 : train.stop]",
        "rows = features.values[train.start - config.window + 1 :]",
        f"{TRADING_TESTS}/test_task.py::test_scaled_features_of_the_training_split_have_mean_0_and_deviation_1",
        "T2a",
    ),
    Mutation(
        "a checkpoint's scaler is fitted anew",
        f"{TRADING}/task.py",
        "return cls(config, seed, market=market, scaler=scaler)",
        "return cls(config, seed, market=market)",
        f"{TRADING_TESTS}/test_task.py::test_a_checkpoint_judged_on_other_data_keeps_scaler_and_shape",
        "T2b",
    ),
    Mutation(
        "the best policy is chosen on the test split",
        f"{TRADING}/task.py",
        'self.evaluation_env("validation")',
        'self.evaluation_env("test")',
        f"{TRADING_TESTS}/test_task.py::test_the_best_policy_is_chosen_without_the_test_split",
        "T2c",
    ),
    Mutation(
        "training environments hold the bars of the test",
        f"{TRADING}/envs/prepared_market.py",
        "rows = slice(start, stop)",
        "rows = slice(start, None)",
        f"{TRADING_TESTS}/test_task.py::test_training_sees_its_own_split_and_nothing_after",
        "T2c",
    ),
    Mutation(
        "every worker is sent the whole market",
        f"{TRADING}/task.py",
        "market.mapped() if market.n_bytes > _WORTH_MAPPING else market",
        "market",
        f"{TRADING_TESTS}/test_task.py::test_a_large_market_is_mapped_and_goes_with_its_process",
        "V11",
    ),
)

ACCOUNTS = (
    Mutation(
        "sales pay no fee",
        f"{TRADING}/accounts/orders.py",
        "cost = terms.fixed_fee - value * (terms.sell_rate + half_spread)",
        "cost = terms.fixed_fee - value * half_spread",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_a_sale_pays_its_costs_out_of_the_proceeds",
        "T4c",
    ),
    Mutation(
        "fees are not paid out of cash",
        f"{TRADING}/accounts/orders.py",
        "return where(is_order, bought, 0.0), value + cost, cost",
        "return where(is_order, bought, 0.0), value, cost",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_cash_never_goes_below_zero_and_every_cent_is_accounted_for",
        "T4b",
    ),
    Mutation(
        "fees are paid back",
        f"{TRADING}/accounts/orders.py",
        "cost = where(is_order, value * (terms.buy_rate + half_spread) + terms.fixed_fee, 0.0)",
        "cost = where(is_order, value * (half_spread - terms.buy_rate) + terms.fixed_fee, 0.0)",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_higher_cost_never_makes_the_same_orders_worth_more",
        "T4c",
    ),
    Mutation(
        "rewards are those before fees",
        f"{TRADING}/accounts/execution.py",
        "return cash - paid, costs + paid, cash - paid + worth, fee > cash\n",
        "return cash - paid, costs + paid, cash - paid + worth + costs, fee > cash\n",
        f"{TRADING_TESTS}/envs/test_fast.py::test_one_asset_by_hand",
        "T4a",
    ),
    Mutation(
        "proceeds of sales cannot be spent in the same bar",
        f"{TRADING}/accounts/execution.py",
        "            cash = cash + proceeds\n            costs = costs + cost\n",
        "            spent = spent - proceeds\n            costs = costs + cost\n",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_sells_pay_for_buys_wherever_they_stand_in_the_row",
    ),
    Mutation(
        "buys are not scaled to the cash there is",
        f"{TRADING}/accounts/orders.py",
        "return available / greatest(greatest(needed, available), _TINY)",
        "return available / greatest(available, _TINY)",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_buys_that_exceed_the_cash_shrink_alike",
    ),
    Mutation(
        "a margin call is ignored",
        f"{TRADING}/accounts/execution.py",
        "return cash - paid, costs + paid, cash - paid + worth, fee > cash\n",
        "return cash - paid, costs + paid, cash - paid + worth, fee < 0.0\n",
        f"{TRADING_TESTS}/accounts/test_execution.py::"
        "test_a_borrowing_fee_beyond_the_cash_takes_all_of_it_and_is_a_margin_call",
    ),
    Mutation(
        "three lots of 0.1 are not 0.3",
        f"{TRADING}/accounts/orders.py",
        "_LOT_ROUNDING = 1e-9",
        "_LOT_ROUNDING = 0.0",
        f"{TRADING_TESTS}/accounts/test_execution.py::test_whole_lots_despite_rounding",
        "T5",
    ),
)

EPISODES = (
    Mutation(
        "orders are filled at the close they were decided on",
        f"{TRADING}/envs/prepared_market.py",
        'if fill_at == "close":',
        "if True:",
        f"{TRADING_TESTS}/envs/test_fast.py::test_an_asset_without_a_bar_keeps_what_it_has",
        "T1a",
    ),
    Mutation(
        "the observation is a bar ahead",
        f"{TRADING}/envs/fast.py",
        "stop = (self._bar + 1) * self._row_size",
        "stop = (min(self._bar + 1, self._last_bar) + 1) * self._row_size",
        f"{TRADING_TESTS}/envs/test_fast.py::test_observations_hold_the_window_oldest_first",
        "T1c",
    ),
    Mutation(
        "many environments observe a bar ahead",
        f"{TRADING}/accounts/array_ops.py",
        "features.take(rows - (window - 1 - i), axis=0)",
        'features.take(rows + 1 - (window - 1 - i), axis=0, mode="clip")',
        f"{TRADING_TESTS}/envs/test_agreement.py::test_every_environment_equals_a_reference_written_from_the_rules",
        "T1c",
    ),
    Mutation(
        "compiled: many environments observe a bar ahead",
        f"{TRADING}/accounts/compiled.py",
        "np.uint64((rows[n] + 1 - window) * n_features)",
        "np.uint64((min(rows[n] + 1, len(tables.features) - 1) + 1 - window) * n_features)",
        f"{TRADING_TESTS}/envs/test_agreement.py::test_machine_code_equals_plain_python_to_the_last_digit[discrete]",
        "T1c",
    ),
    Mutation(
        "episodes begin where the global generator says",
        f"{TRADING}/envs/fast.py",
        "int(self.np_random.integers(start, latest + 1))",
        "int(np.random.randint(start, latest + 1))",
        f"{TRADING_TESTS}/envs/test_own_generator.py::test_global_generators_are_neither_used_nor_moved[fast]",
        "T8",
    ),
    Mutation(
        "many environments draw from the global generator",
        f"{TRADING}/envs/batched.py",
        "self._xp.seed(self.np_random)",
        "self._xp.seed(np.random.default_rng(np.random.randint(2**31)))",
        f"{TRADING_TESTS}/envs/test_own_generator.py::test_global_generators_are_neither_used_nor_moved[batched]",
        "T8",
    ),
    Mutation(
        "actions of one asset do nothing",
        f"{TRADING}/envs/actions.py",
        "        if can and choice != self._choices[0]:",
        "        if False:",
        f"{TRADING_TESTS}/envs/test_fast.py::test_one_asset_by_hand",
        "T9",
    ),
    Mutation(
        "actions of several assets are turned around",
        f"{TRADING}/envs/actions.py",
        "numbers = action.tolist() if isinstance(action, np.ndarray) else list(action)",
        "numbers = sorted(action.tolist() if isinstance(action, np.ndarray) else list(action))",
        f"{TRADING_TESTS}/envs/test_permuted_actions.py::test_permuting_the_actions_permutes_the_outcomes[fast]",
        "T9",
    ),
    Mutation(
        "many environments ignore their actions",
        f"{TRADING}/envs/batched.py",
        "given = xp.array(actions).reshape(self.num_envs, -1).T",
        "given = xp.array(np.zeros_like(actions)).reshape(self.num_envs, -1).T",
        f"{TRADING_TESTS}/envs/test_permuted_actions.py::test_permuting_the_actions_permutes_the_outcomes[batched]",
        "T9",
    ),
)

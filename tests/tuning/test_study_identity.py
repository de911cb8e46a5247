"""A study is joined only by what it was begun with; what differs is named."""

import dataclasses
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import optuna
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.tasks import describe_environment, describe_task
from ml_pipeline.trading.market.data import market_fingerprint
from ml_pipeline.trading.market.synthetic import synthetic_market
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.trading.traded_market import traded_markets
from ml_pipeline.tuning.search import space as searched
from ml_pipeline.tuning.search.space import read_space
from ml_pipeline.tuning.study_files import FEATURE_WARNINGS, feature_warnings
from ml_pipeline.tuning.study_identity import differences, join_study, study_identity
from tests.tuning.small_studies import small_market

SPACE = {"learning_rate": {"log": [1e-5, 1e-2]}, "activation": {"choice": ["tanh", "relu"]}, "gamma": {"log": [0.9, 1]}}
OBJECTIVE = {"score": "validation", "seeds_per_trial": 1, "folds": 0}
CARTPOLE = GymTask("CartPole-v1", eval_episodes=1, seed=0)


def _identity(**changed: Any) -> dict[str, Any]:
    usual: dict[str, Any] = {
        "space": SPACE,
        "objective": OBJECTIVE,
        "task": CARTPOLE,
        "base": {"n_envs": 2},
        "version": "1.0",
    }
    return study_identity(**{**usual, **changed})


def test_the_same_study_is_joined_without_a_word() -> None:
    study = optuna.create_study()
    assert join_study(study, _identity()) == []
    assert join_study(study, _identity()) == []
    assert study.user_attrs["identity"]["package version"] == "1.0"


@pytest.mark.parametrize(
    ("changed", "difference"),
    [
        (
            {"space": {**SPACE, "learning_rate": {"log": [1e-4, 1e-2]}}},
            "learning_rate: log 1e-05..0.01 there, log 0.0001..0.01 here",
        ),
        (
            {"space": {**SPACE, "activation": {"choice": ["tanh"]}}},
            "activation: choice tanh, relu there, choice tanh here",
        ),
        ({"space": {**SPACE, "n_steps": {"choice": [64]}}}, "n_steps: absent there, choice 64 here"),
        ({"space": {**SPACE, "gamma": 0.9}}, "gamma: log 0.9..1 there, 0.9 here"),
        (
            {"space": {**SPACE, "gamma": {"int": [1, 2], "log": True}}},
            "gamma: log 0.9..1 there, int 1..2 log here",
        ),
        ({"objective": {**OBJECTIVE, "seeds_per_trial": 3}}, "seeds_per_trial: 1 there, 3 here"),
        (
            {"task": GymTask("Acrobot-v1", eval_episodes=1, seed=0)},
            "environment: CartPole-v1 there, Acrobot-v1 here",
        ),
        ({"base": {"n_envs": 4}}, "n_envs: 2 there, 4 here"),
        ({"base": {"n_envs": 2, "window": 3}}, "window: its default there, 3 here"),
    ],
)
def test_another_study_is_refused_and_what_differs_is_named(changed: dict[str, Any], difference: str) -> None:
    study = optuna.create_study(study_name="mine")
    join_study(study, _identity())
    with pytest.raises(UserError) as refused:
        join_study(study, _identity(**changed))
    assert str(refused.value).startswith("The study mine was started differently: ")
    assert difference in str(refused.value)
    assert str(refused.value).endswith("Use the same again, or choose another --study-name.")


def test_a_space_as_it_is_read_is_the_same_space(tmp_path: Path) -> None:
    text = (Path(searched.__file__).parent / "ppo.yaml").read_text()
    (tmp_path / "mine.yaml").write_text(text)
    study = optuna.create_study()
    join_study(study, _identity(space=read_space("ppo").described()))
    assert join_study(study, _identity(space=read_space(tmp_path / "mine.yaml").described())) == []
    (tmp_path / "mine.yaml").write_text(text.replace("int: [1, 20]", "int: [1, 30]"))
    with pytest.raises(UserError, match=r"n_epochs: int 1\.\.20 log there, int 1\.\.30 log here"):
        join_study(study, _identity(space=read_space(tmp_path / "mine.yaml").described()))


@pytest.mark.parametrize(
    "more",
    [
        {"device": "cpu"},
        {"n_workers": 0},
        {"checkpoint_dir": Path("elsewhere")},
        {"parallel_start_method": "spawn"},
        {"tensorboard": True},
        {"data": Path("another/disk/5m")},
        {"gamma": 0.99},  # as by default
    ],
    ids=str,
)
def test_settings_that_change_no_result_may_differ(more: dict[str, Any]) -> None:
    study = optuna.create_study()
    join_study(study, _identity())
    assert join_study(study, _identity(base={"n_envs": 2, **more})) == []


def test_another_version_of_the_program_is_a_notice() -> None:
    study = optuna.create_study(study_name="mine")
    join_study(study, _identity())
    (notice,) = join_study(study, _identity(version="99.0"))
    assert notice.startswith("The study mine was started with version 1.0 of this program, and this is 99.0")


def test_of_many_differences_the_first_are_named() -> None:
    there = {"space": {f"setting_{i}": 1 for i in range(20)}}
    study = optuna.create_study()
    join_study(study, there)
    with pytest.raises(UserError, match=r"setting_5: 1 there, absent here; and 14 more\. Use the same"):
        join_study(study, {"space": {}})
    assert len(differences(there, {"space": {}})) == 20


def test_two_that_begin_a_study_at_once_cannot_both_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    study = optuna.create_study()
    set_attribute = study.set_user_attr

    def slow(name: str, value: Any) -> None:
        """The other process stores its identity just after this one."""
        set_attribute(name, value)
        set_attribute(name, _identity(base={"n_envs": 4}))

    monkeypatch.setattr(study, "set_user_attr", slow)
    with pytest.raises(UserError, match="n_envs: 4 there, 2 here"):
        join_study(study, _identity())


def _market() -> Any:
    return dataclasses.replace(synthetic_market(n_bars=300, n_symbols=2), symbols=("AAA", "BBB"))


@pytest.mark.parametrize("name", ["open", "high", "low", "close", "volume"])
def test_markets_that_differ_in_one_number_have_other_fingerprints(name: str) -> None:
    market = _market()
    values = getattr(market, name).copy()
    values[150, 1] = np.nextafter(values[150, 1], np.inf)
    assert market_fingerprint(dataclasses.replace(market, **{name: values})) != market_fingerprint(market)


def test_times_columns_quotes_and_symbols_are_part_of_the_fingerprint() -> None:
    market = _market()
    changed = [
        dataclasses.replace(market, times=market.times + np.timedelta64(1, "m")),
        dataclasses.replace(market, columns={"sentiment": np.zeros((300, 2))}),
        dataclasses.replace(market, columns={"sentiment": np.ones((300, 2))}),
        dataclasses.replace(market, half_spread=np.zeros((300, 2))),
        dataclasses.replace(market, symbols=("AAA", "CCC")),
    ]
    assert len({market_fingerprint(each) for each in [market, *changed]}) == 1 + len(changed)
    again = dataclasses.replace(_market(), source="/another/path", notices=("said",))
    assert market_fingerprint(again) == market_fingerprint(market)


def test_two_machines_whose_data_differ_are_refused() -> None:
    market = _market()
    config = TradingConfig(features=("log_return_1",))
    there, here = (
        TradingTask(config, market=each) for each in (market, dataclasses.replace(market, close=market.close * 1.001))
    )
    study = optuna.create_study()
    join_study(study, _identity(task=there))
    assert join_study(study, _identity(task=TradingTask(config, market=_market()))) == []
    with pytest.raises(UserError, match=r"data: [0-9a-f]{32} there, [0-9a-f]{32} here"):
        join_study(study, _identity(task=here))


def test_of_several_accounts_the_symbol_whose_data_differ_is_named() -> None:
    config = TradingConfig(features=("log_return_1",), per_symbol=True)
    markets = {symbol: _market().select([symbol]) for symbol in ("AAA", "BBB")}
    other = {**markets, "BBB": dataclasses.replace(markets["BBB"], volume=markets["BBB"].volume + 1)}
    one, two = (describe_task(TradingTask(config, accounts=traded_markets(config, each))) for each in (markets, other))
    (difference,) = differences({"task": one}, {"task": two})
    assert difference.startswith("data BBB: ")


def test_the_code_of_an_environment_is_its_packages_version_or_its_modules_fingerprint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert describe_environment("CartPole-v1") == f"gymnasium {gymnasium.__version__}"
    monkeypatch.syspath_prepend(tmp_path)
    gymnasium.register("OfIdentity-v0", entry_point="my_own_env:Env")
    try:
        seen = set()
        for code in ("x = 1\n", "x = 2\n", "x = 1\n"):
            (tmp_path / "my_own_env.py").write_text(code)
            seen.add(describe_environment("OfIdentity-v0"))
        assert len(seen) == 2
        assert all(each.startswith("my_own_env, ") for each in seen)
        (tmp_path / "registers_it.py").write_text(
            "import gymnasium\ngymnasium.register('Later-v0', 'my_own_env:Env')\n"
        )
        assert describe_environment("registers_it:Later-v0") in seen  # although nobody has made it yet
    finally:
        gymnasium.registry.pop("Later-v0", None)
        sys.modules.pop("registers_it", None)
        del gymnasium.registry["OfIdentity-v0"]
        sys.modules.pop("my_own_env", None)


def test_the_number_of_processes_is_no_part_of_a_study_but_how_they_update_statistics_is() -> None:
    two = _identity(base={"n_envs": 2, "n_processes": 2})
    assert differences(two, _identity(base={"n_envs": 2, "normalize_update": "rollout"})) == []
    assert differences(two, _identity()) == ["normalize_update: rollout there, its default here"]


def test_warnings_about_features_are_kept_with_the_study_and_make_it_no_other_one(tmp_path: Path) -> None:
    data = small_market(tmp_path / "bars.csv", n=1500, hint=0.36)
    trading = TradingConfig(data=data, features=("log_return_1", "feature_hint"))
    own = study_identity(space={}, objective={}, task=TradingTask(trading), base={"data": data}, version="1.0")
    assert "feature_hint has a rank correlation" in own[FEATURE_WARNINGS][0]
    study = optuna.create_study()
    join_study(study, {**own, FEATURE_WARNINGS: []})  # of a version with fewer tests
    assert feature_warnings(study) == ()
    join_study(study, own)
    join_study(study, {**own, FEATURE_WARNINGS: ["another"]})
    assert feature_warnings(study) == (*own[FEATURE_WARNINGS], "another")


@pytest.mark.parametrize("told", [None, "text", [3, None], {"a": 1}, ["x" * 10_000]])
def test_what_a_storage_holds_in_place_of_warnings_is_no_warning_or_short(told: object) -> None:
    study = optuna.create_study()
    study.set_user_attr("identity", {FEATURE_WARNINGS: told})
    assert all(len(each) <= 500 for each in feature_warnings(study))
    study.set_user_attr("identity", told)
    assert feature_warnings(study) == ()

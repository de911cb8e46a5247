"""Real money is traded only where a flag, a line in the configuration and a person say so."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.connection.alpaca_config import AlpacaConfig
from ml_pipeline.live.alpaca.connection.real_money import confirm_real_money

ACCOUNT = "123456789"
REAL = AlpacaConfig(live=True, real_money=True)


def never(question):
    raise AssertionError("nobody is to be asked")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (AlpacaConfig(live=True), "--live trades real money, but the configuration does not allow it"),
        (AlpacaConfig(real_money=True), "real_money: true, but --live is not given"),
    ],
)
def test_the_flag_and_the_line_need_each_other(config, sentence):
    with pytest.raises(UserError, match=sentence):
        confirm_real_money(config, ACCOUNT, never)


def test_without_a_terminal_no_real_money_is_traded():
    with pytest.raises(UserError, match="there is none"):
        confirm_real_money(REAL, ACCOUNT, None)


@pytest.mark.parametrize("typed", ["", "yes", "12345678", "1234567890"])
def test_what_is_not_the_accounts_number_is_refused(typed):
    with pytest.raises(UserError, match="not the account's number"):
        confirm_real_money(REAL, ACCOUNT, lambda question: typed)


def test_a_person_types_the_accounts_number():
    asked = []
    confirm_real_money(REAL, ACCOUNT, lambda question: asked.append(question) or f" {ACCOUNT}\n")
    assert "REAL MONEY" in asked[0]
    assert ACCOUNT in asked[0]


def test_on_paper_nobody_is_asked():
    confirm_real_money(AlpacaConfig(), ACCOUNT, never)

"""Settings that cannot be used are refused, and real money takes all three locks."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.config import AlpacaConfig, confirm_real_money


def test_paper_is_the_default():
    config = AlpacaConfig()
    assert (config.live, config.real_money) == (False, False)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"alpaca_data_feed": "sipp"}, 'alpaca_data_feed must be one of iex, sip, but got "sipp". Did you mean "sip"?'),
        ({"alpaca_timeout_s": 0}, "alpaca_timeout_s must be above 0 and finite, but got 0; the usual one is 5."),
        ({"alpaca_data_url": "data.example"}, "alpaca_data_url must be an address such as https://host"),
        ({"alpaca_data_url": "ws://127.0.0.1"}, "alpaca_data_url must be an address such as https://host"),
        ({"alpaca_data_url": "http://data.example"}, "alpaca_data_url must begin with https:// unless"),
        ({"alpaca_data_stream_url": "ws://data.example"}, "alpaca_data_stream_url must begin with wss:// unless"),
        (
            {"alpaca_data_url": "https://me:word@data.example"},
            "alpaca_data_url must not contain a user name or password",
        ),
        ({"alpaca_url": "http://127.0.0.1:1"}, "alpaca_stream_url names no stream"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_sentence(settings, sentence):
    with pytest.raises(UserError) as refused:
        AlpacaConfig(**settings)
    assert sentence in str(refused.value)
    assert "word" not in str(refused.value).replace("password", "")


def test_a_server_on_this_machine_needs_no_encryption():
    AlpacaConfig(alpaca_url="http://127.0.0.1:8000", alpaca_stream_url="ws://127.0.0.1:8000/stream")


ACCOUNT = "123456789"
REAL = AlpacaConfig(live=True, real_money=True)


def never(question):
    raise AssertionError("nobody is to be asked")


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (AlpacaConfig(live=True), "--live trades real money, but the settings do not allow it"),
        (AlpacaConfig(real_money=True), "real_money: true, but --live is not given"),
    ],
)
def test_the_flag_and_the_line_need_each_other(config, sentence):
    with pytest.raises(UserError, match=sentence):
        confirm_real_money(config, ACCOUNT, never)


def test_without_a_terminal_no_real_money_is_traded():
    with pytest.raises(UserError, match="there is no terminal"):
        confirm_real_money(REAL, ACCOUNT, None)


@pytest.mark.parametrize("typed", ["", "yes", "12345678", "1234567890"])
def test_what_is_not_the_accounts_number_is_refused(typed):
    with pytest.raises(UserError, match="not the account number"):
        confirm_real_money(REAL, ACCOUNT, lambda question: typed)


def test_a_person_types_the_accounts_number():
    asked = []
    confirm_real_money(REAL, ACCOUNT, lambda question: asked.append(question) or f" {ACCOUNT}\n")
    assert "REAL MONEY" in asked[0]
    assert ACCOUNT in asked[0]


def test_on_paper_nobody_is_asked():
    confirm_real_money(AlpacaConfig(), ACCOUNT, never)

"""The settings of Alpaca: paper by default, and no address over which keys would travel in the clear."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.connection.alpaca_config import AlpacaConfig


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
        ({"alpaca_data_url": "https://me:word@data.example"}, "alpaca_data_url must hold no user name or password"),
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

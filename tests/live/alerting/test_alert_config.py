"""The addresses of alerts and of the dead man's switch come from the environment or the keyring, and are never told."""

import sys
from types import ModuleType

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alerting.alert_config import AlertConfig
from ml_pipeline.live.config import parse_paper_trade

URL = "https://hc-ping.com/SECRET"


@pytest.mark.parametrize(("name", "value"), [("alert_url_from", "file"), ("alert_every_minutes", -1.0)])
def test_what_cannot_be_meant_is_refused_by_name(name, value):
    with pytest.raises(UserError, match=name):
        AlertConfig(**{name: value})


def test_the_environment_names_the_addresses():
    assert AlertConfig().urls({"ML_PIPELINE_ALERT_URL": "slack://SECRET "}) == "slack://SECRET"
    assert AlertConfig().urls({}) is None
    assert AlertConfig().urls({"ML_PIPELINE_ALERT_URL": ""}) is None
    assert AlertConfig().switch_url({"ML_PIPELINE_HEARTBEAT_URL": URL}) == URL
    assert AlertConfig().switch_url({"ML_PIPELINE_HEARTBEAT_URL": ""}) is None
    assert AlertConfig(heartbeat_url=URL).switch_url({"ML_PIPELINE_HEARTBEAT_URL": "https://other"}) == URL


@pytest.mark.parametrize(
    "url", ["hc-ping.com/SECRET", "ftp://x/SECRET", "https:///SECRET", "http://x:99999/SECRET", "http://[x/SECRET"]
)
def test_an_address_that_cannot_be_one_is_refused_without_showing_it(url):
    with pytest.raises(UserError, match="heartbeat_url must begin with https://") as refused:
        AlertConfig(heartbeat_url=url)
    assert "SECRET" not in str(refused.value)
    with pytest.raises(UserError, match="ML_PIPELINE_HEARTBEAT_URL must begin with https://") as refused:
        AlertConfig().switch_url({"ML_PIPELINE_HEARTBEAT_URL": url})
    assert "SECRET" not in str(refused.value)


def test_the_address_is_in_no_setting_that_is_written():
    start = parse_paper_trade(["--heartbeat-url", URL, "--model", "m", "--replay", "x.csv"], prog="paper-trade")
    config = start.config()
    assert config.alerts.switch_url() == URL
    assert "SECRET" not in f"{config.as_data()} {config!r}"


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A keyring of this test alone."""
    module = ModuleType("keyring")
    monkeypatch.setitem(sys.modules, "keyring", module)
    return module


def test_the_keyring_keeps_the_address(keyring):
    keyring.get_password = lambda service, name: f"slack://{service}/{name}"
    config = AlertConfig(alert_url_from="keyring")
    assert config.urls({"ML_PIPELINE_ALERT_URL": "https://other"}) == "slack://ml-pipeline/alert-url"


def test_a_keyring_without_the_address_says_how_to_store_it(keyring):
    keyring.get_password = lambda service, name: None
    with pytest.raises(UserError, match="keyring set ml-pipeline alert-url"):
        AlertConfig(alert_url_from="keyring").urls()


def test_a_keyring_that_fails_is_told(keyring):
    def fail(service: str, name: str) -> str:
        raise RuntimeError("locked")

    keyring.get_password = fail
    with pytest.raises(UserError, match=r"cannot be read \(RuntimeError\)"):
        AlertConfig(alert_url_from="keyring").urls()


def test_a_keyring_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UserError, match="pip install"):
        AlertConfig(alert_url_from="keyring").urls()

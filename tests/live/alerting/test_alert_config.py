"""The address of the webhook comes from the environment or the keyring, and is never told."""

import sys
from types import ModuleType

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alerting.alert_config import AlertConfig


@pytest.mark.parametrize(("name", "value"), [("alert_url_from", "file"), ("alert_every_minutes", -1.0)])
def test_what_cannot_be_meant_is_refused_by_name(name, value):
    with pytest.raises(UserError, match=name):
        AlertConfig(**{name: value})


def test_the_environment_names_the_address():
    assert (
        AlertConfig().url({"ML_PIPELINE_ALERT_URL": "https://hooks.example/SECRET"}) == "https://hooks.example/SECRET"
    )
    assert AlertConfig().url({}) is None
    assert AlertConfig().url({"ML_PIPELINE_ALERT_URL": ""}) is None


@pytest.mark.parametrize(
    "url", ["hooks.example/SECRET", "ftp://x/SECRET", "https:///SECRET", "http://x:99999/SECRET", "http://[x/SECRET"]
)
def test_an_address_that_cannot_be_one_is_refused_without_showing_it(url):
    with pytest.raises(UserError, match="ML_PIPELINE_ALERT_URL must begin with https://") as refused:
        AlertConfig().url({"ML_PIPELINE_ALERT_URL": url})
    assert "SECRET" not in str(refused.value)


@pytest.fixture
def keyring(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A keyring of this test alone."""
    module = ModuleType("keyring")
    monkeypatch.setitem(sys.modules, "keyring", module)
    return module


def test_the_keyring_keeps_the_address(keyring):
    keyring.get_password = lambda service, name: f"https://{service}/{name}"
    config = AlertConfig(alert_url_from="keyring")
    assert config.url({"ML_PIPELINE_ALERT_URL": "https://other"}) == "https://ml-pipeline/alert-url"


def test_a_keyring_without_the_address_says_how_to_store_it(keyring):
    keyring.get_password = lambda service, name: None
    with pytest.raises(UserError, match="keyring set ml-pipeline alert-url"):
        AlertConfig(alert_url_from="keyring").url()


def test_a_keyring_that_fails_is_told(keyring):
    def fail(service: str, name: str) -> str:
        raise RuntimeError("locked")

    keyring.get_password = fail
    with pytest.raises(UserError, match=r"cannot be read \(RuntimeError\)"):
        AlertConfig(alert_url_from="keyring").url()


def test_a_keyring_that_is_not_installed_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "keyring", None)
    with pytest.raises(UserError, match="pip install"):
        AlertConfig(alert_url_from="keyring").url()

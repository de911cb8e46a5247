"""Keys come from the environment or the keyring, never from settings, and show themselves nowhere."""

import pickle

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.live.alpaca.keys import KEY_ID, SECRET_KEY, Keys, find_keys, refuse_keys


class Keyring:
    """A keyring of the system, of passwords by service and name."""

    def __init__(self, passwords):
        self.passwords = passwords

    def get_password(self, service, name):
        return self.passwords.get((service, name))


@pytest.fixture
def stored(monkeypatch):
    keyring = pytest.importorskip("keyring")
    monkeypatch.delenv(KEY_ID, raising=False)
    monkeypatch.delenv(SECRET_KEY, raising=False)
    passwords = {}
    monkeypatch.setattr(keyring, "get_password", Keyring(passwords).get_password)
    return passwords


def test_the_environment_comes_first(monkeypatch, stored):
    stored["ml-pipeline-alpaca-paper", KEY_ID] = "PKring"
    monkeypatch.setenv(KEY_ID, "PKenv")
    monkeypatch.setenv(SECRET_KEY, "hidden")
    assert (find_keys(live=False).key_id, find_keys(live=False).secret_key) == ("PKenv", "hidden")


def test_the_keyring_has_keys_of_its_own_for_paper_and_live(stored):
    for kind, key in (("paper", "PKring"), ("live", "AKring")):
        stored[f"ml-pipeline-alpaca-{kind}", KEY_ID] = key
        stored[f"ml-pipeline-alpaca-{kind}", SECRET_KEY] = f"secret of {kind}"
    assert find_keys(live=False).key_id == "PKring"
    assert find_keys(live=True).secret_key == "secret of live"


def test_without_keys_it_says_how_to_store_them(stored):
    with pytest.raises(UserError) as refused:
        find_keys(live=False)
    assert KEY_ID in str(refused.value)
    assert "python -m keyring set ml-pipeline-alpaca-paper APCA_API_KEY_ID" in str(refused.value)


def test_a_keyring_that_does_not_work_is_as_if_it_were_empty(monkeypatch, stored):
    import keyring
    from keyring.errors import NoKeyringError

    def fails(service, name):
        raise NoKeyringError

    monkeypatch.setattr(keyring, "get_password", fails)
    with pytest.raises(UserError, match="There are no keys of Alpaca's paper account"):
        find_keys(live=False)


def test_half_a_pair_is_told(monkeypatch, stored):
    monkeypatch.setenv(KEY_ID, "PKenv")
    with pytest.raises(UserError, match=f"has {KEY_ID}, but no {SECRET_KEY}"):
        find_keys(live=False)


@pytest.mark.parametrize(
    ("key", "live", "sentence"),
    [
        ("PKenv", True, "keys of a paper account, but --live"),
        ("AKenv", False, "keys of a live account, but the"),
    ],
)
def test_keys_of_the_other_account_are_told(monkeypatch, stored, key, live, sentence):
    monkeypatch.setenv(KEY_ID, key)
    monkeypatch.setenv(SECRET_KEY, "hidden")
    with pytest.raises(UserError, match=sentence) as refused:
        find_keys(live=live)
    assert "hidden" not in str(refused.value)


@pytest.mark.parametrize("name", ["APCA_API_KEY_ID", "alpaca_secret_key", "api-key", "apikey", "Secret", "a_token"])
def test_a_key_in_a_file_of_settings_is_refused_without_repeating_it(name):
    with pytest.raises(UserError) as refused:
        refuse_keys({"model": "x", name: "hidden"}, "trade.yaml")
    assert str(refused.value).startswith(f"trade.yaml: {name} looks like a key")
    assert "hidden" not in str(refused.value)


def test_settings_without_keys_are_taken():
    refuse_keys({"model": "x", "alpaca_data_feed": "iex", "real_money": True, "max_position": 1.0}, "trade.yaml")


def test_keys_show_themselves_nowhere():
    keys = Keys("PKhidden", "hidden")
    assert "hidden" not in f"{keys} {keys!r} {[keys]}".replace("Keys(hidden)", "")
    with pytest.raises(TypeError):
        pickle.dumps(keys)

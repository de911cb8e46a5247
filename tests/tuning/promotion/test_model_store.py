"""A deployed model's folder: whole versions whatever is killed, numbers that are used once, switches without a gap."""

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.runs.trained.deployed import current_number, resolved
from ml_pipeline.tuning.promotion import model_store
from ml_pipeline.tuning.promotion.model_store import (
    DeployedMeanwhile,
    ModelStore,
    model_names,
    models_folder,
    write_link,
)
from tests.tuning.small_models import fill, promote, texts

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def store(tmp_path):
    return ModelStore(tmp_path / "models", "eurusd")


def hidden(store):
    return sorted(path.name for path in store.folder.iterdir() if path.name.startswith("."))


# Versions


def test_a_promotion_makes_a_whole_version_and_switches_to_it(store):
    version = promote(store, "first")
    assert (version.name, store.current, store.deployed()) == ("v1", 1, version)
    assert texts(store) == {"v1": {"first"}}
    assert version.promotion["study"] == "toy"
    version.require_whole()
    assert hidden(store) == []
    history = json.loads((store.folder / "history.jsonl").read_text())
    assert {name: history[name] for name in ("action", "from", "to", "trial")} == {
        "action": "promote",
        "from": None,
        "to": "v1",
        "trial": 3,
    }


def test_a_version_is_read_only(store):
    folder = promote(store).folder
    assert {oct(path.stat().st_mode & 0o222) for path in (folder, *folder.rglob("*"))} == {"0o0"}


def test_a_version_that_was_changed_is_noticed(store):
    version = promote(store)
    (version.folder / "best.pt").chmod(0o644)
    (version.folder / "best.pt").write_text("other")
    with pytest.raises(UserError, match=r"best\.pt is not the file that was promoted"):
        version.require_whole()


def test_a_number_is_never_used_twice(store):
    for text in ("first", "second", "third"):
        promote(store, text)
    shutil.rmtree(store.folder / "v3")
    shutil.rmtree(store.folder / "v2")
    assert promote(store, "fourth").name == "v4"


def test_a_version_is_not_deployed_in_place_of_another_than_it_was_compared_with(store):
    promote(store, "first")
    with pytest.raises(DeployedMeanwhile):
        store.promote(fill("second"), {}, instead_of=None)
    assert [version.name for version in store.versions()] == ["v1"]
    assert hidden(store) == []


def test_two_promoters_at_once_get_two_numbers(store):
    made, tries = [], []

    def keep_trying(text):
        while True:
            tries.append(text)
            try:
                made.append(store.promote(fill(text), {}, instead_of=store.current).name)
                return
            except DeployedMeanwhile:
                pass

    threads = [threading.Thread(target=keep_trying, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(made) == ["v1", "v2", "v3", "v4"]
    assert store.current == 4
    assert [(switch.before, switch.after) for switch in store.history()] == [(None, 1), (1, 2), (2, 3), (3, 4)]
    assert hidden(store) == []


@pytest.mark.parametrize("name", ["", "..", ".hidden", "../other", "a/b", "/etc", "a\\b", "a" * 101, "a\nb", "-x"])
def test_a_name_that_leaves_the_folder_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="cannot be the name of a model"):
        ModelStore(tmp_path, name)


@pytest.mark.parametrize("name", ["eurusd_5m", "EUR-USD.2", "v1", "währung"])
def test_a_plain_name_is_taken(tmp_path, name):
    assert ModelStore(tmp_path, name).folder == tmp_path / name


def test_models_are_listed_without_what_is_none(tmp_path, store):
    promote(store)
    (tmp_path / "models" / "empty").mkdir()
    (tmp_path / "models" / ".hidden").mkdir()
    (tmp_path / "models" / "file").write_text("")
    assert model_names(tmp_path / "models") == ["eurusd"]
    assert model_names(tmp_path / "missing") == []


def test_models_lie_beside_checkpoints(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert models_folder(None) == tmp_path / "models"


def test_an_unknown_model_is_told_with_the_nearest(store):
    promote(store)
    with pytest.raises(UserError, match='Did you mean "eurusd"'):
        ModelStore(store.models, "eurusdd").roll_back()
    with pytest.raises(UserError, match="Promote one with"):
        ModelStore(store.models / "none", "eurusd").roll_back()


# Going back


def test_rolling_back_returns_step_by_step(store):
    for text in ("first", "second", "third"):
        promote(store, text)
    assert (store.roll_back().after, texts(store)) == (2, {"v2": {"second"}})
    assert (store.roll_back().after, texts(store)) == (1, {"v1": {"first"}})
    with pytest.raises(UserError, match="name one of v2, v3 with --to"):
        store.roll_back()
    assert store.roll_back(3).before == 1
    assert store.roll_back().after == 1
    assert promote(store, "fourth").number == 4
    assert store.roll_back().after == 1


def test_rolling_back_to_what_is_not_there_or_deployed_already_is_refused(store):
    promote(store)
    with pytest.raises(UserError, match="eurusd has no version v7; its versions: v1"):
        store.roll_back(7)
    with pytest.raises(UserError, match="v1 of eurusd is already deployed"):
        store.roll_back(1)


def test_rolling_back_to_a_damaged_version_is_refused(store):
    damaged = promote(store).folder / "best.pt"
    promote(store, "second")
    damaged.chmod(0o644)
    damaged.write_text("")
    with pytest.raises(UserError, match="not the file that was promoted"):
        store.roll_back()
    assert store.current == 2


def test_rolling_back_passes_over_versions_that_were_deleted(store):
    for text in ("first", "second", "third"):
        promote(store, text)
    shutil.rmtree(store.folder / "v2")
    shutil.rmtree(store.folder / "v3")
    with pytest.raises(UserError, match=r"names v3, which does not exist.*ml-pipeline rollback eurusd"):
        resolved(store.folder / "current")
    assert store.deployed() is None
    assert store.roll_back().after == 1


def test_a_switch_by_hand_is_found_and_recorded(store):
    promote(store, "first")
    promote(store, "second")
    write_link(store.folder / "current", 1)
    assert [(switch.action, switch.before, switch.after) for switch in store.history()][-1] == ("found", 2, 1)
    promote(store, "third")
    actions = [json.loads(line)["action"] for line in (store.folder / "history.jsonl").read_text().splitlines()]
    assert actions == ["promote", "promote", "found", "promote"]
    assert store.roll_back().after == 1


def test_a_torn_line_of_the_history_is_left_out(store):
    promote(store, "first")
    with (store.folder / "history.jsonl").open("a") as file:
        file.write('{"action": "promote", "wh')
    promote(store, "second")
    assert [switch.after for switch in store.history()] == [1, 2]


# What may go wrong


def test_a_full_disk_leaves_what_was_deployed(store, monkeypatch):
    promote(store, "first")

    def no_space(folder):
        raise OSError(28, "No space left on device")

    with pytest.raises(UserError, match="No space left on device; the deployed version is unchanged"):
        store.promote(no_space, {}, instead_of=1)
    assert texts(store) == {"v1": {"first"}}
    monkeypatch.setattr(model_store, "write_link", lambda path, number: no_space(path))
    with pytest.raises(UserError, match="No space left"):
        promote(store, "second")
    monkeypatch.undo()
    assert texts(store) == {"v1": {"first"}}
    assert [version.name for version in store.versions()] == ["v1"]
    assert promote(store, "second").name == "v2"


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_told(store):
    promote(store)
    store.folder.chmod(0o555)
    try:
        with pytest.raises(UserError, match="Permission denied"):
            promote(store, "second")
    finally:
        store.folder.chmod(0o755)


def test_a_folder_in_place_of_current_is_told(store):
    promote(store)
    (store.folder / "current").unlink()
    (store.folder / "current").mkdir()
    with pytest.raises(UserError, match="cannot be read or written"):
        promote(store, "second")


def test_current_that_names_no_version_is_told(store):
    promote(store)
    (store.folder / "current").unlink()
    (store.folder / "current").symlink_to("../../elsewhere")
    with pytest.raises(UserError, match="which is not a version"):
        promote(store, "second")
    with pytest.raises(UserError, match=r"which is not a version; choose one with .* --to vN"):
        store.roll_back()
    assert store.roll_back(1).before is None
    assert texts(store) == {"v1": {"first"}}


def test_without_links_a_file_names_the_version(store, monkeypatch):
    def no_links(*_, **__):
        raise PermissionError(1, "a required privilege is not held by the client")

    monkeypatch.setattr(os, "symlink", no_links)
    promote(store, "first")
    promote(store, "second")
    assert not (store.folder / "current").is_symlink()
    assert (texts(store), current_number(store.folder)) == ({"v2": {"second"}}, 2)
    assert store.roll_back().after == 1
    assert texts(store) == {"v1": {"first"}}


@pytest.mark.parametrize("links", [True, False], ids=["link", "file"])
def test_who_reads_during_a_thousand_switches_gets_one_version_whole(store, links, monkeypatch):
    promote(store, "v1")
    promote(store, "v2")
    if not links:
        monkeypatch.setattr(os, "symlink", lambda *_, **__: (_ for _ in ()).throw(PermissionError()))
    seen, wrong, over = set(), [], threading.Event()

    def read():
        while not over.is_set():
            try:
                ((version, found),) = texts(store).items()
            except (OSError, UserError, ValueError) as error:
                wrong.append(error)
                return
            seen.add(version)
            if found != {version}:
                wrong.append((version, found))

    readers = [threading.Thread(target=read) for _ in range(3)]
    for reader in readers:
        reader.start()
    for i in range(1000):
        write_link(store.folder / ".current.new", 1 + i % 2)
        os.replace(store.folder / ".current.new", store.folder / "current")
    while seen != {"v1", "v2"} and not wrong:  # whoever was not scheduled yet
        write_link(store.folder / ".current.new", 2 if "v1" in seen else 1)
        os.replace(store.folder / ".current.new", store.folder / "current")
    over.set()
    for reader in readers:
        reader.join()
    assert (seen, wrong) == ({"v1", "v2"}, [])


KILLED = """
import os, sys
from pathlib import Path
from ml_pipeline.tuning.promotion.model_store import ModelStore
from tests.tuning.small_models import promote

CHANGES = {"os.rename", "os.mkdir", "os.symlink", "os.chmod", "os.remove", "os.rmdir"}
root, folder_name = Path(sys.argv[1]), "models"
n_steps = 0
left = 0

def before(event, arguments):
    global left, n_steps
    writes = event == "open" and isinstance(arguments[1], str) and set(arguments[1]) & set("wxa+")
    if not (writes or event in CHANGES) or folder_name not in str(arguments[0]):
        return
    n_steps += 1
    if n_steps == left:
        os._exit(9)

sys.addaudithook(before)
actions = {
    "promote": lambda store: promote(store, "second"),
    "rollback": lambda store: store.roll_back(),
}
action = actions[sys.argv[2]]
left = 1
while True:
    n_steps = -10**9
    store = ModelStore(root / str(left) / "models", "m")
    promote(store, "first")
    if sys.argv[2] == "rollback":
        promote(store, "second")
    child = os.fork()
    if not child:
        n_steps = 0
        action(store)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status == 0:
        break
    assert status == 9, status
    left += 1
print(left)
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="kills a fork at each step")
@pytest.mark.parametrize("action", ["promote", "rollback"])
def test_a_kill_before_any_step_leaves_one_version_whole(tmp_path, action):
    command = [sys.executable, "-c", KILLED, str(tmp_path), action]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    n = int(done.stdout)
    assert n > (10 if action == "promote" else 4)
    outcomes = set()
    for i in range(1, n + 1):
        store = ModelStore(tmp_path / str(i) / "models", "m")
        ((version, found),) = texts(store).items()
        assert found == {{"v1": "first", "v2": "second"}[version]}
        outcomes.add(version)
        for each in store.versions():
            each.require_whole()
        for left in store.folder.glob(".promoting-*"):
            os.utime(left, (0, 0))  # long ago, since one that names no maker yet may be at its first moment
        known = {each.number for each in store.versions()}
        new = promote(store, "third")  # goes on as if nothing had happened
        assert new.number == max(known) + 1
        assert texts(store) == {new.name: {"third"}}
        assert hidden(store) == []
        assert store.history()[-1].after == new.number
        assert store.roll_back().after == int(version[1:])
    assert outcomes == {"v1", "v2"}


@pytest.mark.parametrize("name", ["../v1/best.pt", "/etc/hostname", "validation/../../v1/best.pt", "..", ""])
def test_a_card_that_names_a_file_outside_of_its_version_is_no_whole_version(store, name):
    version = promote(store)
    card = version.folder / "promotion.json"
    card.chmod(0o644)
    card.write_text(json.dumps({"files": {name: "0"}}))
    with pytest.raises(UserError, match="is not a file of"):
        ModelStore(store.models, store.name).versions()[0].require_whole()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs pipes with names")
def test_a_pipe_in_place_of_a_file_of_a_version_is_told_at_once(store):
    version = promote(store)
    version.folder.chmod(0o755)
    (version.folder / "best.pt").unlink()
    os.mkfifo(version.folder / "best.pt")
    with pytest.raises(UserError, match="not a regular file"):
        version.require_whole()


def test_a_version_that_is_a_link_is_none(store, tmp_path):
    promote(store)
    shutil.copytree(store.folder / "v1", tmp_path / "v1")
    (store.folder / "v2").symlink_to(tmp_path / "v1")
    with pytest.raises(UserError, match="has no version v2"):
        store.roll_back(2)
    (store.folder / "current").unlink()
    write_link(store.folder / "current", 2)
    assert store.deployed() is None
    with pytest.raises(UserError, match="names v2, which does not exist"):
        resolved(store.folder / "current")

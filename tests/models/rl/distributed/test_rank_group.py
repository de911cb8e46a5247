"""Meeting the other ranks, and what cannot be divided among them."""

import datetime
import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.distributed import rank_group
from ml_pipeline.models.rl.distributed.rank_group import RankGroup
from ml_pipeline.models.rl.ranks import OneRank, RankLost
from ml_pipeline.runs.ranks.launcher import free_port
from tests.models.rl.distributed.rank_server import RankServer
from tests.models.rl.distributed.tasks import trainer_of


def test_a_rank_needs_the_variables_of_torchrun(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("RANK", "0")
    for name in ("WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(UserError, match="but WORLD_SIZE, MASTER_ADDR, MASTER_PORT is not set; start it by torchrun"):
        RankGroup.join()


@pytest.mark.parametrize("name", ["RANK", "WORLD_SIZE"])
def test_a_rank_that_is_no_number_is_refused(monkeypatch: pytest.MonkeyPatch, name: str):
    for variable, text in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}.items():
        monkeypatch.setenv(variable, text)
    monkeypatch.setenv(name, "first")
    with pytest.raises(UserError, match=f'^{name} must be a whole number in a process of .*, but is "first"'):
        RankGroup.join()


def test_one_rank_is_a_group_that_sends_nothing():
    ranks = OneRank()
    assert (ranks.rank, ranks.size, len(ranks.members)) == (0, 1, 1)
    assert ranks.gather(b"a", "letters") == [b"a"]
    assert ranks.share(b"a", "letters") == b"a"


def torchs_group(size: int) -> None:
    store, timeout = dist.HashStore(), datetime.timedelta(seconds=0.2)
    store.set_timeout(timeout)
    dist.init_process_group("gloo", store=store, rank=0, world_size=size, timeout=timeout)


def name_after_a_failure(_: Any) -> str:
    with pytest.raises(RuntimeError):
        torchs_group(2)  # the other never comes
    rank_group.forget_group()
    torchs_group(1)
    return dist.distributed_c10d.GroupMember.WORLD.group_name


def aborted(_: Any) -> bool:
    torchs_group(1)
    rank_group.set_group_timeout(60.0)
    rank_group.abort_group()
    dist.destroy_process_group()
    return dist.is_initialized()


def test_what_torch_does_not_publish_is_there(server: RankServer):
    assert server.values(name_after_a_failure, 0) == ["0"]
    assert server.values(aborted, 0) == [False]


def exchanging(ranks):
    payload = bytes([ranks.rank]) * 1000 * ranks.rank
    return ranks.gather(payload, "payloads"), ranks.share(payload if ranks.rank == 2 else None, "the last", root=2)


@pytest.mark.long
def test_payloads_of_any_size_arrive_at_all_in_the_order_of_ranks(server: RankServer):
    payloads = [b"", b"\1" * 1000, b"\2" * 2000]
    assert server.values(exchanging, 3) == [(payloads, payloads[2])] * 3


def alone_in_a_group_of_two(ranks, port):
    with pytest.MonkeyPatch.context() as variables:
        variables.setenv("MASTER_PORT", str(port))
        variables.setenv("RANK", "0")
        variables.setenv("WORLD_SIZE", "2")
        with pytest.raises(RankLost) as lost:
            RankGroup.join(timeout_s=1.0)
    return str(lost.value)


@pytest.mark.long
def test_ranks_that_do_not_come_are_told(server: RankServer):
    (message,) = server.values(alone_in_a_group_of_two, 0, 0)
    assert message.startswith("Rank 0 of 2 could not meet the others at 127.0.0.1:0 (rank 1 did not come within 1 s); ")


def losing_a_rank_while_joining(ranks):
    """As rank 0 of three, of which the second ends once it has greeted, and the third never comes."""
    port = free_port()

    def come_and_end():
        store = dist.PrefixStore("ml_pipeline", dist.TCPStore("127.0.0.1", port, wait_for_workers=False))
        meeting_port, token = json.loads(store.get("meeting"))
        with socket.create_connection(("127.0.0.1", meeting_port)) as connection:
            connection.sendall(token.encode() + (1).to_bytes(4, "little"))

    place = {"RANK": "0", "WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ.update(place)
    threading.Thread(target=come_and_end, daemon=True).start()
    with pytest.raises(RankLost) as lost:
        RankGroup.join(timeout_s=600.0)
    return str(lost.value)


@pytest.mark.long
def test_a_rank_that_ends_while_the_others_join_is_noticed_at_once(server: RankServer):
    (message,) = server.values(losing_a_rank_while_joining, 0)
    assert "(rank 1 ended before all were there); start all ranks" in message


def making_a_trainer(ranks, n_envs, settings):
    with pytest.raises(UserError) as refusal, trainer_of(ranks, "discrete", n_envs=n_envs, **settings):
        pass
    return str(refusal.value)


@pytest.mark.long
def test_what_ranks_cannot_train_is_refused_on_all(server: RankServer):
    too_few = "3 ranks need at least 3 environments, one each, but n_envs is 2; raise n_envs to 3 or more"
    for message in server.values(making_a_trainer, 3, 2, {}):
        assert message.startswith(too_few)
    for message in server.values(making_a_trainer, 2, 4, {"normalize_update": "step"}):
        assert "set normalize_update to rollout (--normalize-update rollout)" in message


def meeting_again_and_again(ranks, folder):
    """Three more groups, one after another, of the processes of a group that has ended; the second one loses a rank."""
    rank = ranks.rank
    rank_group._MEETING_S = 5.0
    ranks.close()
    met, pause = [], threading.Event()
    for number in range(3):
        told = folder / str(number)

        def tell(port, told=told):
            told.with_suffix(".part").write_text(str(port))
            told.with_suffix(".part").rename(told)

        while rank and not told.exists():
            pause.wait(0.01)
        group = RankGroup.lead(2, tell_port=tell) if rank == 0 else RankGroup.follow(int(told.read_text()), rank, 2)
        try:
            with group:
                if number == rank == 1:
                    pause.wait(6.0)  # an exchange may take longer than a meeting
                met.append(group.gather(bytes([number + rank]), "numbers"))
                if number == rank == 1:
                    raise ValueError("out of ink")
                group.gather(b"", "nothing")
        except (RankLost, ValueError) as error:
            met.append(str(error))
    return met


@pytest.mark.long
def test_processes_meet_on_one_machine_again_and_again_also_after_a_loss(server: RankServer, tmp_path: Path):
    first, second = server.values(meeting_again_and_again, 2, tmp_path)
    assert first[:2] == second[:2] == [[b"\0", b"\1"], [b"\1", b"\2"]]
    assert "gone: it raised ValueError: out of ink" in first[2]
    assert first[3] == second[3] == [b"\2", b"\3"]

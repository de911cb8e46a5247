"""Environments of symbols and files: who trades what, how many, and what happens where a choice cannot be had."""

import logging
import multiprocessing
import warnings
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.choice import StepCost
from ml_pipeline.service import build_vec_env, env_builder, get_optimal_n_envs
from ml_pipeline.service.env_builder import choose_n_envs
from ml_pipeline.service.trading_vec_env import BatchedTradingVecEnv
from tests.service.forex_files import SMALL, write_folder, write_market

SYMBOLS = ["EURUSD", "GBPUSD"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_folder(tmp_path_factory.mktemp("forex"), *SYMBOLS, n_bars=200)


def built(folder, n_envs=4, **settings):
    """Without a monitor, in this process."""
    config = {**SMALL, "vectorized": {"env_type": "DummyVecEnv"}, **settings}
    return build_vec_env(SYMBOLS, folder, config, n_envs, monitor_path=None)


def stepped(envs, n_steps=30):
    """All that some steps return, as bytes."""
    generator = np.random.default_rng(0)
    with closing(envs):
        parts = [envs.reset(seed=0)[0].copy()]
        for _ in range(n_steps):
            observations, rewards, terminated, truncated, _ = envs.step(generator.integers(0, 3, envs.num_envs))
            parts += [observations.copy(), rewards, terminated, truncated]
    return b"".join(part.tobytes() for part in parts)


def test_environments_are_dealt_round_the_symbols(folder):
    with closing(built(folder, 5)) as envs:
        markets = envs.get_attr("market")
        assert [market.symbols[0] for market in markets] == ["EURUSD", "GBPUSD", "EURUSD", "GBPUSD", "EURUSD"]
        assert envs.built_from.config.trading.initial_cash == 100_000
        assert envs.single_action_space.n == 3
        assert envs.built_from.task.symbols == ("EURUSD", "GBPUSD")


@pytest.mark.parametrize("env_type", ["DummyVecEnv", "SubprocVecEnv", "auto"])
@pytest.mark.parametrize("monitored", [False, True])
def test_how_they_are_stepped_changes_no_bit(folder, tmp_path, env_type, monitored):
    config = {**SMALL, "vectorized": {"env_type": env_type}}
    monitor = tmp_path / "vec_monitor" if monitored else None
    envs = build_vec_env(SYMBOLS, folder, config, 4, monitor_path=monitor)
    assert isinstance(envs, ParallelEnv)
    if env_type != "auto":
        assert (envs.num_workers > 0) == (env_type == "SubprocVecEnv")
    assert stepped(envs) == stepped(built(folder))


def test_batched_ones_are_one_environment(folder, tmp_path):
    config = {**SMALL, "vectorized": {"env_type": "batched"}}
    with closing(build_vec_env(SYMBOLS, folder, config, 4, monitor_path=tmp_path / "m")) as envs:
        assert isinstance(envs, BatchedTradingVecEnv)
        assert envs.num_envs == 4


@pytest.mark.parametrize("shared", [False, True])
def test_observations_are_the_callers_own_unless_shared(folder, shared):
    config = {**SMALL, "vectorized": {"env_type": "DummyVecEnv"}}
    with closing(build_vec_env(SYMBOLS, folder, config, 2, monitor_path=None, use_shared_memory=shared)) as envs:
        first, _ = envs.reset(seed=0)
        second = envs.step(np.array([0, 2]))[0]
        assert np.shares_memory(first, second) == shared


def test_a_file_of_all_symbols_and_the_built_in_market(tmp_path):
    with closing(build_vec_env(["SYNTH"], None, SMALL, 2, monitor_path=None)) as envs:
        assert envs.num_envs == 2
    with pytest.raises(UserError, match='no symbol "EURUSD"'):
        build_vec_env(["EURUSD"], None, SMALL, 2, monitor_path=None)


# How many


def test_without_a_number_one_is_chosen_and_said(folder, caplog):
    logger = logging.getLogger("test")
    with (
        caplog.at_level(logging.INFO, "test"),
        closing(build_vec_env(SYMBOLS, folder, SMALL, monitor_path=None, logger=logger)) as envs,
    ):
        assert envs.num_envs in {2, 4, 6, 8}
        assert f"n_envs is {envs.num_envs}: " in caplog.text
        assert f"give n_envs {envs.num_envs} to repeat the run elsewhere" in caplog.text


def test_a_number_in_the_settings_is_taken(folder):
    config = {**SMALL, "vectorized": {"env_type": "DummyVecEnv", "num_envs": 6}}
    with closing(build_vec_env(SYMBOLS, folder, config, monitor_path=None)) as envs:
        assert envs.num_envs == 6
        assert envs.built_from.config.run.n_envs == 6


def test_more_than_the_limit_are_refused(folder):
    with pytest.raises(UserError, match="n_envs is 9, but max_concurrent_envs is 8; raise max_concurrent_envs in"):
        built(folder, 9)
    raised = {"env_type": "DummyVecEnv", "max_concurrent_envs": 10}
    with closing(built(folder, 9, vectorized=raised)) as envs:
        assert envs.num_envs == 9
    with pytest.raises(UserError, match="2 symbols need an environment each, but max_concurrent_envs is 1"):
        built(folder, None, vectorized={"max_concurrent_envs": 1})
    with pytest.raises(UserError, match="n_envs is 1, but each of 2 symbols"):
        built(folder, 1)


@pytest.mark.parametrize("n_envs", [0, -1, 2.0, "4", True])
def test_a_number_of_environments_is_a_whole_number(folder, n_envs):
    with pytest.raises(UserError, match="n_envs must be a whole number of at least 1, or None to measure"):
        built(folder, n_envs)


def test_the_optimal_number_is_a_round_of_the_symbols(folder):
    assert get_optimal_n_envs(SYMBOLS) in {2, 4, 6, 8}
    assert get_optimal_n_envs(SYMBOLS, folder, SMALL) in {2, 4, 6, 8}
    assert get_optimal_n_envs(["A", "B", "C", "D", "E"]) == 5


# What cannot be had


def fallback(folder, caplog, **config):
    logger = logging.getLogger("test")
    with closing(build_vec_env(SYMBOLS, folder, {**SMALL, **config}, 4, monitor_path=None, logger=logger)) as envs:
        assert envs.num_workers == 0
        assert len(stepped(envs)) > 0
    (sentence,) = [record.message for record in caplog.records if record.levelno == logging.WARNING]
    return sentence


SUBPROC = {"env_type": "SubprocVecEnv"}


def test_too_little_memory_steps_in_this_process_and_says_so(folder, caplog, monkeypatch):
    monkeypatch.setattr(env_builder, "free_memory_bytes", lambda: 30_000_000)
    monkeypatch.setattr(env_builder, "usable_cores", lambda: 2.0)
    sentence = fallback(folder, caplog, vectorized={"env_type": "auto"})
    assert sentence == (
        "The environments are stepped in this process: 2 workers would need about 120 MB of memory, but 30 MB are "
        "free. Results are the same."
    )


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(24, "Too many open files"), "OSError: [Errno 24] Too many open files"),
        (AssertionError("daemonic processes are not allowed to have children"), "AssertionError: daemonic processes"),
        (WorkerDiedError(0, range(2), -9, "while it started"), "WorkerDiedError: Worker 0 (environments 0 to 1) was"),
    ],
)
def test_workers_that_cannot_start_are_done_without(folder, caplog, monkeypatch, error, told):
    real = ParallelEnv.__init__

    def refuse(self, env_fns, *, num_workers="auto", **options):
        if num_workers != 0:
            raise error
        real(self, env_fns, num_workers=num_workers, **options)

    monkeypatch.setattr(ParallelEnv, "__init__", refuse)
    sentence = fallback(folder, caplog, vectorized=SUBPROC)
    assert sentence.startswith("The environments are stepped in this process: workers cannot be started (")
    assert told in sentence


def test_without_a_logger_it_is_a_warning(folder, monkeypatch):
    monkeypatch.setattr(env_builder, "free_memory_bytes", lambda: 0)
    with (
        pytest.warns(UserWarning, match="are stepped in this process: .* 0 MB are free") as caught,
        closing(built(folder, 2, vectorized=SUBPROC)) as envs,
    ):
        assert envs.num_workers == 0
    assert caught[0].filename == __file__


def test_what_the_settings_ask_for_in_this_process_needs_no_memory(folder, monkeypatch):
    monkeypatch.setattr(env_builder, "free_memory_bytes", lambda: 0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        built(folder, 2).close()


def in_a_daemon(folder, queue=None):
    """Bytes of some steps with workers, or an error's text."""
    try:
        envs = build_vec_env(SYMBOLS, folder, {**SMALL, "vectorized": SUBPROC}, 4, monitor_path=None)
        result = stepped(envs)
    except BaseException as error:
        result = repr(error)
    if queue is not None:
        queue.put(result)
    return result


@pytest.mark.slow
@pytest.mark.parametrize(
    "method", [pytest.param("forkserver", marks=pytest.mark.long), "spawn"]
)  # polars cannot be forked
def test_a_daemonic_process_builds_them_too(folder, method):
    context = multiprocessing.get_context(method)
    queue = context.SimpleQueue()
    process = context.Process(target=in_a_daemon, args=(folder, queue), daemon=True)
    process.start()
    result = queue.get()
    process.join()
    assert result == stepped(built(folder))


@pytest.mark.long
def test_a_process_of_a_pool_builds_them_too(folder):
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        result = pool.apply(in_a_daemon, (folder,))
        pool.close()
        pool.join()
    assert result == stepped(built(folder))


# Bad input


@pytest.mark.parametrize(
    ("symbols", "sentence"),
    [
        ([], "symbols must be at least one symbol"),
        ((), "symbols must be at least one symbol"),
        ("EURUSD", 'symbols must be a list such as \\["EURUSD"\\], but got .EURUSD'),
        (None, "symbols must be a list"),
        ([1], "A symbol must be a text such as EURUSD, but got 1"),
        (["EURUSD", "XAUUSD"], "has no file of XAUUSD; it holds FOREX_EURUSD_1D.csv, FOREX_GBPUSD_1D.csv"),
        (["EURUSD", "EURUSD"], "EURUSD is named twice"),
    ],
)
def test_symbols_that_cannot_be_used(folder, symbols, sentence):
    for call in (build_vec_env, get_optimal_n_envs):
        with pytest.raises(UserError, match=sentence):
            call(symbols, folder, SMALL)


def test_a_folder_without_data(tmp_path):
    with pytest.raises(UserError, match="holds no market data; expected CSV or Parquet files, one per symbol"):
        build_vec_env(SYMBOLS, tmp_path, SMALL, 2)
    with pytest.raises(UserError, match="There is no market data at"):
        build_vec_env(SYMBOLS, tmp_path / "gone", SMALL, 2)
    with pytest.raises(UserError, match="data_dir must be the path of a folder, or None, but got 3"):
        build_vec_env(SYMBOLS, 3, SMALL, 2)


def test_files_that_do_not_fit_together(tmp_path):
    write_market(tmp_path / "EURUSD.csv", hours=24, n_bars=200)
    write_market(tmp_path / "GBPUSD.csv", hours=1, n_bars=200)
    with pytest.raises(UserError, match="those of EURUSD are 1d apart and those of GBPUSD 1h"):
        build_vec_env(SYMBOLS, tmp_path, SMALL, 2)


def test_nothing_is_written_where_it_is_refused(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError):
        build_vec_env(SYMBOLS, folder, SMALL, 9)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"monitor_path": 5}, "monitor_path must be the path of a file, or None for none, but got 5"),
        ({"monitor_path": "a\0b"}, "monitor_path must be the path"),
        ({"monitor_path": ""}, "monitor_path must be the path"),
        ({"logger": 5}, r"logger must be a logging\.Logger, or None, but got 5"),
        ({"use_shared_memory": "no"}, "use_shared_memory must be True or False, but got 'no'"),
        ({"data_dir": ""}, "data_dir must be the path of a folder, or None, but got ''"),
        ({"data_dir": "a\0b"}, "data_dir must be the path"),
        ({"symbols": ["../EURUSD"]}, "not a path"),
    ],
)
def test_arguments_of_a_wrong_kind_are_refused_in_a_sentence(wrong, sentence, folder):
    arguments = {"symbols": SYMBOLS, "data_dir": folder, "config": SMALL, "monitor_path": None, **wrong}
    with pytest.raises(UserError, match=sentence):
        build_vec_env(**arguments)


PLENTY = {"most": 8, "cores": 2.0, "free_bytes": 10**10, "bytes_each": 10**5}


@given(
    n_symbols=st.integers(1, 12),
    cpu_s=st.floats(1e-7, 1.0),
    wait_s=st.floats(0.0, 1.0),
    most=st.integers(1, 64),
    cores=st.floats(0.5, 64),
    free_bytes=st.integers(0, 10**11),
)
def test_it_is_whole_rounds_within_the_limit(*, n_symbols, cpu_s, wait_s, most, cores, free_bytes):
    arguments = {"most": most, "cores": cores, "free_bytes": free_bytes, "bytes_each": 10**6}
    if n_symbols > most:
        with pytest.raises(UserError, match=f"max_concurrent_envs is {most}; raise it"):
            choose_n_envs(n_symbols, StepCost(cpu_s, wait_s), **arguments)
        return
    choice = choose_n_envs(n_symbols, StepCost(cpu_s, wait_s), **arguments)
    assert choice.n_envs % n_symbols == 0
    assert n_symbols <= choice.n_envs <= most
    assert choice.n_envs == n_symbols or choice.n_envs * 10**6 <= free_bytes / 2
    assert choice.reason.startswith(f"n_envs is {choice.n_envs}: a step takes ")


def test_fast_steps_share_the_policy_and_slow_ones_need_only_the_cores():
    assert choose_n_envs(1, StepCost(5e-6, 0.0), **PLENTY).n_envs == 8
    assert choose_n_envs(1, StepCost(1e-2, 0.0), **PLENTY).n_envs == 2
    assert choose_n_envs(1, StepCost(1e-5, 1e-2), **PLENTY).n_envs == 8  # they wait side by side


def test_little_memory_is_a_reason():
    choice = choose_n_envs(2, StepCost(5e-6, 0.0), **{**PLENTY, "free_bytes": 10**6})
    assert choice.n_envs == 4  # 4 of 100 kB are no more than half of 1 MB
    assert "1 MB are free" in choice.reason


def test_what_cannot_be_measured_is_said():
    assert "its steps refuse random actions" in choose_n_envs(1, None, **PLENTY).reason

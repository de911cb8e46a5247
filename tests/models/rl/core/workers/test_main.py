"""What workers are and know, and that nothing of them stays behind."""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import gymnasium
import psutil
import pytest

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from tests.leftovers import named_shared_memory
from tests.models.rl.core.workers.probes import (
    START_METHODS,
    OddEnv,
    is_gone,
    run_script,
    start_script,
    wait_until,
    worker_pids,
)

pytestmark = [pytest.mark.filterwarnings("ignore:start_method='fork'"), pytest.mark.timeout(120)]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_know_what_the_script_registered(start_method: Any) -> None:
    class Mine(CountingEnv):
        pass

    gymnasium.register("Mine-v0", Mine, max_episode_steps=3)
    try:
        with ParallelEnv([lambda: gymnasium.make("Mine-v0")] * 2, num_workers=1, start_method=start_method) as envs:
            envs.reset(seed=0)
            assert envs.get_attr("spec")[0].max_episode_steps == 3
    finally:
        del gymnasium.registry["Mine-v0"]


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_a_module_that_registers_on_import_does_so_in_workers_without_a_warning(
    start_method: str, tmp_path: Path
) -> None:
    (tmp_path / "registers.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control import CartPoleEnv as Mine\n"
        "gymnasium.register('Mine-v0', 'registers:Mine')\n"
    )
    done = run_script(
        tmp_path,
        f"""
        import gymnasium
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        make = lambda: gymnasium.make("registers:Mine-v0")
        with ParallelEnv([make], num_workers=1, start_method="{start_method}") as envs:
            envs.reset(seed=0)
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("start_method", ["forkserver", "spawn"])
def test_workers_are_light_and_know_the_environment(start_method: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ML_PIPELINE_PROBE", start_method)  # set after the fork server was started
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    with ParallelEnv([OddEnv] * 2, num_workers=2, start_method=start_method) as envs:
        for modules in envs.call("modules"):
            assert not modules & {"torch", "polars", "matplotlib", "pydantic", "psutil", "pytest"}
        assert [seen[1:] for seen in envs.call("surroundings")] == [("1", start_method)] * 2
    assert os.environ["OMP_NUM_THREADS"] == "3"


@pytest.mark.parametrize("start_method", START_METHODS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_signals_to_all_processes_are_left_to_the_trainer(number: signal.Signals, start_method: Any) -> None:
    """A service manager sends SIGTERM to every process of a service, whatever their groups."""
    with ParallelEnv([OddEnv] * 2, num_workers=2, start_method=start_method) as envs:
        envs.reset(seed=0)
        servers = {psutil.Process(pid).ppid() for pid in worker_pids(envs)} - {os.getpid()}
        for pid in {*worker_pids(envs), *servers}:
            os.kill(pid, number)
        for _ in range(20):
            envs.step([0, 0])
        assert [worker.exitcode for worker in envs._pool.processes] == [None, None]


class _Parent(CountingEnv):
    """Ends by SIGTERM what it starts: a program, a fork, and a process of multiprocessing's."""

    def endings(self, start_method: str) -> list[int | None]:
        program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
        program.terminate()
        child = multiprocessing.get_context(start_method).Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        if (fork := os.fork()) == 0:
            time.sleep(600)
        os.kill(fork, signal.SIGTERM)
        return [program.wait(), child.exitcode, -os.waitstatus_to_exitcode(os.waitpid(fork, 0)[1])]


@pytest.mark.parametrize("start_method", START_METHODS)
def test_what_an_environment_starts_can_be_ended_by_sigterm(start_method: Any) -> None:
    with ParallelEnv([_Parent], num_workers=1, start_method=start_method) as envs:
        [endings] = envs.call("endings", start_method if start_method != "spawn" else "fork")
        assert endings == [-signal.SIGTERM, -signal.SIGTERM, signal.SIGTERM]


@pytest.mark.skipif(not os.path.isdir("/proc/self"), reason="reads which signals a process blocks")
def test_a_worker_that_the_fork_server_just_forked_is_not_ended_by_sigterm() -> None:
    """It inherits from the server that SIGTERM waits, until it leaves it to the trainer."""
    with ParallelEnv([OddEnv], num_workers=1, start_method="forkserver") as envs:
        [worker] = worker_pids(envs)
        blocked = [
            int(line.split()[1], 16) >> (signal.SIGTERM - 1) & 1
            for pid in (psutil.Process(worker).ppid(), worker)
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("SigBlk:")
        ]
        assert blocked == [1, 0]


def test_processes_of_the_script_that_the_same_fork_server_starts_can_be_ended_by_sigterm() -> None:
    with ParallelEnv([CountingEnv], num_workers=1, start_method="forkserver"):
        child = multiprocessing.get_context("forkserver").Process(target=time.sleep, args=(600,))
        child.start()
        child.terminate()
        child.join()
        assert child.exitcode == -signal.SIGTERM


UNCLOSED = {
    "ParallelEnv": "models.rl.core.vec_env, ParallelEnv([Mine] * 2, num_workers=2)",
    "ParallelEnv without workers": "models.rl.core.vec_env, ParallelEnv([Mine] * 2, num_workers=0)",
    "SerialEnv": "models.rl.core.vec_env, SerialEnv([Mine] * 2)",
    "SB3ParallelEnv": "integrations.sb3, SB3ParallelEnv([Mine] * 2, num_workers=2)",
}


@pytest.mark.slow
@pytest.mark.parametrize("unclosed", UNCLOSED.values(), ids=UNCLOSED)
@pytest.mark.parametrize("kept_by", ["__main__", "numpy"])  # which is emptied after our modules
def test_environments_that_are_never_closed_end_without_a_word(unclosed: str, kept_by: str, tmp_path: Path) -> None:
    module, _, made = unclosed.partition(", ")
    done = run_script(
        tmp_path,
        f"""
        import sys
        import numpy
        from ml_pipeline.{module} import {made.partition("(")[0]}
        from ml_pipeline.models.rl.core.probe_envs import CountingEnv

        class Mine(CountingEnv):
            pass

        sys.modules["{kept_by}"].envs = envs = {made}
        envs.reset()
        """,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_closing_closes_the_environments_of_workers(tmp_path: Path) -> None:
    class Noting(CountingEnv):
        def close(self) -> None:
            (tmp_path / str(self.np_random_seed)).touch()

    envs = ParallelEnv([Noting] * 3, num_workers=2)
    envs.reset(seed=4)
    envs.close()
    assert {"4", "5", "6"} <= set(os.listdir(tmp_path))


@pytest.mark.slow
@pytest.mark.parametrize("start_method", START_METHODS)
def test_nothing_is_left_behind(start_method: Any) -> None:
    def count() -> tuple[int, int, set[str]]:
        gc.collect()
        return psutil.Process().num_fds(), len(multiprocessing.active_children()), named_shared_memory([os.getpid()])

    ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method).close()  # starts the fork server, if any
    before = count()
    for _ in range(3):
        with ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method) as envs:
            envs.reset()
            envs.step([0, 0, 0])
            pids = [os.getpid(), *(worker.pid for worker in multiprocessing.active_children())]
            assert named_shared_memory(pids) == before[2]
    envs = ParallelEnv([CountingEnv] * 3, num_workers=2, start_method=start_method)
    del envs  # as good as closed
    assert count() == before


def test_a_script_needs_no_guard_and_is_not_imported_again(tmp_path: Path) -> None:
    done = run_script(
        tmp_path,
        """
        print("imported")
        import gymnasium
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv

        class Mine(gymnasium.Wrapper):
            def step(self, action):
                *rest, info = self.env.step(action)
                return *rest, {"mine": Mine}

        for method in ("forkserver", "spawn", "fork"):
            make = lambda: Mine(gymnasium.make("CartPole-v1"))
            envs = ParallelEnv([make] * 2, num_workers=2, start_method=method)
            envs.reset(seed=1)
            assert envs.step([0, 1])[4]["mine"][1] is Mine
        print("done")
        """,
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["imported", "done"], "")


@pytest.mark.parametrize("start_method", START_METHODS)
def test_workers_vanish_when_the_trainer_is_killed(tmp_path: Path, start_method: str) -> None:
    trainer = start_script(
        tmp_path,
        f"""
        import os, time, multiprocessing
        from ml_pipeline.models.rl.core.probe_envs import FaultyEnv
        from ml_pipeline.models.rl.core.vec_env import ParallelEnv
        make = lambda: FaultyEnv("hang", at=2)
        idle = ParallelEnv([make] * 2, num_workers=2, start_method="{start_method}")
        busy = ParallelEnv([make] * 2, num_workers=2, start_method="{start_method}")
        for envs in (idle, busy):
            envs.reset()
            envs.step([0, 0])
        busy.step_async([0, 0])
        print(*(child.pid for child in multiprocessing.active_children()), flush=True)
        time.sleep(600)
        """,
    )
    try:
        workers = [psutil.Process(int(pid)) for pid in trainer.stdout.readline().split()]
        assert len(workers) == 4
        assert not named_shared_memory([trainer.pid, *(worker.pid for worker in workers)])  # what would stay
        trainer.kill()
        wait_until(lambda: all(is_gone(worker) for worker in workers))
    finally:
        trainer.kill()
        _, errors = trainer.communicate()
    assert errors == ""  # no complaint of a resource tracker


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no limit on open files")
@pytest.mark.parametrize(("hard", "expected"), [(4096, "8 workers step"), (60, "8 workers need")])
def test_a_low_limit_on_open_files_is_raised_or_named(hard: int, expected: str) -> None:
    script = (
        "import resource\n"
        f"resource.setrlimit(resource.RLIMIT_NOFILE, (40, {hard}))\n"
        "from ml_pipeline.config.errors import UserError\n"
        "from ml_pipeline.models.rl.core.probe_envs import CountingEnv\n"
        "from ml_pipeline.models.rl.core.vec_env import ParallelEnv\n"
        "try:\n"
        "    with ParallelEnv([CountingEnv] * 8, num_workers=8) as envs:\n"
        "        envs.reset(seed=0)\n"
        "        print('8 workers step', envs.step([0] * 8)[1].sum())\n"
        "except UserError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True, timeout=60)
    assert expected in done.stdout, done.stderr


@pytest.mark.parametrize("start_method", START_METHODS)
def test_a_worker_leaves_the_signals_of_a_terminal_to_the_trainer(start_method: Any) -> None:
    class Telling(CountingEnv):
        def pid(self) -> int:
            return os.getpid()

    with ParallelEnv([Telling] * 2, num_workers=1, start_method=start_method) as envs:
        envs.reset(seed=0)
        (pid,) = {*envs.call("pid")}
        for number in (signal.SIGHUP, signal.SIGINT):
            os.kill(pid, number)
        for _ in range(3):
            envs.step(envs.action_space.sample())
        assert {*envs.call("pid")} == {pid} != {os.getpid()}

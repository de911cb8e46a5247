"""Warm workers as their users meet them: lent, returned, wiped, killed, refused."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import EnvRaisedError, StepTimeoutError, WorkerDiedError
from ml_pipeline.models.rl.core.vec_env import ParallelEnv
from ml_pipeline.models.rl.core.workers.warm import messages
from ml_pipeline.models.rl.core.workers.warm.lease_book import LeaseRefused
from ml_pipeline.runtime.env_pool_address import ENV_POOL_VARIABLE
from ml_pipeline.service.env_pool import EnvPool
from tests.models.rl.core.workers.probes import ROOT, have_ended, wait_until

pytestmark = [
    pytest.mark.timeout(120),
    pytest.mark.skipif(messages.why_unavailable() is not None, reason="there are no warm workers on this system"),
]


class MessyEnv(CountingEnv):
    """Does to its process what environments should not do, as told by `call`."""

    def pid(self) -> int:
        return os.getpid()

    def run(self, code: str) -> Any:
        found: dict[str, Any] = {}
        exec(code, found)
        return found.get("result")


def cartpole() -> gymnasium.Env:
    return gymnasium.make("CartPole-v1")


@pytest.fixture
def pool() -> Iterator[EnvPool]:
    with EnvPool(max_concurrent_envs=4) as pool:
        yield pool


@pytest.fixture
def named(pool: EnvPool, monkeypatch: pytest.MonkeyPatch) -> EnvPool:
    """A pool that runs would find by the environment variable."""
    monkeypatch.setenv(ENV_POOL_VARIABLE, pool.address)
    return pool


def pids(envs: ParallelEnv) -> list[int]:
    return list(envs.call("pid"))


def until_returned(pool: EnvPool) -> None:
    wait_until(lambda: pool.state().n_envs == 0 and pool.state().n_idle == pool.state().n_workers)


def tell(envs: ParallelEnv, code: str) -> list[Any]:
    return list(envs.call("run", code))


def after_a_lease(pool: EnvPool, code: str) -> list[int]:
    """The pid of a worker whose environment ran this, and of the one that is lent next."""
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, code)
        first = pids(envs)
    until_returned(pool)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        return [*first, *pids(envs)]


def step_until_one_fails(envs: ParallelEnv) -> None:
    while True:
        envs.step([0] * envs.num_envs)


def trajectory(envs: ParallelEnv) -> list[np.ndarray]:
    observations = [envs.reset(seed=3)[0].copy()]
    for step in range(30):
        observation, rewards, *_ = envs.step(np.arange(envs.num_envs) % 2 ^ step % 2)
        observations += [observation.copy(), rewards.copy()]
    return observations


def test_a_returned_worker_is_lent_again(pool):
    before, after = after_a_lease(pool, "")
    assert before == after


def test_leased_workers_give_the_same_bits(pool):
    with ParallelEnv([cartpole] * 4, num_workers=2) as own:
        expected = trajectory(own)
    for _ in range(2):
        with pool.lease([cartpole] * 4, num_workers=2) as leased:
            np.testing.assert_equal(trajectory(leased), expected)


def test_the_variable_names_the_pool_to_every_parallel_env(named):
    with ParallelEnv([MessyEnv] * 2, num_workers=2) as envs:
        assert set(pids(envs)) <= set(named.state().pids)
        assert named.state().held == {f"process {os.getpid()}": (2, 2)}
    until_returned(named)


@pytest.mark.parametrize("method", ["spawn", "fork"])
@pytest.mark.filterwarnings("ignore:start_method='fork'")
def test_who_asks_for_another_way_to_start_gets_it(named, method):
    with ParallelEnv([MessyEnv], num_workers=1, start_method=method) as envs:
        assert set(pids(envs)).isdisjoint(named.state().pids)


def test_what_a_worker_starts_does_not_ask_the_pool(named):
    with ParallelEnv([MessyEnv], num_workers=1) as envs:
        assert tell(envs, f"import os; result = os.environ.get({ENV_POOL_VARIABLE!r})") == [None]


def test_a_worker_has_its_lessees_surroundings(pool, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OF_THE_LESSEE", "here")
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    ask = "import os, sys; result = os.getcwd(), os.environ.get('OF_THE_LESSEE'), sys.path"
    with pool.lease([MessyEnv], num_workers=1) as envs:
        cwd, variable, path = tell(envs, ask)[0]
        assert (cwd, variable, path[0]) == (str(tmp_path), "here", str(tmp_path / "modules"))
    until_returned(pool)
    monkeypatch.delenv("OF_THE_LESSEE")
    monkeypatch.chdir("/")
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert tell(envs, ask)[0][:2] == ("/", None)


def test_what_environments_print_goes_to_their_lessee(pool, capfd):
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, "import os; print('by print'); os.write(2, b'by write')")
    until_returned(pool)
    output, errors = capfd.readouterr()
    assert "by print" in output
    assert "by write" in errors


PUT_BACK = {
    "variables": ("os.environ['LEFT'] = '1'", "os.environ.get('LEFT')"),
    "working directory": ("os.chdir('/usr')", "os.getcwd() == '/usr'"),
    "module path": ("sys.path.insert(0, '/usr/left')", "'/usr/left' in sys.path"),
    "ids": ("gymnasium.register('Left-v0', 'left:Left')", "'Left-v0' in gymnasium.registry"),
    "signal handler": ("signal.signal(signal.SIGUSR2, lambda *_: None)", "str(signal.getsignal(signal.SIGUSR2))[:10]"),
    "timer": ("signal.setitimer(signal.ITIMER_VIRTUAL, 1e6)", "signal.getitimer(signal.ITIMER_VIRTUAL) == (0, 0)"),
    "umask": ("os.umask(0o777)", "open('/proc/self/status').read().split('Umask:')[1].split()[0]"),
    "floating point": ("numpy.seterr(all='ignore')", "sorted(numpy.geterr().items())"),
    "warnings": ("warnings.simplefilter('error')", "warnings.filters[0][0]"),
    "collector": ("gc.disable()", "gc.isenabled()"),
    "stdout": ("sys.stdout = open(os.devnull, 'w')", "sys.stdout.name"),
    "open files limit": (
        "resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))",
        "resource.getrlimit(resource.RLIMIT_NOFILE)[0]",
    ),
}
IMPORTS = "import gc, os, random, resource, signal, sys, warnings; import gymnasium, numpy\n"


@pytest.mark.parametrize("name", PUT_BACK)
def test_the_next_lessee_finds_nothing_of_what_was_changed(pool, name):
    change, look = PUT_BACK[name]
    look = f"{IMPORTS}result = repr({look})"
    with pool.lease([MessyEnv], num_workers=1) as envs:
        untouched = tell(envs, look)
    until_returned(pool)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, IMPORTS + change)
        assert tell(envs, look) != untouched
        worker = pids(envs)
    until_returned(pool)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert pids(envs) == worker  # it was put back, and not replaced
        assert tell(envs, look) == untouched


def test_a_seed_of_global_generators_does_not_reach_the_next_lessee(pool):
    look = f"{IMPORTS}random.seed(1); numpy.random.seed(1)"
    draw = f"{IMPORTS}result = random.random(), numpy.random.random()"
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, look)
        seeded = tell(envs, draw)[0]
        tell(envs, look)
    until_returned(pool)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert set(tell(envs, draw)[0]).isdisjoint(seeded)


NOT_TO_BE_PUT_BACK = {
    "a thread": "import threading; threading.Thread(target=threading.Event().wait, daemon=True).start()",
    "a thread that never ends": "import threading; threading.Thread(target=threading.Event().wait).start()",
    "a process": "import subprocess; subprocess.Popen(['sleep', '1000'], stdout=subprocess.DEVNULL)",
    "a fork": "import os, time\nif not os.fork():\n    time.sleep(1000)",
    "an orphan": "import os; os.system('sleep 1000 >/dev/null &')",
    "an open file": "import os; os.open('/dev/null', os.O_RDONLY)",
}


@pytest.mark.parametrize("name", NOT_TO_BE_PUT_BACK)
def test_a_worker_that_cannot_be_wiped_is_replaced(pool, name):
    before, after = after_a_lease(pool, NOT_TO_BE_PUT_BACK[name])
    assert before != after
    wait_until(lambda: have_ended([before]))
    with pytest.raises(ProcessLookupError):
        wait_until(lambda: os.killpg(before, 0))  # with what it had started


def test_a_lease_of_large_environments_leaves_no_memory(pool):
    with pool.lease([MessyEnv], num_workers=1) as envs:
        (worker,) = pids(envs)
        before = psutil.Process(worker).memory_info().rss
        tell(envs, "import builtins, numpy; builtins.left = [numpy.ones(20_000_000)]; builtins.left.clear()")
        envs.set_attr("ballast", [np.ones(20_000_000)])
    until_returned(pool)
    assert psutil.Process(worker).memory_info().rss < before + 50_000_000


def test_own_code_that_was_edited_runs_as_it_is_now(pool, tmp_path, monkeypatch):
    (tmp_path / "own_env.py").write_text("ANSWER = 1")
    monkeypatch.syspath_prepend(str(tmp_path))
    ask = "import own_env, gymnasium.wrappers; result = own_env.ANSWER"
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert tell(envs, ask) == [1]
    until_returned(pool)
    (tmp_path / "own_env.py").write_text("ANSWER = 22")
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert tell(envs, ask) == [22]


def test_modules_of_installed_packages_stay(pool, tmp_path, monkeypatch):
    """Also where the worker had to be replaced: its successor imports them before it is lent."""
    (tmp_path / "own_env.py").write_text("import colorsys, yaml")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, "import own_env")
    until_returned(pool)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        assert tell(envs, "import sys; result = 'yaml' in sys.modules, 'own_env' in sys.modules") == [(True, False)]


def test_an_environment_that_raises_as_it_is_made_costs_no_room(pool):
    def broken() -> gymnasium.Env:
        if os.getpid() != here:
            raise ValueError("not today")
        return MessyEnv()

    here = os.getpid()
    for _ in range(3):
        with pytest.raises(EnvRaisedError, match="not today"):
            pool.lease([broken] * 4, num_workers=4)
    with pool.lease([MessyEnv] * 4, num_workers=4) as envs:
        assert len(set(pids(envs))) == 4


ENDS_IN_A_WIPE = """
import os, signal, sys, threading
class Last:
    def __del__(self):  # once the worker has its own hook back
        {}
sys.displayhook = Last()
"""


@pytest.mark.parametrize(
    "how",
    [
        pytest.param("os.kill(os.getpid(), signal.SIGKILL)", id="killed"),
        pytest.param("threading.Event().wait()", id="hangs", marks=pytest.mark.slow),
    ],
)
def test_a_worker_that_ends_or_hangs_while_it_is_wiped_is_replaced(pool, how):
    with pool.lease([MessyEnv], num_workers=1) as envs:
        tell(envs, ENDS_IN_A_WIPE.format(how))
        (victim,) = pids(envs)
    with pool.lease([MessyEnv] * 4, num_workers=4, wait_s=60) as envs:
        assert victim not in pids(envs)
    until_returned(pool)
    assert have_ended([victim])


class ClosesBadly(MessyEnv):
    """Fails in close(), but not in the process `home`."""

    def __init__(self, home: int) -> None:
        super().__init__()
        self.home = home

    def close(self) -> None:
        if os.getpid() != self.home:
            raise OSError("the licence server is gone")


def test_an_environment_that_fails_in_close_is_told_and_ends_its_lease(pool, capfd):
    envs = pool.lease([partial(ClosesBadly, os.getpid())] * 2, num_workers=2)
    envs.reset(seed=0)
    envs.close()
    with pool.lease([MessyEnv] * 4, num_workers=4, wait_s=60) as others:
        assert len(set(pids(others))) == 4
    assert "OSError: the licence server is gone" in capfd.readouterr().err


def test_environments_move_to_other_workers_within_a_full_pool(named):
    """A warning, as of a refusal, would be an error here."""
    with ParallelEnv([MessyEnv] * 4, num_workers=4) as envs:
        envs.reset(seed=0)
        for num_workers in (3, 4, 2):
            envs.rescale(num_workers)
            assert set(pids(envs)) <= set(named.state().pids)
            envs.step([1] * 4)
            wait_until(lambda n=num_workers: named.state().held == {f"process {os.getpid()}": (4, n)})
            wait_until(lambda: named.state().n_workers <= 4)
        assert envs.take_notices() == []


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSEGV])
def test_a_leased_worker_that_is_killed_is_told_as_any_other(pool, how):
    with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        victim = pids(envs)[1]
        os.kill(victim, how)
        with pytest.raises(WorkerDiedError, match=rf"Worker 1 \(environment 1\) was killed by {how.name}"):
            step_until_one_fails(envs)
    until_returned(pool)
    with pool.lease([MessyEnv] * 4, num_workers=4) as envs:
        assert victim not in pids(envs)


def test_sigterm_to_all_processes_is_left_to_the_lessee(pool):
    """A service manager sends it to every process of a service."""
    with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
        envs.reset(seed=0)
        workers = pids(envs)
        for pid in {*workers, *(psutil.Process(pid).ppid() for pid in workers)}:
            os.kill(pid, signal.SIGTERM)
        for _ in range(20):
            envs.step([0, 0])
        ended = "import subprocess; p = subprocess.Popen(['sleep', '600']); p.terminate(); result = p.wait()"
        assert (pids(envs), tell(envs, ended)) == (workers, [-signal.SIGTERM] * 2)
    until_returned(pool)
    with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
        assert set(pids(envs)) == set(workers)


def test_a_failed_worker_is_restarted_from_the_pool(named):
    with ParallelEnv([MessyEnv] * 4, num_workers=2, on_worker_failure="restart") as envs:
        envs.reset(seed=0)
        os.kill(pids(envs)[3], signal.SIGKILL)
        while not envs.num_restarts:
            envs.step([0] * 4)
        assert set(pids(envs)) <= set(named.state().pids)
        assert named.state().n_envs == 4


def test_a_step_that_hangs_is_told_with_its_stack(pool):
    class Hanging(MessyEnv):
        def step(self, action: int) -> Any:
            return threading.Event().wait()

    with pool.lease([Hanging], num_workers=1, step_timeout_s=0.5) as envs:
        envs.reset(seed=0)
        with pytest.raises(StepTimeoutError, match=r"in step"):
            envs.step([0])


@pytest.mark.parametrize("is_noticed", [True, False], ids=["noticed", "not noticed yet"])
def test_an_idle_worker_that_was_killed_is_lent_to_nobody(pool, is_noticed):
    with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
        victim, other = pids(envs)
    until_returned(pool)
    os.kill(victim, signal.SIGKILL)
    if is_noticed:
        wait_until(lambda: have_ended([victim]))
    with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
        assert victim not in pids(envs)
        assert other in pids(envs) or not is_noticed


def test_idle_workers_end_after_a_while():
    with EnvPool(max_concurrent_envs=4, idle_s=0.2) as pool:
        with pool.lease([MessyEnv] * 2, num_workers=2) as envs:
            workers = pids(envs)
        wait_until(lambda: pool.state().n_workers == 0)
        assert have_ended(workers)


def test_more_environments_than_the_limit_are_refused(pool):
    with pytest.raises(LeaseRefused, match=r"5 environments do not fit into a pool of max_concurrent_envs=4"):
        pool.lease([MessyEnv] * 5, num_workers=2)


def test_who_waits_in_vain_reads_who_holds_how_many(pool):
    with (
        pool.lease([MessyEnv] * 3, num_workers=1),
        pytest.raises(LeaseRefused, match=rf"3 are lent.*; process {os.getpid()} holds 3"),
    ):
        pool.lease([MessyEnv] * 2, num_workers=1, wait_s=0.1)


def test_a_lease_waits_for_room_and_nobody_overtakes(pool):
    got: list[str] = []

    def want(name: str, n_envs: int) -> threading.Thread:
        def ask() -> None:
            with pool.lease([MessyEnv] * n_envs, num_workers=1, wait_s=60):
                got.append(name)

        thread = threading.Thread(target=ask)
        n_waiting = pool.state().n_waiting
        thread.start()
        wait_until(lambda: pool.state().n_waiting > n_waiting)
        return thread

    with pool.lease([MessyEnv], num_workers=1):
        threads = [want("all of it", 4), want("what would fit", 1)]
        assert got == []
    for thread in threads:
        thread.join()
    assert got == ["all of it", "what would fit"]


def test_two_lessees_race_for_the_last_workers(pool):
    most: list[int] = []
    failures: list[BaseException] = []

    def use() -> None:
        try:
            for _ in range(5):
                with pool.lease([cartpole] * 3, num_workers=3, wait_s=100) as envs:
                    most.append(pool.state().n_envs)
                    envs.reset(seed=0)
                    envs.step([0] * 3)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=use) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    assert set(most) <= {3, 4}  # workers come back one by one: the next three may be lent while the last one is out


LESSEE = """
import os, sys
from tests.service.test_env_pool import MessyEnv
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

if __name__ == "__main__":
    envs = ParallelEnv([MessyEnv] * 4, num_workers=2)
    envs.reset(seed=0)
    print(*envs.call("pid"), flush=True)
    if os.environ.get("HANG"):
        envs.call("run", "import threading; threading.Event().wait()")
    sys.stdin.read()
    envs.step([0] * 4)
    print("stepped", flush=True)
    envs.close()
"""


def start(folder: Path, text: str, **environ: str) -> "subprocess.Popen[str]":
    """Runs a script with the interpreter's flags of this process, as a service would."""
    script = folder / "script.py"
    script.write_text(text)
    pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ}
    return subprocess.Popen([sys.executable, str(script)], text=True, env=environ, **pipes)


@pytest.fixture
def lessee(named: EnvPool, tmp_path: Path) -> Iterator[Callable[..., tuple["subprocess.Popen[str]", list[int]]]]:
    """Starts another process that holds a lease of 4 environments; it and its workers' pids."""
    started: list[subprocess.Popen[str]] = []

    def hold(**environ: str) -> tuple["subprocess.Popen[str]", list[int]]:
        process = start(tmp_path, LESSEE, **environ)
        started.append(process)
        assert process.stdout is not None
        return process, [int(pid) for pid in process.stdout.readline().split()]

    yield hold
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("environ", [{}, {"HANG": "1"}])
def test_the_lease_of_a_killed_run_is_taken_back(named, lessee, environ):
    process, workers = lessee(**environ)
    assert named.state().held == {f"process {process.pid}": (4, 2)}
    process.kill()
    with named.lease([MessyEnv] * 4, num_workers=2, wait_s=60) as envs:
        assert set(pids(envs)).isdisjoint(workers)
    wait_until(lambda: have_ended(workers))


def broker_of(pool: EnvPool) -> int:
    return pool._process.pid


@pytest.mark.slow
def test_leased_workers_outlive_a_killed_pool(named, lessee):
    process, workers = lessee()
    os.kill(broker_of(named), signal.SIGKILL)
    output, errors = process.communicate("go on", timeout=60)
    assert (output, errors) == ("stepped\n", "")
    wait_until(lambda: have_ended(workers))


OWNER = """
import sys
from ml_pipeline.service.env_pool import EnvPool

pool = EnvPool(max_concurrent_envs=4)
print(pool.address, pool._process.pid, flush=True)
sys.stdin.read()
"""


@pytest.mark.slow
def test_leased_workers_outlive_a_killed_service(tmp_path, monkeypatch):
    (tmp_path / "owner").mkdir()
    (tmp_path / "run").mkdir()
    owner = start(tmp_path / "owner", OWNER)
    assert owner.stdout is not None
    address, broker = owner.stdout.readline().split()
    run = start(tmp_path / "run", LESSEE, **{ENV_POOL_VARIABLE: address})
    assert run.stdout is not None
    workers = [int(pid) for pid in run.stdout.readline().split()]
    owner.kill()
    owner.communicate()
    monkeypatch.setenv(ENV_POOL_VARIABLE, address)
    wait_until(lambda: not answers(address))
    with pytest.warns(RuntimeWarning, match=r"gone .* Workers are started as usual"):
        ParallelEnv([MessyEnv], num_workers=1).close()
    os.kill(workers[0], signal.SIGKILL)
    _, errors = run.communicate("go on", timeout=60)
    assert "WorkerDiedError: Worker 0 (environments 0 to 1) was killed by SIGKILL" in errors
    wait_until(lambda: have_ended([*workers, int(broker)]))


def answers(address: str) -> bool:
    try:
        messages.connect(address, timeout_s=5).close()
    except OSError:
        return False
    return True


def test_closing_a_pool_ends_its_idle_workers_at_once_and_others_later():
    pool = EnvPool(max_concurrent_envs=4)
    with pool.lease([MessyEnv], num_workers=1) as envs:
        workers = list(pool.state().pids)
        pool._owner.close()
        wait_until(lambda: not answers(pool.address))
        assert pids(envs) == workers
    pool.close()
    pool.close()
    wait_until(lambda: have_ended([*workers, broker_of(pool)]))
    with pytest.raises(UserError, match="is closed"):
        pool.state()


def test_without_a_pool_at_the_address_workers_are_started_as_usual(monkeypatch):
    monkeypatch.setenv(ENV_POOL_VARIABLE, "ml-env-pool-of-nobody")
    with pytest.warns(RuntimeWarning, match=r"ml-env-pool-of-nobody is gone .* Workers are started as usual\."):
        envs = ParallelEnv([MessyEnv] * 2, num_workers=2)
    with envs:
        assert len(set(pids(envs))) == 2
        (notice,) = envs.take_notices()
        assert "ml-env-pool-of-nobody is gone" in notice
        assert envs.take_notices() == []


def test_a_long_folder_for_temporary_files_is_no_hindrance(tmp_path, monkeypatch):
    folder = tmp_path / ("x" * 200)
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    with EnvPool(max_concurrent_envs=1) as pool, pool.lease([MessyEnv], num_workers=1) as envs:
        envs.reset(seed=0)
    assert list(folder.iterdir()) == []


def test_a_lessee_with_other_code_is_refused(pool, monkeypatch):
    monkeypatch.setattr("ml_pipeline.models.rl.core.workers.warm.lender.code_stamp", lambda: "other")
    with pytest.raises(LeaseRefused, match="runs other code than this process"):
        pool.lease([MessyEnv], num_workers=1)


@pytest.mark.filterwarnings("ignore:.*while waiting for a pending call")
def test_late_replies_of_an_earlier_lease_reach_nobody(pool):
    """The pipes are new for each lease, so a worker that is asked and not listened to is closed, or ended, first."""
    for _ in range(3):
        envs = pool.lease([cartpole] * 2, num_workers=2)
        envs.reset(seed=0)
        envs.step_async([0, 0])
        envs.close()
        with pool.lease([cartpole] * 2, num_workers=2) as other:
            assert other.reset(seed=1)[0].shape == (2, 4)


def test_preload_takes_what_is_installed(tmp_path, monkeypatch):
    with EnvPool(max_concurrent_envs=1, preload=["yaml"]) as pool, pool.lease([MessyEnv], num_workers=1) as envs:
        assert tell(envs, "import sys; result = 'yaml' in sys.modules") == [True]
    (tmp_path / "own_module.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(UserError, match="own_module lies in"):
        EnvPool(preload=["own_module"])
    with pytest.raises(UserError, match="There is no module"):
        EnvPool(preload=["no_such_module_at_all"])


def test_where_the_system_cannot_lend_a_sentence_says_so(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UserError, match="Warm workers need Linux"):
        EnvPool()
    monkeypatch.setenv(ENV_POOL_VARIABLE, "of-another-time")
    with ParallelEnv([MessyEnv], num_workers=1, start_method="forkserver") as envs:
        envs.reset(seed=0)


def test_wrong_settings_are_refused():
    with pytest.raises(UserError, match="must be at least 1"):
        EnvPool(max_concurrent_envs=0)

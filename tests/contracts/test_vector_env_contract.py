"""What every vectorizer keeps: one class of tests, run over `SerialEnv` and over `ParallelEnv` in every manner."""

import contextlib
import itertools
from typing import Any

import gymnasium
import pytest

from ml_pipeline.models.rl.core import arguments
from ml_pipeline.models.rl.core.stepping.errors import EnvRaisedError, StateNotAvailable
from ml_pipeline.models.rl.core.vec_env import ParallelEnv, SerialEnv
from ml_pipeline.models.rl.core.workers.choice import Division
from ml_pipeline.testing.vector_envs import N, VectorEnvContract, assert_equal, counting, trajectory
from tests.contracts.failures import FailureContract
from tests.contracts.reaching import ReachingContract
from tests.contracts.states import StatesContract


class OwnContract(VectorEnvContract, ReachingContract, FailureContract, StatesContract):
    """What our vectorizers keep besides: how their environments are reached, fail, and save their states."""


class TestSerialEnv(OwnContract):
    def vectorizer(self, env_fns: Any, **kwargs: Any) -> SerialEnv:
        return SerialEnv(env_fns, **kwargs)


# The long ones start thousands of processes, and nearly all that they show the others show as well.
_LONG_MANNERS = (("fork", 3), ("forkserver", N))


@pytest.mark.filterwarnings("ignore:start_method='fork'")
class TestParallelEnv(OwnContract):
    MANNERS = (
        ("forkserver", 0),
        ("forkserver", 2),
        *(pytest.param(manner, marks=pytest.mark.long) for manner in _LONG_MANNERS),
    )

    @pytest.fixture(autouse=True, params=MANNERS, ids=lambda manner: f"{manner[0]}-{manner[1]}")
    def _manner(self, request: pytest.FixtureRequest) -> None:
        self.start_method, self.num_workers = request.param

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, start_method=self.start_method, num_workers=self.num_workers, **kwargs)


class TestParallelEnvBySpawn:
    """What may depend on how a process came to be; all of it would take a minute, half a second a start."""

    make = OwnContract.make
    test_steps = OwnContract.test_steps_as_gymnasium_does
    test_attributes = OwnContract.test_call_and_attributes
    test_raising_step = OwnContract.test_a_raising_step_is_told_in_full
    test_raising_construction = OwnContract.test_a_raising_construction_is_told
    test_states = OwnContract.test_states_hold_wrappers_and_pending_resets

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, start_method="spawn", num_workers=2, **kwargs)


class TestParallelEnvThatStepsAShare(OwnContract):
    """What "auto" chooses where steps compute: this process steps the first block, two workers the others."""

    @pytest.fixture(autouse=True)
    def _division(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def shared(example: gymnasium.Env, num_envs: int) -> Division:
            return Division(min(2, num_envs - 1), steps_here=True)

        monkeypatch.setattr(arguments, "_fastest", shared)

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        envs = ParallelEnv(env_fns, **kwargs)
        assert envs.steps_here
        return envs


class MovingEnv(ParallelEnv):
    """Moves to other workers before every second step."""

    _moves = itertools.cycle([None, (0, False), None, (2, False), None, (1, True), None, (3, False)])

    def _step_async(self, actions: Any) -> None:
        if not self.closed and self._pending is None and (move := next(self._moves)) is not None:
            num_workers, steps_here = move
            with contextlib.suppress(StateNotAvailable, EnvRaisedError):  # by environments whose state is a trap
                self.rescale(num_workers, steps_here=steps_here)
        super()._step_async(actions)


@pytest.mark.long  # of each move, tests/models/rl/core/test_rescaling.py shows daily that it changes no bit
class TestParallelEnvThatMoves(OwnContract):
    """Environments whose workers change while they are stepped."""

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> MovingEnv:
        return MovingEnv(env_fns, num_workers=0, **kwargs)


@pytest.mark.slow
class TestParallelEnvInGroups(OwnContract):
    """Environments that could be stepped apart from each other, stepped all at once."""

    def vectorizer(self, env_fns: Any, **kwargs: Any) -> ParallelEnv:
        return ParallelEnv(env_fns, num_workers=3, num_groups=min(2, len(env_fns)), **kwargs)


@pytest.mark.filterwarnings("ignore:start_method='fork'")
@pytest.mark.parametrize(("method", "workers"), [("spawn", 2), ("fork", 1), ("fork", 7), ("forkserver", 3)])
def test_partition_changes_nothing(method: Any, workers: int) -> None:
    env_fns = [counting(i) for i in range(7)]
    with SerialEnv(env_fns) as serial, ParallelEnv(env_fns, start_method=method, num_workers=workers) as parallel:
        assert (parallel.num_workers, parallel.start_method) == (workers, method)
        assert_equal(trajectory(parallel, 30), trajectory(serial, 30))
        serial.set_states(parallel.get_states())
        assert_equal(trajectory(parallel, 30, seed=None), trajectory(serial, 30, seed=None))

"""The part of the contract about what a reset begins anew, with which seeds."""

import re
from typing import Any

import numpy as np
import pytest
from gymnasium.vector import AutoresetMode

from ml_pipeline.models.rl.core.probe_envs import CountingEnv
from ml_pipeline.models.rl.core.stepping.errors import ResetRequiredError


class ResettingContract:
    @pytest.mark.parametrize(
        "seed", [7, np.int64(7), [7, 8, 9], np.array([7, 8, 9])], ids=["int", "np", "list", "array"]
    )
    def test_environment_i_is_seeded_by_its_index(self, make: Any, seed: Any) -> None:
        envs = make([lambda: CountingEnv(spread=90)] * 3)
        expected = [CountingEnv(spread=90).reset(seed=7 + i)[0].copy() for i in range(3)]
        np.testing.assert_array_equal(envs.reset(seed=seed)[0], expected)
        assert envs.np_random_seed == (7, 8, 9)

    def test_without_a_seed_generators_go_on(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(spread=90)] * 2)
        first, _ = envs.reset(seed=3)
        second, _ = envs.reset()
        assert (first[:, 2] != second[:, 2]).all()
        assert envs.np_random_seed == (3, 4)

    def test_wrong_number_of_seeds(self, make: Any) -> None:
        with pytest.raises(ValueError, match=re.escape("must match num_envs=2 but got length=3")):
            make([CountingEnv] * 2).reset(seed=[1, 2, 3])

    def test_options_reach_every_environment(self, make: Any) -> None:
        _, infos = make([CountingEnv] * 2).reset(seed=0, options={"level": 4})
        assert infos["options"].tolist() == ["{'level': 4}"] * 2

    def test_mask_resets_only_those(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=50)] * 3)
        envs.reset(seed=0)
        before = envs.step([0, 0, 0])[0]
        options = {"reset_mask": np.array([False, True, False]), "level": 4}
        after, infos = envs.reset(seed=[1, 1, 1], options=options)
        assert list(options) == ["reset_mask", "level"]
        np.testing.assert_array_equal(after[[0, 2]], before[[0, 2]])
        assert after[1, :2].tolist() == [1, 0]
        assert infos["_options"].tolist() == [False, True, False]
        assert infos["options"][1] == "{'level': 4}"

    @pytest.mark.parametrize(
        ("mask", "error"),
        [
            ([True, False], TypeError),
            (np.array([1, 0]), TypeError),
            (np.array([True]), ValueError),
            (np.array([[True, False]]), ValueError),
            (np.array([False, False]), ValueError),
        ],
    )
    def test_unfit_masks_are_named(self, make: Any, mask: Any, error: type[Exception]) -> None:
        envs = make([CountingEnv] * 2)
        envs.reset(seed=0)
        with pytest.raises(error, match=re.escape("`options['reset_mask']` must ")):
            envs.reset(options={"reset_mask": mask})

    @pytest.mark.parametrize("masked", [False, True])
    def test_explicit_reset_clears_a_pending_autoreset(self, make: Any, masked: bool) -> None:
        envs = make([lambda: CountingEnv(length=2)] * 2, autoreset_mode=AutoresetMode.NEXT_STEP)
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0])[2].all()
        envs.reset(options={"reset_mask": np.array([True, True])} if masked else None)
        observations, rewards, *_ = envs.step([1, 1])
        assert rewards.tolist() == [11.0, 11.0]  # the action counted: no reset swallowed it
        assert observations[:, :2].tolist() == [[2, 1], [2, 1]]

    def test_disabled_autoreset_refuses_a_finished_environment(self, make: Any) -> None:
        envs = make([lambda: CountingEnv(length=2), CountingEnv], autoreset_mode=AutoresetMode.DISABLED)
        envs.reset(seed=0)
        envs.step([0, 0])
        assert envs.step([0, 0])[2].tolist() == [True, False]
        with pytest.raises(ResetRequiredError, match=re.escape("environments [0] are over")):
            envs.step([0, 0])
        observations, _ = envs.reset(options={"reset_mask": np.array([True, False])})
        assert observations[:, 1].tolist() == [0, 2]  # the refused step touched nobody
        assert envs.step([0, 0])[0][:, 1].tolist() == [1, 3]

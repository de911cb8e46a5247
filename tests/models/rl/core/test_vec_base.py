from typing import Any

import numpy as np
import pytest
from gymnasium.utils.env_checker import data_equivalence
from gymnasium.vector import VectorEnv

from ml_pipeline.models.rl.core.vec_base import join_infos

N = 4
PARTS: dict[str, list[tuple[int, dict[str, Any]]]] = {
    "none": [],
    "one": [(2, {"a": 1.5})],
    "numbers": [(i, {"a": 1.5 * i, "b": i, "c": i > 1, "d": np.float32(i), "e": np.int64(i)}) for i in range(N)],
    "some environments": [(3, {"a": 1.0, "b": 2}), (1, {"a": 3.0, "b": 4})],
    "other keys": [(0, {"a": 1.0}), (1, {"a": 3.0, "b": 4}), (2, {"b": 5})],
    "mixed kinds": [(0, {"a": 1}), (1, {"a": 3.7}), (2, {"a": True})],
    "no numbers": [(i, {"text": str(i), "array": np.arange(2) + i, "none": None, "a": i}) for i in range(N)],
    "nested": [(i, {"a": {"b": float(i), "c": {"d": i}}, "e": 1.0}) for i in range(N)],
    "order": [(1, {"a": 1.0, "b": 2.0}), (0, {"b": 3.0, "a": 4.0})],
    "a final": [(i, {"final_obs": np.arange(2), "a": 1.0}) for i in range(2)],
}


@pytest.mark.parametrize("parts", PARTS.values(), ids=PARTS)
@pytest.mark.parametrize("before", [{}, {"e": np.zeros(N), "_e": np.zeros(N, bool)}], ids=["empty", "begun"])
def test_joins_as_gymnasium_does(parts: list[tuple[int, dict[str, Any]]], before: dict[str, Any]) -> None:
    envs = VectorEnv()
    envs.num_envs = N
    expected = {key: value.copy() for key, value in before.items()}
    for index, info in parts:
        expected = envs._add_info(expected, info, index)
    joined = join_infos({key: value.copy() for key, value in before.items()}, parts, N, envs._add_info)
    assert list(joined) == list(expected)
    assert data_equivalence(joined, expected)

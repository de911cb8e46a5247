"""How many environments are taken: by what a step costs, and within cores, memory and the limit."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.workers.choice import StepCost
from ml_pipeline.service.env_builder import choose_n_envs

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

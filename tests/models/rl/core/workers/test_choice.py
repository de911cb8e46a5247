"""How many workers are chosen, from times that are given."""

import math
import os
import random
import threading
import time
from typing import Any

import numpy as np
import pytest

from ml_pipeline.models.rl.core.probe_envs import FaultyEnv, TimedEnv
from ml_pipeline.models.rl.core.workers.choice import (
    HERE,
    Division,
    DynamicChoice,
    Look,
    Move,
    StepCost,
    choose_division,
    expected_step_s,
    measure_step,
    measure_wake,
)
from tests.contracts.envs import MaskedEnv


@pytest.mark.parametrize(
    ("cpu_s", "wait_s", "num_envs", "cores", "expected"),
    [
        (1e-6, 0.0, 8, 2, HERE),  # handing over takes longer than all eight steps
        (1e-3, 0.0, 8, 2, Division(1, steps_here=True)),  # computing: a block a core, this process's included
        (1e-3, 0.0, 8, 1, HERE),  # computing on one core: nothing to gain
        (1e-3, 0.0, 8, 16, Division(7, steps_here=True)),
        (1e-3, 0.0, 64, 16, Division(15, steps_here=True)),
        (1e-5, 2e-3, 8, 2, Division(8, steps_here=False)),  # waiting: all at once
        (1e-5, 2e-3, 8, 1, Division(8, steps_here=False)),
        (0.5, 0.0, 8, 2, Division(2, steps_here=False)),  # a long step here would hide that a worker died
        (1e-3, 0.0, 1, 8, HERE),
    ],
)
def test_the_fastest_division_is_chosen(
    cpu_s: float, wait_s: float, num_envs: int, cores: float, expected: Division
) -> None:
    assert choose_division(StepCost(cpu_s, wait_s), num_envs, cores, wake_s=2e-5) == expected


def test_an_unknown_cost_gets_a_worker_a_core() -> None:
    assert choose_division(None, num_envs=8, cores=3.5, wake_s=2e-5) == Division(3, steps_here=False)
    assert choose_division(None, num_envs=8, cores=1.0, wake_s=2e-5) == HERE


def test_computing_and_waiting_are_told_apart() -> None:
    busy = measure_step(TimedEnv(busy_s=2e-3), budget_s=0.05)
    waiting = measure_step(TimedEnv(wait_s=2e-3), budget_s=0.05)
    assert busy is not None
    assert waiting is not None
    assert busy.cpu_s >= 2e-3 > waiting.cpu_s
    assert waiting.wait_s > 1e-3


def test_measuring_leaves_the_global_generators_as_they_were() -> None:
    class DrawingEnv(TimedEnv):
        def step(self, action: Any) -> Any:
            np.random.random()
            return super().step(action)

    before = np.random.get_state()[1].tolist()
    assert measure_step(DrawingEnv(), budget_s=0.01) is not None
    assert np.random.get_state()[1].tolist() == before


class SlowMaskedEnv(MaskedEnv):
    """Takes 1 ms for a step, and 20 ms to say what is allowed."""

    def _mask(self) -> np.ndarray:
        _compute(20e-3)
        return super()._mask()

    def step(self, action: Any) -> Any:
        _compute(1e-3)
        return super().step(action)


def _compute(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


def test_masks_are_kept_to_and_choosing_is_no_part_of_the_step() -> None:
    cost = measure_step(SlowMaskedEnv("method"), budget_s=0.05)
    assert cost is not None
    assert 1e-3 <= cost.cpu_s < 10e-3


def test_an_environment_that_refuses_is_not_measured() -> None:
    assert measure_step(FaultyEnv("raise"), budget_s=0.05) is None


def test_where_waking_is_dear_few_wait_together() -> None:
    # Eight waits of 20 µs: 160 µs in-process; by four workers 40 µs, 32 µs for their system calls, and the waking.
    cost = StepCost(cpu_s=0.0, wait_s=2e-5)
    assert choose_division(cost, num_envs=8, cores=1, wake_s=1e-5).n_workers == 4
    assert choose_division(cost, num_envs=8, cores=1, wake_s=1e-4) == HERE


def test_measuring_a_wake_up_leaves_no_thread_and_no_descriptor() -> None:
    threads, descriptors = threading.active_count(), len(os.listdir("/proc/self/fd")) if os.path.exists("/proc") else 0
    assert 0 < measure_wake() < 1
    assert threading.active_count() == threads
    if os.path.exists("/proc"):
        assert len(os.listdir("/proc/self/fd")) == descriptors


SHARED = Division(1, steps_here=True)
COMPUTES, TINY, WAITS = StepCost(1e-3, 0.0), StepCost(1e-6, 0.0), StepCost(1e-5, 5e-3)
WAKE_S = 6e-5


def workers(n):
    return Division(n, steps_here=False)


class Machine:
    """A simulated training of which the model is true, unless `factor` says otherwise of a division.

    Each look lasts a second, of which `share` goes into steps.
    """

    def __init__(self, cost=COMPUTES, *, division=HERE, num_envs=8, cores=2.0, share=0.8, left_s=1e4, **kwargs):
        self.cost, self.division, self.num_envs, self.cores = cost, division, num_envs, cores
        self.share, self.left_s, self.factor = share, left_s, kwargs.pop("factor", {})
        self.choice = DynamicChoice(kwargs.pop("known", cost), wake_s=WAKE_S, **kwargs)
        self.moves = []

    def look(self):
        step_s = expected_step_s(self.division, self.cost, self.num_envs, self.cores, wake_s=WAKE_S)
        step_s *= self.factor.get(self.division, 1.0)
        return Look(
            division=self.division,
            num_envs=self.num_envs,
            step_s=step_s,
            n_steps=max(1, int(self.share / step_s)),
            wall_s=1.0,
            free_cores=self.cores,
            left_s=self.left_s,
        )

    def run(self, seconds, *, move_s=0.3):
        for _ in range(seconds):
            self.left_s -= 1.0
            move = self.choice.next_move(self.look())
            if move is not None:
                self.choice.moved(move_s)
                self.division = move.division
                self.moves.append(move)
        return self.moves


def test_a_free_core_is_used_once_several_looks_agree():
    machine = Machine()
    assert machine.run(2) == []
    assert machine.run(1) == [Move(division=SHARED, reason="the machine has a free core")]
    assert len(machine.run(1000)) == 1


def test_others_on_the_machine_take_it_back():
    machine = Machine(division=SHARED, cores=1.0)
    (move,) = machine.run(200)  # though its steps take as long without the worker
    assert move.division == HERE
    assert move.reason == "other processes use the machine, and 1.0 cores are left for this run"


@pytest.mark.parametrize("cost", [COMPUTES, TINY, WAITS])
@pytest.mark.parametrize("cores", [1.0, 2.0, 4.0])
def test_it_comes_to_rest_where_the_model_is_the_shortest(cost, cores):
    for division in (HERE, SHARED, workers(2), workers(8)):
        machine = Machine(cost, division=division, cores=cores)
        machine.run(500)
        n_moves = len(machine.moves)
        everywhere = [HERE, SHARED, Division(3, steps_here=True), *(workers(n) for n in (2, 4, 8))]
        best = min(expected_step_s(each, cost, 8, cores, wake_s=WAKE_S) for each in everywhere)
        assert machine.look().step_s <= 1.2 * best
        machine.run(500)
        assert len(machine.moves) == n_moves <= 2


def test_a_load_that_comes_and_goes_does_not_make_it_flap():
    machine, rng = Machine(), random.Random(0)
    for _ in range(1000):
        machine.cores = rng.choice([1.0, 2.0])
        machine.run(1)
    # Ten moves of 0.3 s in 1,000 s would gain little, but also cost nothing.
    assert len(machine.moves) <= 1000 / (20 * 0.3)


def test_moves_cost_less_than_a_twentieth_of_the_time():
    machine, spent_s = Machine(), 0.0
    for second in range(2000):
        machine.cores = 1.0 + second // 7 % 2
        before = len(machine.moves)
        machine.run(1, move_s=2.0)
        spent_s += 2.0 * (len(machine.moves) - before)
    assert spent_s <= 2000 / 20 + 2 * 2.0


def test_a_move_that_was_wrong_is_taken_back_and_not_tried_again_under_the_same_load():
    machine = Machine(factor={SHARED: 3.0, workers(2): 3.0, workers(4): 3.0, workers(8): 3.0})
    moves = [move.division for move in machine.run(5000)]
    assert moves[:2] == [SHARED, HERE]
    assert moves[1::2] == [HERE] * (len(moves) // 2)
    assert len(moves) <= 10  # each wrong one once
    assert machine.moves[1].reason == "steps took longer"
    machine.factor = {}
    machine.cores = 1.0
    machine.run(2000)
    machine.cores = 2.0
    machine.run(2000)
    assert machine.division == SHARED


def test_what_cannot_pay_back_before_the_end_is_left_alone():
    assert Machine(left_s=2.0, move_s=0.5).run(2) == []
    assert Machine(left_s=5.0, move_s=5.0).run(4) == []
    assert Machine(left_s=1e5, move_s=100.0).run(50) == []


def test_where_steps_are_a_small_part_of_the_time_nothing_moves():
    assert Machine(share=0.1).run(500) == []


def test_steps_that_wait_get_more_workers_than_cores():
    machine = Machine(WAITS)
    (move,) = machine.run(500)
    assert move.division == workers(8)
    assert move.reason == "a step of all environments should take 5.13 ms instead of 40.1 ms"


def test_where_the_trainer_must_not_step_only_workers_do():
    machine = Machine(division=workers(4), known=None, in_workers_only=True)
    for cores in (1.0, 2.0, 4.0, 1.0):
        machine.cores = cores
        machine.run(500)
        assert not machine.division.steps_here
        assert machine.division.n_workers >= 1


def test_without_a_measured_cost_steps_count_as_computing():
    machine = Machine(known=None)
    assert machine.run(3)[0].division == SHARED


def test_what_was_refused_is_not_asked_for_again_under_the_same_load():
    machine = Machine()
    look = machine.look()
    choice = machine.choice
    asked = []
    for _ in range(3000):
        move = choice.next_move(look)
        if move is not None:
            asked.append(move.division)
            choice.refused(move, look)
    assert len(asked) == len(set(asked)) <= 5
    assert SHARED in asked


def test_a_machine_that_has_no_core_left_is_survived():
    for division in (HERE, SHARED, workers(2)):
        Machine(division=division, cores=0.5).run(50)


def test_one_environment_or_many_more_than_cores():
    for num_envs in (1, 2, 3, 500):
        machine = Machine(num_envs=num_envs, cores=3.0)
        machine.run(300)
        assert machine.division.n_workers + machine.division.steps_here <= max(1, num_envs)
        assert math.isfinite(machine.look().step_s)

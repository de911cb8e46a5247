"""When a run moves to other workers: only where it pays, never to and fro, and back where it was wrong."""

import math
import random

import pytest

from ml_pipeline.models.rl.core.workers.choice import HERE, Division, StepCost, expected_step_s
from ml_pipeline.models.rl.core.workers.dynamic_choice import DynamicChoice, Look, Move

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
    assert move.reason == "others use the machine, which has 1.0 cores left for this run"


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

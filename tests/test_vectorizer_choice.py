"""The comparison of vectorizers: its page says what its figures say, and its adapter changes nothing."""

import json
from contextlib import closing

import gymnasium
import numpy as np
import pytest

pytest.importorskip("stable_baselines3")

from stable_baselines3.common.vec_env import DummyVecEnv

from benchmarks.measured_page import PAGE, with_measured_part
from benchmarks.vectorizer_choice import FromStableBaselines3, ThreadedEnvs, kinds, vectorizers
from benchmarks.vectorizer_page import FIGURES, NAME, measured_part, recommendation
from ml_pipeline.models.rl.core.vec_env import ParallelEnv

NAMES = ("in-process", "workers", "auto", "SB3 Dummy", "SB3 Subproc")


def figures(rates, *, batched=None):
    """Made-up figures of 8 environments of one kind, and of one training."""
    named = {**dict(zip(NAMES, rates, strict=True)), **({"batched": batched} if batched else {})}
    rows = [
        {
            "kind": "busy", "n_envs": 8, "vectorizer": name, "note": "", "steps_per_second": rate, "cpu_percent": 90.0,
            "memory_mb": 300.0, "gpu_percent": None,
        }
        for name, rate in named.items()
    ]  # fmt: skip
    learned = [
        {
            "task": "job", "target": 5.0, "vectorizer": name, "seconds": 10.0 + i, "steps": 100, "reached": True,
            "weights": "same" if i < 4 else "other",
        }
        for i, name in enumerate(NAMES)
    ]  # fmt: skip
    machine = {"cores": 2.0, "system": "Linux", "python": "3.13", "stable_baselines3": "2.9"}
    return {"machine": machine, "throughput": rows, "learning": learned}


@pytest.mark.parametrize(
    ("rates", "batched", "advice"),
    [
        ((100, 200, 190, 80, 100), None, "use workers, which step 2.00 times as fast as in-process"),
        ((300, 100, 300, 80, 100), None, "stay in-process, which steps 3.00 times as fast as workers"),
        ((100, 105, 100, 80, 100), None, "differ by no more than 15 %, so stay in-process"),
        ((100, 200, 190, 80, 100), 1000, "use `--vec-env batched`, which steps 10.00 times as fast as in-process"),
    ],
)
def test_the_recommendation_follows_from_the_figures(rates, batched, advice):
    assert advice in recommendation(figures(rates, batched=batched))[0]


def test_the_tables_hold_the_figures():
    part = measured_part(figures((100, 2000, 190, 80, 100)))
    assert "| workers | 2,000 |" in part
    assert "| SB3 Dummy | 90 | 300 | - |" in part
    assert "bit for bit, with in-process, workers, auto, SB3 Dummy." in part
    assert "in-process reached a mean return of 5 first, after 10.0 s, and SB3 Subproc last, after 14.0 s" in part


def test_writing_the_measured_part_twice_changes_nothing_more():
    part = measured_part(figures((100, 200, 190, 80, 100)))
    page = with_measured_part(PAGE.read_text(), NAME, part)
    assert with_measured_part(page, NAME, part) == page
    assert page.startswith(PAGE.read_text().partition(f"<!-- {NAME}: begin -->")[0])


@pytest.mark.skipif(not FIGURES.exists(), reason="not measured")
def test_the_page_shows_the_figures_that_are_kept():
    page = PAGE.read_text()
    assert with_measured_part(page, NAME, measured_part(json.loads(FIGURES.read_text()))) == page


def test_threads_compete_with_processes_in_every_kind():
    for kind in kinds().values():
        assert {"threads", "workers", "in-process"} <= {*vectorizers(kind, 2)}


@pytest.mark.parametrize("make", [lambda env_fns: FromStableBaselines3(DummyVecEnv(env_fns)), ThreadedEnvs])
def test_other_vectorizers_step_as_ours_does(make):
    env_fns = [lambda: gymnasium.make("CartPole-v1", max_episode_steps=9)] * 3
    actions = np.random.default_rng(0).integers(0, 2, (40, 3))
    with (
        closing(ParallelEnv(env_fns, num_workers=0)) as ours,
        closing(make(env_fns)) as other_envs,
    ):
        assert np.array_equal(ours.reset(seed=1)[0], other_envs.reset(seed=1)[0])
        for action in actions:
            *results, infos = ours.step(action)
            *theirs, their_infos = other_envs.step(action)
            for one, other in zip(results, theirs, strict=True):
                assert np.array_equal(one, other)
            for index in np.flatnonzero(results[2] | results[3]):
                assert np.array_equal(infos["final_obs"][index], their_infos["final_obs"][index])

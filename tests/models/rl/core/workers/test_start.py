"""Workers of a trainer that multiprocessing itself started, as a tuner's are: they know what the script defines."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.models.rl.core.workers.probes import START_METHODS, run_script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SCRIPT = """
import multiprocessing, sys
import gymnasium

print("imported")

class Mine(gymnasium.Wrapper):
    kinds = ()

    def step(self, action):
        *rest, info = self.env.step(action)
        return *rest, {"kind": Mine, "bonus": bonus()}

    def action_of(self, shift):
        return shift(1)

def bonus():
    return 7

def make():
    return Mine(gymnasium.make("CartPole-v1"))

def two_more(value):
    return value + 2

def train(trainer_method, worker_method):
    from ml_pipeline.config.ppo import PPOConfig
    from ml_pipeline.models.rl.algorithms.ppo_trainer import PPOTrainer
    from ml_pipeline.models.rl.core.vec_env import ParallelEnv

    gymnasium.register("Mine-v0", Mine)
    with ParallelEnv([make] * 2, num_workers=2, start_method=worker_method) as envs:
        config = PPOConfig(n_steps=8, minibatch_size=16, n_epochs=1, hidden_sizes=(4,))
        trainer = PPOTrainer(envs, config, total_timesteps=16)
        trainer.train_episode_vectorized()
        envs.reset(seed=0)
        infos = envs.step([0, 1])[4]
        assert infos["kind"][1] is Mine, infos
        assert infos["bonus"].tolist() == [7, 7]
        assert envs.call("action_of", two_more) == (3, 3)
        states = envs.get_states()
        envs.set_states(states)
        envs.set_attr("kinds", [(Mine,), (Mine,)])
        assert envs.get_attr("kinds") == ((Mine,), (Mine,))
    print(trainer_method, worker_method, "trained")

if __name__ == "__main__":
    trainer = multiprocessing.get_context({trainer!r}).Process(target=train, args=({trainer!r}, {worker!r}))
    trainer.start()
    trainer.join()
    sys.exit(trainer.exitcode)
"""


def _pairs() -> list[Any]:
    """Where both are started alike, workers meet all that they meet elsewhere: the other pairs are long."""
    pairs = itertools.product(["spawn", "forkserver"], START_METHODS)
    return [pytest.param(*each, marks=[pytest.mark.long] if len({*each}) > 1 else []) for each in pairs]


@pytest.mark.long
@pytest.mark.parametrize(("trainer", "worker"), _pairs())
def test_a_started_trainers_workers_know_what_the_script_defines(trainer: str, worker: str, tmp_path: Path) -> None:
    text = SCRIPT.replace("{trainer!r}", repr(trainer)).replace("{worker!r}", repr(worker))
    done = run_script(tmp_path, text, OMP_NUM_THREADS="1")
    errors = [line for line in done.stderr.splitlines() if not line.startswith("Compiling the update")]  # once, maybe
    assert (done.returncode, errors) == (0, [])
    # By itself, and by multiprocessing for the trainer, or for its server; not by any worker.
    assert done.stdout.splitlines() == ["imported", "imported", f"{trainer} {worker} trained"]

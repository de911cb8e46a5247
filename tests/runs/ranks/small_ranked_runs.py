"""Runs of a few steps by several ranks, and what is compared of them."""

import hashlib
import json

from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.runs.checkpoint import load_checkpoint
from ml_pipeline.runs.earlier_runs import resumed_config
from ml_pipeline.runs.gym_task import GymTask
from ml_pipeline.runs.ranks.context import RankContext
from ml_pipeline.runs.run import Run
from tests.small_runs import config_of

PPO = PPOConfig(n_steps=16, minibatch_size=32, n_epochs=2, hidden_sizes=(8,), normalize_update="rollout")
FIVE = {"n_envs": 5, "iterations": 4, "eval_interval": 2, "checkpoint_interval": 2}


class Quick(GymTask):
    """Its report is a word: the usual one draws figures, which takes seconds."""

    def __init__(self, env_id="CartPole-v1"):
        super().__init__(env_id, eval_episodes=1, seed=0)

    def report(self, act, folder):
        (folder / "evaluation.json").write_text("{}")
        return "Done."


class Gravity:
    """Lowers the gravity with the number of episodes."""

    episodes = 0

    def before_rollout(self, trainer):
        trainer.envs.set_attr("gravity", 9.8 - self.episodes / 100)

    def after_episode(self, trainer, episode):
        self.episodes += 1
        return {"rollout/own_length": episode.length}

    def state_dict(self):
        return {"episodes": self.episodes}

    def load_state_dict(self, state):
        self.episodes = state["episodes"]


def run_of(group, folder, *, task=None, stop=None, sinks=(), ppo=PPO, **settings):
    """A run by this rank of a group, or without a group by one process."""
    config = config_of(folder, ppo=ppo, **{**FIVE, **settings})
    return Run(config, task or Quick(config.run.env_id), ranks=RankContext(group), stop=stop, sinks=sinks)


def train(group, folder, **settings):
    result = run_of(group, folder, **settings).train()
    return result.status, result.reason, result.global_step, result.best_score, dict(result.scores)


def resume(group, folder, **changes):
    checkpoint = folder / "latest.pt"
    config = resumed_config(checkpoint, changes)
    result = Run(config, Quick(), checkpoint=checkpoint, ranks=RankContext(group)).train()
    return result.status, result.reason, result.global_step, result.best_score


def learned(folder):
    """What a run learned and recorded, but for times and for what its machine did: equal where runs are equal."""
    found = {}
    for name in ("best.pt", "latest.pt"):
        saved = load_checkpoint(folder / name)
        saved["trainer"]["collector"].pop("elapsed_s")
        for setting in ("checkpoint_dir", "iterations"):  # a resumed run may have another length
            saved["config"].pop(setting)
        episodes = saved["trainer"]["collector"]["episodes"]
        episodes["finished"] = [list(each)[:4] for each in episodes["finished"]]  # the fifth is a time
        found[name] = hashlib.sha256(repr(_plain(saved)).encode()).hexdigest()
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kept = ("rollout/", "train/", "eval/")
    found["metrics"] = [
        {name: value for name, value in row.items() if name.startswith(kept) or name == "time/global_step"}
        for row in rows
    ]
    lines = (folder / "monitor.csv").read_text().splitlines()[2:]
    found["episodes"] = [
        ",".join(part for i, part in enumerate(line.split(",")) if i != 2) for line in lines
    ]  # no time
    return found


def _plain(value):
    if isinstance(value, dict):
        return {key: _plain(each) for key, each in sorted(value.items(), key=lambda item: str(item[0]))}
    if isinstance(value, list | tuple):
        return [_plain(each) for each in value]
    return value.tolist() if hasattr(value, "tolist") else value

"""Training in a Gymnasium environment: checks that it can be made and reset, scores a policy, writes a report.

The report: evaluation.json, learning_curve.png, and a page with both and the settings.
"""

import contextlib
import json
import operator
from collections.abc import Callable, Sequence
from contextlib import closing
from copy import copy
from dataclasses import asdict, fields
from functools import partial
from itertools import zip_longest
from pathlib import Path
from typing import Any, Self

import gymnasium
from gymnasium.vector import VectorEnv

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.files import read_settings
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.wording import counted, shortly
from ml_pipeline.models.rl.algorithms.evaluation import EvaluationResult, evaluate, random_actions
from ml_pipeline.models.rl.core.separate_process import CallFailed, Calls, run_in_process
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.core.stepping.results import have_equal_rows
from ml_pipeline.models.rl.preprocessing.action_mask import ActionMaskInObservation, reports_mask_outside_observation
from ml_pipeline.monitoring.sinks import METRICS_FILE
from ml_pipeline.reporting.html_page import html_picture, html_table, paragraph, png_of, write_html_page
from ml_pipeline.reporting.learning_curve_figure import CurveGroup, CurvePanel, learning_curve_figure
from ml_pipeline.reporting.learning_curves import LearningCurve, read_learning_curve
from ml_pipeline.reporting.report_files import EVALUATION_FILE, PAGE_FILE
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.environments.ids import id_error, import_module_of, keyword_error
from ml_pipeline.runs.folder import SETTINGS_FILE
from ml_pipeline.runs.train_config import TrainConfig
from ml_pipeline.runtime.user_code import innermost_user_line

Act = Callable[[Any], Any]

_TRADING_IDS = "ml_pipeline.trading.gym_ids"

EVALUATION_SEED_OFFSET = 1_000_000
"""Keeps evaluation episodes apart from training, whose environment i starts from seed + i."""


class GymTask:
    """A Gymnasium environment, evaluated over whole episodes."""

    def __init__(
        self, env: GymEnv | str, *, eval_episodes: int, seed: int, step_timeout_s: float | None = None
    ) -> None:
        """env: the environment, or just its id. step_timeout_s: for its construction and first reset.

        Raises UserError if the environment cannot be made or reset.
        """
        self._env = env = GymEnv(env_id=env) if isinstance(env, str) else env
        self.name = env.env_id.replace("/", "-").replace(":", "-")
        self._eval_episodes = eval_episodes
        self._seed = seed
        self._mask_outside_observation = reports_mask_at_reset(env, seed=seed, step_timeout_s=step_timeout_s)

    @property
    def env_id(self) -> str:
        return self._env.env_id

    @property
    def notices(self) -> tuple[str, ...]:
        """A warning for trading ids: they hold out no bars for evaluation."""
        module, _, name = self.env_id.rpartition(":")
        spec = gymnasium.registry.get(name)
        if module != _TRADING_IDS and not (spec and str(spec.entry_point).startswith(f"{_TRADING_IDS}:")):
            return ()
        return (
            f"{self.env_id} is evaluated on the bars that it trains on, so its results say nothing about other bars; "
            "to hold bars out, train with --data or in environments of create_vectorized_env.",
        )

    @classmethod
    def of(cls, run: RunConfig, *, eval_episodes: int | None = None) -> Self:
        """The task named in a run's settings. eval_episodes: overrides the run's."""
        timeout = run.step_timeout_s
        return cls(
            GymEnv.of(run), eval_episodes=eval_episodes or run.eval_episodes, seed=run.seed, step_timeout_s=timeout
        )

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._env.env_id})"

    def with_seed(self, seed: int) -> "GymTask":
        """The same task, with another seed."""
        same = copy(self)
        same._seed = seed
        return same

    def train_env_fns(self, n: int) -> list[Callable[[], gymnasium.Env]]:
        return [partial(_make, self._env, self._mask_outside_observation, training=True)] * n

    def batched_train_env(self, n: int, *, device: str | None = None) -> VectorEnv:
        """The vector environment of the id's `vector_entry_point`, by `gymnasium.make_vec`.

        device: not used. Raises UserError if the id has none, if the environment is to be wrapped, or if its spaces
        are not those of the single environment, in which policies are evaluated.
        """
        env = self._env
        import_module_of(env.env_id)
        if gymnasium.spec(env.env_id.rpartition(":")[2]).vector_entry_point is None:
            raise UserError(
                'vec_env "batched" needs an environment registered with a vector_entry_point, but '
                f'{env.env_id} has none; use "parallel" or "serial".'
            )
        if env.atari or env.wrappers or env.frame_stack or self._mask_outside_observation:
            raise UserError(
                'vec_env "batched" steps all environments as one, but wrappers, frame_stack, atari and action masks '
                'outside observations are applied to single environments; leave them out, or use "parallel".'
            )
        with closing(self.evaluation_env()) as single:
            try:
                envs = gymnasium.make_vec(env.env_id, n, vectorization_mode="vector_entry_point", **env.env_kwargs)
            except Exception as error:
                raise _failure(env, error, "its vector_entry_point") from error
            spaces = {"observation_space": have_equal_rows, "action_space": operator.eq}
            for name, fits in spaces.items():
                of_each, of_single = getattr(envs, f"single_{name}"), getattr(single, name)
                if not fits(of_each, of_single):
                    envs.close()
                    raise UserError(
                        f"The {name} of {env.env_id} must be the same for its vector environment, but is {of_single} "
                        f"for a single one and {of_each} there; register two that fit together."
                    )
        return envs

    def evaluation_env(self, *, render_mode: str | None = None) -> gymnasium.Env:
        """render_mode: "rgb_array" or "human". Raises UserError if the environment does not support it."""
        return _make(self._env, self._mask_outside_observation, render_mode=render_mode)

    def score(self, act: Act) -> float:
        """Mean return of an evaluation; the best policy has the highest."""
        return self._evaluate(act).mean_return

    def report(self, act: Act, folder: Path) -> str:
        """Evaluate against random actions, write the files of `write_gym_report`, and return the result in one line."""
        result = self._evaluate(act)
        random = self._of_random_actions(most_steps=max(1_000, 10 * sum(result.lengths)))
        write_gym_report(folder, self._env.env_id, result, random, notices=self.notices)
        return result_sentence(self._env.env_id, result, random)

    def state(self) -> dict[str, Any]:
        """Nothing was fitted to data, so there is nothing to save."""
        return {}

    def _evaluate(self, act: Act) -> EvaluationResult:
        with closing(self.evaluation_env()) as env:
            return evaluate(env, act, n_episodes=self._eval_episodes, seed=self._seed + EVALUATION_SEED_OFFSET)

    def _of_random_actions(self, *, most_steps: int) -> EvaluationResult | None:
        """In the same episodes. most_steps: random actions may never end an unlimited episode."""
        seed = self._seed + EVALUATION_SEED_OFFSET
        with closing(self.evaluation_env()) as env:
            act = random_actions(env.action_space, seed=seed)
            result = evaluate(env, act, n_episodes=self._eval_episodes, seed=seed, most_steps=most_steps)
        return result if result.returns else None


def _make(
    env: GymEnv, mask_outside_observation: bool, *, training: bool = False, render_mode: str | None = None
) -> gymnasium.Env:
    made = env.make(training=training, render_mode=render_mode)
    return ActionMaskInObservation(made) if mask_outside_observation else made


_CONSTRUCTOR = "its constructor"


def reports_mask_at_reset(env: GymEnv, *, seed: int, step_timeout_s: float | None = None) -> bool:
    """Make and reset the environment; return whether it reports an action mask outside its observations.

    Third-party environments are first made in a worker process, in case they crash or hang.
    Raises UserError if the environment cannot be made or reset, raises, ends its process, or takes longer than
    step_timeout_s in a worker.
    """
    begin = partial(_make_and_reset, env, seed)
    if not env.is_gymnasiums_own:
        try:
            return run_in_process(begin, step_timeout_s=step_timeout_s)
        except CallFailed as error:
            stack = f"\n\n{error.stack}" if error.stack else ""
            raise UserError(f"{env.env_id} {error.how}.{stack}") from error
        except (VectorEnvError, OSError):
            pass  # it raised, or is registered only here: retry here for the traceback
    return _here(env, begin)


def _make_and_reset(env: GymEnv, seed: int) -> Calls[bool]:
    yield "the import of its module"
    import_module_of(env.env_id)
    yield _CONSTRUCTOR
    with closing(env.make(training=True)) as made:
        yield "its first reset()"
        _, info = made.reset(seed=seed)
        return reports_mask_outside_observation(made, info)


def _here(env: GymEnv, begin: Callable[[], Calls[bool]]) -> bool:
    calls, doing = begin(), ""
    while True:
        try:
            doing = next(calls)
        except StopIteration as end:
            return bool(end.value)
        except UserError:
            raise
        except SystemExit as error:
            raise UserError(f"{env.env_id} calls sys.exit({error.code!r}) in {doing}.") from error
        except Exception as error:
            raise _failure(env, error, doing) from error


def _failure(env: GymEnv, error: Exception, doing: str) -> UserError:
    told = None
    if doing == _CONSTRUCTOR:
        told = id_error(env.env_id, error) or keyword_error(env.env_id, error, env.env_kwargs)
    where = innermost_user_line(error)
    said = " ".join(str(error).split()) or where.line or "it gives no reason"
    return told or UserError(
        f"{env.env_id} raises {type(error).__name__} in {doing}: {said.rstrip('.')} "
        f"({where.filename}, line {where.lineno})."
    )


CURVE_FILE = "learning_curve.png"


def result_sentence(env_id: str, result: EvaluationResult, random: EvaluationResult | None = None) -> str:
    """random: of random actions in the same episodes; None if none ended within the step limit."""
    sentence = (
        f"Evaluation on a single {env_id}: return {result.mean_return:,.2f} ± {result.std_return:,.2f} "
        f"over {counted(len(result.returns), 'episode')}"
    )
    if random is None:
        return sentence
    beside = f"{sentence}; random actions: {random.mean_return:,.2f} ± {random.std_return:,.2f}"
    worse = "" if result.mean_return > random.mean_return else ". Warning: the policy did not beat random actions"
    return beside + worse


def write_gym_report(
    folder: Path,
    env_id: str,
    result: EvaluationResult,
    random: EvaluationResult | None = None,
    *,
    notices: Sequence[str] = (),
) -> None:
    """Write the report into `folder`; a run folder adds its learning curve and settings.

    notices: sentences at the top of the page.
    """
    summary = _summary(result) | ({} if random is None else {"random": _summary(random)})
    (folder / EVALUATION_FILE).write_text(json.dumps(summary, indent=2) + "\n")
    parts = list(map(paragraph, [*notices, f"{result_sentence(env_id, result, random)}."]))
    if (folder / METRICS_FILE).is_file():
        parts += _training(folder, env_id, read_learning_curve(folder))
    header = ["episode", "return", "length (steps)"]
    rows = _rows(result)
    if random is not None:
        header += ["return of random actions", "their length (steps)"]
        of_random = [row[1:] for row in _rows(random)]
        rows = [row + beside for row, beside in zip_longest(rows, of_random, fillvalue=["-", "-"])]
    parts += ["<h2>Episodes of the evaluation</h2>", html_table([header, *rows])]
    if (folder / SETTINGS_FILE).is_file():
        with contextlib.suppress(UserError):  # an edited config.yaml must not cost the report
            parts += ["<h2>Settings</h2>", _settings(folder)]
    write_html_page(folder / PAGE_FILE, f"{env_id}: a trained policy", parts)


def _summary(result: EvaluationResult) -> dict[str, Any]:
    return {"mean_return": result.mean_return, "std_return": result.std_return, **asdict(result)}


def _rows(result: EvaluationResult) -> list[list[str]]:
    episodes = zip(result.returns, result.lengths, strict=True)
    return [[str(i + 1), f"{total:,.4g}", f"{length:,}"] for i, (total, length) in enumerate(episodes)]


def _training(folder: Path, env_id: str, curve: LearningCurve) -> list[str]:
    if not len(curve.steps):
        return []
    png = png_of(learning_curve_figure([CurvePanel(env_id, [CurveGroup(folder.name, [curve])], "mean return")]))
    (folder / CURVE_FILE).write_bytes(png)
    spent = (
        f"{curve.steps[-1]:,.0f} environment steps in {curve.training_s[-1]:,.1f} s of training "
        f"({curve.steps_per_second:,.0f} steps/s). Best score of an evaluation (mean return): "
        f"{curve.best_score:,.4g}."
    )
    picture = html_picture(png, "Returns of training episodes, and scores of evaluations, by environment steps")
    return ["<h2>Training</h2>", paragraph(spent), picture]


def _settings(folder: Path) -> str:
    """The settings of the run and its algorithm, with the defaults; market settings do not apply."""
    defaults = TrainConfig()
    usual = {each.name: getattr(group, each.name) for group in (defaults.run, defaults.ppo) for each in fields(group)}
    settings = {**usual, **read_settings(folder / SETTINGS_FILE, TrainConfig)}
    rows = [[name, shortly(settings[name]), shortly(default)] for name, default in usual.items()]
    return html_table([["setting", "value", "default"], *rows])

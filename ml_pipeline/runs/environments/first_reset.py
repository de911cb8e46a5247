"""Makes and resets an environment once, and says in a sentence where it fails."""

from collections.abc import Callable
from contextlib import closing
from functools import partial

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.separate_process import CallFailed, Calls, run_in_process
from ml_pipeline.models.rl.core.stepping.errors import VectorEnvError
from ml_pipeline.models.rl.preprocessing.action_mask import reports_mask_outside_observation
from ml_pipeline.runs.environments.gym_env import GymEnv
from ml_pipeline.runs.environments.ids import id_error, import_module_of, keyword_error
from ml_pipeline.runtime.user_code import innermost_user_line

_CONSTRUCTOR = "its constructor"


def reports_mask_at_reset(env: GymEnv, *, seed: int, step_timeout_s: float | None = None) -> bool:
    """Make the environment, reset it, and say whether it reports an action mask beside its observations.

    An environment with code of others is made in a worker process first, which may be killed or hang.
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
            pass  # it raised, or is known to this process only: what it raises here can be looked into
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
            raise UserError(f"{env.env_id} ends the program by sys.exit({error.code!r}) in {doing}.") from error
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

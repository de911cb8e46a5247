"""Optuna is an extra: its absence is told in one sentence."""

from importlib.util import find_spec

from ml_pipeline.config.errors import UserError


def require_optuna() -> None:
    """Raise UserError, with the command that installs it, unless Optuna is there."""
    if find_spec("optuna") is None:
        raise UserError('Tuning needs Optuna, which is not installed; pip install -e ".[tune]"')

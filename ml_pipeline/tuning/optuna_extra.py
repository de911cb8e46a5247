"""Optuna is an extra: its absence is told in one sentence."""

from importlib.util import find_spec

from ml_pipeline.config.errors import UserError, install_extra


def require_optuna() -> None:
    """Raise UserError, with the command that installs it, unless Optuna is there."""
    if find_spec("optuna") is None:
        raise UserError(f"Tuning needs Optuna, which is not installed; {install_extra('tune')}")

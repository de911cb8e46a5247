"""The environment variables by which torchrun, or another launcher, tells a process which rank it is."""

from collections.abc import Mapping

from ml_pipeline.config.errors import UserError


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether somebody started this process as a rank."""
    return not {"RANK", "WORLD_SIZE"}.isdisjoint(environment)


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """Which of how many ranks this is. Raises UserError where a variable is not set or holds no number.

    >>> rank_and_size({"RANK": "3", "WORLD_SIZE": "4"})
    (3, 4)
    """
    return rank_number("RANK", environment), rank_number("WORLD_SIZE", environment)


def local_rank(environment: Mapping[str, str]) -> int | None:
    """Which of this machine's ranks this is; None where nobody says. Raises UserError where it is no number."""
    return rank_number("LOCAL_RANK", environment) if "LOCAL_RANK" in environment else None


def local_size(environment: Mapping[str, str]) -> int | None:
    """How many ranks this machine has; None where nobody says. Raises UserError where it is no number."""
    return rank_number("LOCAL_WORLD_SIZE", environment) if "LOCAL_WORLD_SIZE" in environment else None


def processes_here(environment: Mapping[str, str]) -> int:
    """How many processes of one training this machine has, as far as anybody says: 1 in a process that is no rank.

    >>> processes_here({"RANK": "0", "LOCAL_WORLD_SIZE": "4"}), processes_here({"LOCAL_WORLD_SIZE": "4"})
    (4, 1)
    """
    said = environment.get("LOCAL_WORLD_SIZE", "") if "RANK" in environment else ""
    return max(1, int(said)) if said.isdecimal() else 1


def launch_id(environment: Mapping[str, str]) -> str | None:
    """The name of the start of these ranks, torchrun's "none" without --rdzv-id; None where nobody says."""
    return environment.get("TORCHELASTIC_RUN_ID")


def restart_count(environment: Mapping[str, str]) -> int:
    """How often all ranks were started again; 0 where nobody says."""
    said = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(said) if said.isdecimal() else 0


def variables_of_rank(rank: int, size: int) -> dict[str, str]:
    """The environment variables by which a rank knows its share of a machine on which all of them run: its cores, and
    which GPU is its own. Of a process that trains alone none.

    >>> variables_of_rank(1, 2)["LOCAL_WORLD_SIZE"], variables_of_rank(0, 1)
    ('2', {})
    """
    if size == 1:
        return {}
    return {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{size}"}


def rank_number(name: str, environment: Mapping[str, str]) -> int:
    """The number from 0 on that a variable such as RANK holds. Raises UserError where it is not set or holds none.

    >>> rank_number("LOCAL_RANK", {"LOCAL_RANK": "3"})
    3
    """
    text = environment.get(name, "")
    if not text.isdecimal():
        given = f'is "{text}"' if name in environment else "is not set"
        raise UserError(
            f"{name} must be a whole number where ranks are started, but {given}; start them by torchrun or "
            "--n-processes, or unset RANK, LOCAL_RANK and WORLD_SIZE to train in one process."
        )
    return int(text)

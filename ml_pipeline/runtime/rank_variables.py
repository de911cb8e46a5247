"""The environment variables in which torchrun or another launcher passes a process its rank."""

from collections.abc import Mapping

from ml_pipeline.config.errors import UserError


def is_rank(environment: Mapping[str, str]) -> bool:
    """Whether a launcher started this process as a rank."""
    return not {"RANK", "WORLD_SIZE"}.isdisjoint(environment)


def rank_and_size(environment: Mapping[str, str]) -> tuple[int, int]:
    """The rank of this process and the number of ranks. Raises UserError if a variable is missing or is not a number.

    >>> rank_and_size({"RANK": "3", "WORLD_SIZE": "4"})
    (3, 4)
    """
    return rank_number("RANK", environment), rank_number("WORLD_SIZE", environment)


def local_rank(environment: Mapping[str, str]) -> int | None:
    """This process's rank on its machine; None if LOCAL_RANK is not set. Raises UserError if it is not a number."""
    return rank_number("LOCAL_RANK", environment) if "LOCAL_RANK" in environment else None


def local_size(environment: Mapping[str, str]) -> int | None:
    """The number of ranks here; None if LOCAL_WORLD_SIZE is not set. Raises UserError if it is not a number."""
    return rank_number("LOCAL_WORLD_SIZE", environment) if "LOCAL_WORLD_SIZE" in environment else None


def processes_here(environment: Mapping[str, str]) -> int:
    """The number of processes of this training on this machine: LOCAL_WORLD_SIZE, or 1 if this process is not a rank.

    >>> processes_here({"RANK": "0", "LOCAL_WORLD_SIZE": "4"}), processes_here({"LOCAL_WORLD_SIZE": "4"})
    (4, 1)
    """
    said = environment.get("LOCAL_WORLD_SIZE", "") if "RANK" in environment else ""
    return max(1, int(said)) if said.isdecimal() else 1


def launch_id(environment: Mapping[str, str]) -> str | None:
    """The launcher's run ID, which is "none" for torchrun without --rdzv-id; None if it is not set."""
    return environment.get("TORCHELASTIC_RUN_ID")


def restart_count(environment: Mapping[str, str]) -> int:
    """The number of times that the launcher restarted all ranks; 0 if it is not set."""
    said = environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return int(said) if said.isdecimal() else 0


def variables_of_rank(rank: int, size: int) -> dict[str, str]:
    """The environment variables for a rank if all ranks run on one machine; empty for a single process.

    The rank derives its share of the cores and its GPU from them.

    >>> variables_of_rank(1, 2)["LOCAL_WORLD_SIZE"], variables_of_rank(0, 1)
    ('2', {})
    """
    if size == 1:
        return {}
    return {"RANK": f"{rank}", "WORLD_SIZE": f"{size}", "LOCAL_RANK": f"{rank}", "LOCAL_WORLD_SIZE": f"{size}"}


def rank_number(name: str, environment: Mapping[str, str]) -> int:
    """The non-negative integer in a variable such as RANK. Raises UserError if it is not set or not such a number.

    >>> rank_number("LOCAL_RANK", {"LOCAL_RANK": "3"})
    3
    """
    text = environment.get(name, "")
    if not text.isdecimal():
        given = f'is "{text}"' if name in environment else "is not set"
        raise UserError(
            f"{name} must be a whole number in a process of a distributed training, but {given}; start it with "
            "torchrun or --n-processes, or unset RANK, LOCAL_RANK and WORLD_SIZE to train in one process."
        )
    return int(text)

"""What an iteration tells where several ranks made it: each rank's own figures and sentences, and those of the run."""

from collections.abc import Mapping, Sequence

from ml_pipeline.models.rl.distributed.numbering import among_all
from ml_pipeline.models.rl.distributed.rows import rows_of
from ml_pipeline.runs.ranks.context import RankContext

_SYSTEM = "system/"
_WORKERS = "workers/count"
_OF_ONE_GPU = "system/gpu_percent"


def of_all_ranks(
    ranks: RankContext, figures: Mapping[str, float], sentences: Sequence[str], *, n_envs: int
) -> tuple[dict[str, float], list[str]]:
    """What one line of metrics tells, and what is said, of what each rank would have told; the same on every rank.

    Figures of the machine stand once by rank, as system/rank1/rss_mb, and once for the run: the mean of the GPUs'
    use, and the sum of all others and of the workers. What else there is, ranks agree on. sentences: about the rank's
    own environments, which are renumbered among the n_envs of all. One rank alone tells its own.
    """
    if ranks.size == 1:
        return dict(figures), list(sentences)
    first = rows_of(ranks.rank, ranks.size, n_envs).start
    of_rank = f"Rank {ranks.rank}: "
    own = [dict(figures), [of_rank + among_all(sentence, first, n_envs) for sentence in sentences]]
    told = ranks.gather("what the machines tell", own)
    return _of_the_run([each for each, _ in told]), [sentence for _, each in told for sentence in each]


def _of_the_run(everybody: Sequence[dict[str, float]]) -> dict[str, float]:
    together = dict(everybody[0])
    for name in {name: None for each in everybody for name in each if name.startswith(_SYSTEM) or name == _WORKERS}:
        values = [each[name] for each in everybody if name in each]
        together[name] = sum(values) / (len(values) if name == _OF_ONE_GPU else 1)
    for rank, each in enumerate(everybody):
        for name, value in each.items():
            if name.startswith(_SYSTEM):
                together[f"{_SYSTEM}rank{rank}/{name.removeprefix(_SYSTEM)}"] = value
    return together

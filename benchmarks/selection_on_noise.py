"""How often a study of noise is taken for evidence, and how often skill is found, over many studies of 200 trials.

python benchmarks/selection_on_noise.py

On the random walk, trials are policies of random weights that pass through the validation split of a market without any
signal; of the other rows, returns are drawn numbers.
"""

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.wording import text_table
from ml_pipeline.trading.market.data import MarketData, market_from_arrays
from ml_pipeline.trading.settings import TradingConfig
from ml_pipeline.trading.task import TradingTask
from ml_pipeline.tuning.trials.validation_returns import ValidationReturns, measure_validation_returns
from ml_pipeline.tuning.winner_statistics import JudgedTrial, Judgement, judge

N_TRIALS = 200
FEW_BLOCKS = 4  # CSCV has no part in the verdict


def random_walk(seed: int, n_bars: int = 1_500) -> MarketData:
    """Weekdays of a price that nothing predicts, 1 % a day."""
    generator = np.random.default_rng(seed)
    close = 100 * np.exp(np.cumsum(0.01 * generator.standard_normal(n_bars)))
    opened = close * np.exp(-0.003 * generator.standard_normal(n_bars))
    times = np.busday_offset(np.busday_offset("1990-01-01", 0, roll="forward"), np.arange(n_bars))
    return market_from_arrays(
        ["WALK"], times, close, open=opened, high=close * 1.03, low=close * 0.97, volume=np.full(n_bars, 1e6)
    )


def random_policy(seed: tuple[int, ...], n_inputs: int) -> Callable[[NDArray[np.float32]], int]:
    """A network of 16 units with random weights: short, flat or long by what it observes."""
    generator = np.random.default_rng(seed)
    inner, bias = generator.standard_normal((n_inputs, 16)) / math.sqrt(n_inputs), generator.standard_normal(16)
    outer = generator.standard_normal((16, 3))
    return lambda observation: int(np.argmax(np.tanh(observation @ inner + bias) @ outer))


def study_on_a_random_walk(seed: int, fee_bps: float, n_checkpoints: int) -> Judgement | None:
    """Each trial keeps the best of so many random policies, as a training keeps its best checkpoint."""
    config = TradingConfig(features=("log_return_1", "log_return_5"), window=4, fee_bps=fee_bps)
    task = TradingTask(config, market=random_walk(seed))
    (n_inputs,) = task.evaluation_env("validation").observation_space.shape or (0,)
    trials = []
    for number in range(N_TRIALS):
        records = [
            measure_validation_returns(task, random_policy((seed, number, checkpoint), n_inputs))
            for checkpoint in range(n_checkpoints)
        ]
        trials.append(_best(number, records))
    return judge(trials, n_blocks=FEW_BLOCKS)


def drawn_study(seed: int, *, n_checkpoints: int = 1, correlation: float = 0.0, skill: float = 0.0) -> Judgement | None:
    """Normal returns of 500 days; a tenth of the trials has `skill`, a Sharpe ratio per year, the others none."""
    generator = np.random.default_rng(seed)
    own = generator.standard_normal((N_TRIALS, n_checkpoints, 500))
    common = generator.standard_normal(500)
    returns = 0.01 * (math.sqrt(correlation) * common + math.sqrt(1 - correlation) * own)
    returns[: N_TRIALS // 10] += 0.01 * skill / math.sqrt(252)
    time = np.datetime64("2020-01-01", "ns") + np.arange(500) * np.timedelta64(1, "D")
    trials = [
        _best(number, [ValidationReturns(time, row, 252.0) for row in rows]) for number, rows in enumerate(returns)
    ]
    return judge(trials, n_blocks=FEW_BLOCKS)


def _best(number: int, records: list[ValidationReturns]) -> JudgedTrial:
    growth = [float(np.log1p(record.returns).sum()) for record in records]
    best = int(np.argmax(growth))
    return JudgedTrial(number, growth[best], None, records[best], n_checkpoints=len(records))


STUDIES: dict[str, Callable[[int], Judgement | None]] = {
    "random walk, fee 10 bps": lambda seed: study_on_a_random_walk(seed, 10.0, 1),
    "random walk, fee 10 bps, best of 3 checkpoints": lambda seed: study_on_a_random_walk(seed, 10.0, 3),
    "random walk, no fee": lambda seed: study_on_a_random_walk(seed, 0.0, 1),
    "random walk, no fee, best of 3 checkpoints": lambda seed: study_on_a_random_walk(seed, 0.0, 3),
    "drawn, no skill": drawn_study,
    "drawn, no skill, best of 10 checkpoints": lambda seed: drawn_study(seed, n_checkpoints=10),
    "drawn, no skill, correlation 0.9": lambda seed: drawn_study(seed, correlation=0.9),
    "drawn, a tenth with a Sharpe ratio of 2": lambda seed: drawn_study(seed, skill=2.0),
    "drawn, a tenth with a Sharpe ratio of 3": lambda seed: drawn_study(seed, skill=3.0),
    "drawn, a tenth with a Sharpe ratio of 4": lambda seed: drawn_study(seed, skill=4.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--studies", type=int, default=50, help="studies per row, with seeds 0, 1, ...")
    parser.add_argument("--only", default="", help="rows whose name begins so")
    arguments = parser.parse_args()
    n_studies = arguments.studies
    rows = [["200 trials each", "median DSR", "DSR >= 0.5", "evidence", "DSR of trials alone: >= 0.5", ">= 0.95"]]
    for name, study in STUDIES.items():
        if not name.startswith(arguments.only):
            continue
        judged = [each for seed in range(n_studies) if (each := study(seed)) is not None]
        dsr, alone = np.array([(each.dsr, each.dsr_of_trials) for each in judged]).T
        shares = [(dsr >= 0.5), (dsr >= 0.95), (alone >= 0.5), (alone >= 0.95)]
        rows.append([name, f"{np.median(dsr):.2f}", *(f"{share.mean():.0%}" for share in shares)])
        print(" | ".join(rows[-1]), flush=True)
    print(f"\n{text_table(rows)}")


if __name__ == "__main__":
    main()

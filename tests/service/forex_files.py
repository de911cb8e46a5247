"""Market files in a folder, as users have them."""

import numpy as np

from ml_pipeline.trading.market.synthetic import synthetic_market


def write_market(path, *, seed=0, n_bars=400, hours=24, columns=(), volume=True):
    """A CSV file of hourly or daily bars; columns: further ones, of zeros and ones."""
    market = synthetic_market(seed=seed, n_bars=n_bars)
    times = np.datetime64("2020-01-01T00", "h") + hours * np.arange(n_bars)
    fields = {"open": market.open, "high": market.high, "low": market.low, "close": market.close}
    if volume:
        fields["volume"] = market.volume
    table = {name: values[:, 0] for name, values in fields.items()}
    table |= {name: np.arange(n_bars) % 2 for name in columns}
    rows = zip(*table.values(), strict=True)
    lines = [",".join(["time", *table])]
    lines += [
        ",".join([str(time).replace("T", " ") + ":00", *map(str, row)]) for time, row in zip(times, rows, strict=True)
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")
    return path


def write_folder(folder, *symbols, **kinds):
    for seed, symbol in enumerate(symbols):
        write_market(folder / f"FOREX_{symbol}_1D.csv", seed=seed, **kinds)
    return folder


SMALL = {
    "environment": {
        "observation_feature_cols": ["rsi_14", "ema_10"],
        "initial_balance": 100_000,
        "action_type": "discrete",
        "episode_length": 20,
    },
    "training": {"total_timesteps": 256, "n_steps": 32, "batch_size": 32, "n_epochs": 1, "hidden_sizes": [8]},
}

"""Batches of accounts follow the rules of single ones."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from ml_pipeline.trading.accounts.array_ops import NumpyArrays
from ml_pipeline.trading.accounts.execution import weight_in_equity
from ml_pipeline.trading.accounts.tensor_ops import TorchArrays


@pytest.mark.parametrize("kind", ["arrays", "tensors"])
def test_weights_in_equity_are_those_of_single_accounts(kind):
    rng = np.random.default_rng(0)
    n_accounts, n_assets, clip = 200, 3, 0.8
    holdings, closes = rng.normal(0, 5, (n_assets, n_accounts)), rng.uniform(1, 20, (n_assets, 7))
    equity = rng.normal(60, 60, n_accounts)  # some are ruined
    equity[:2] = 0.0, -1.0
    rows = rng.integers(0, 7, n_accounts)
    xp: Any = NumpyArrays() if kind == "arrays" else TorchArrays("cpu")
    as_kind = (lambda array: array) if kind == "arrays" else torch.as_tensor
    tables: Any = SimpleNamespace(closes=as_kind(closes))
    batch: Any = SimpleNamespace(holdings=as_kind(holdings), equity=as_kind(equity))
    found = np.asarray(xp.weights_in_equity(tables, as_kind(rows), batch, clip))
    for n in range(n_accounts):
        expected = [weight_in_equity(holdings[a, n] * closes[a, rows[n]], equity[n], clip) for a in range(n_assets)]
        assert found[:, n].tolist() == expected

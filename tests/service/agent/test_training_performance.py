"""What environments are expected to be worth beside a single one."""

import pytest

from ml_pipeline.service.agent.training_performance import shared_speedup


@pytest.mark.parametrize(("single_s", "several_s"), [(3.0, 6.0), (1.0, 4.0), (2.0, 2.0)])
def test_the_expected_speedup_is_that_of_the_vectors_it_was_measured_on(single_s, several_s):
    seconds = {"single_s": single_s, "several": 4, "several_s": several_s}
    assert shared_speedup(1.0, 1, **seconds) == pytest.approx(1.0)
    assert shared_speedup(1.0, 4, **seconds) == pytest.approx(4 * single_s / several_s)
    assert 1.0 <= shared_speedup(1.0, 8, **seconds) <= shared_speedup(2.0, 8, **seconds) <= 8 * 2.0

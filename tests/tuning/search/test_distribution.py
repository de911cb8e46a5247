import math
from typing import Any, Literal

import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.errors import UserError
from ml_pipeline.tuning.search.distribution import read_distribution

NUMBERS = st.floats(1e-9, 1e9, allow_subnormal=False)
COUNTS = st.integers(1, 10_000)


def drawn_values(distribution, n: int = 20) -> list[Any]:
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    return [distribution.suggest(study.ask()) for _ in range(n)]


def read(content: Any, hint: Any = float) -> Any:
    return read_distribution("x", content, hint, where="space.yaml: x")


@given(
    st.sampled_from(["uniform", "log"]), st.tuples(NUMBERS, NUMBERS).map(sorted).filter(lambda ends: ends[0] < ends[1])
)
def test_numbers_of_a_range_lie_between_its_ends(form, ends):
    assert all(ends[0] <= value <= ends[1] for value in drawn_values(read({form: ends})))


@given(
    st.tuples(COUNTS, COUNTS).map(sorted).filter(lambda ends: ends[0] < ends[1]),
    st.one_of(st.none(), st.integers(1, 100), st.just("log")),
)
def test_whole_numbers_of_a_range_lie_on_its_steps(ends, step):
    low, high = ends
    options = {"log": True} if step == "log" else {} if step is None else {"step": min(step, high - low)}
    values = drawn_values(read({"int": ends, **options}, int))
    assert all(isinstance(value, int) and low <= value <= high for value in values)
    assert all((value - low) % options.get("step", 1) == 0 for value in values)


@given(st.tuples(st.integers(0, 30), st.integers(0, 30)).map(sorted).filter(lambda ends: ends[0] < ends[1]))
def test_powers_of_two_are_those_of_the_range(exponents):
    distribution = read({"power_of_two": [2**exponent for exponent in exponents]}, int)
    assert all(math.log2(value) in range(exponents[0], exponents[1] + 1) for value in drawn_values(distribution))
    assert len(distribution.points()) == exponents[1] - exponents[0] + 1


@given(st.integers(0, 5000), st.integers(2, 5000), st.integers(1, 5000))
def test_numbers_with_a_step_lie_on_it(low, width, step):
    low, high, step = low / 1000, (low + width) / 1000, min(width, step) / 1000
    distribution = read({"uniform": [low, high], "step": step})
    points = distribution.points()
    for value in drawn_values(distribution):
        assert min(abs(value - point) for point in points) < 1e-9
        assert low <= value <= high


@given(
    st.lists(
        st.one_of(st.integers(1, 9), st.lists(st.integers(1, 512), min_size=1, max_size=3)), min_size=1, max_size=5
    )
)
def test_choices_are_what_was_listed_and_such_as_json_knows(choices):
    as_tuples = [tuple(each) if isinstance(each, list) else (each,) for each in choices]
    if len(set(as_tuples)) < len(as_tuples):
        with pytest.raises(UserError, match="twice"):
            read(choices, tuple[int, ...])
        return
    distribution = read(choices, tuple[int, ...])
    assert set(drawn_values(distribution)) <= set(as_tuples)
    assert all(isinstance(label, str) for label in distribution.points())
    assert distribution.edges() == as_tuples


def test_a_logarithmic_range_has_as_many_small_as_large_numbers():
    values = drawn_values(read({"log": [1e-6, 1.0]}), 2000)
    assert 0.45 < sum(value < 1e-3 for value in values) / len(values) < 0.55


def test_one_minus_log_draws_the_distance_to_one_on_a_logarithmic_scale():
    distribution = read({"one_minus_log": [0.9, 0.9999]})
    values = drawn_values(distribution, 2000)
    # Halfway between the distances 0.1 and 0.0001 on that scale: sqrt(1e-5) = 0.00316.
    assert 0.45 < sum(1 - value < 0.00316 for value in values) / len(values) < 0.55
    assert min(values) >= 0.9 - 1e-12
    assert distribution.parameter == "one_minus_x"


def test_numbers_that_yaml_reads_as_texts_are_numbers():
    assert read({"log": ["1e-5", "1e-2"]}).drawn == optuna.distributions.FloatDistribution(1e-5, 1e-2, log=True)
    assert read({"int": ["1e1", "1e3"]}, int).drawn == optuna.distributions.IntDistribution(10, 1000)
    assert read(["1e-3", 0.1]).edges() == [0.001, 0.1]


def test_whole_numbers_serve_a_setting_of_any_number():
    values = drawn_values(read({"int": [1, 3]}, float))
    assert all(isinstance(value, float) for value in values)


def test_a_range_of_layers_is_one_layer_of_so_many_units():
    assert all(len(value) == 1 for value in drawn_values(read({"int": [8, 64]}, tuple[int, ...])))


@pytest.mark.parametrize(
    ("content", "hint", "sentence"),
    [
        ({"uniform": [1, 0]}, float, "the range 1.0 to 0.0 is empty; write the smaller end first"),
        ({"int": [5, 5]}, int, "the range 5 to 5 has one value"),
        ({"log": [0, 1]}, float, "log draws on a logarithmic scale, which begins above 0, but got 0"),
        ({"int": [0, 9], "log": True}, int, "begins above 0, but got 0"),
        ({"int": [1, 9], "log": True, "step": 2}, int, "a step or log, but got both"),
        ({"int": [1, 9], "step": 9}, int, "step must be above 0 and at most the width"),
        ({"uniform": [0, 1], "step": -1}, float, "step must be above 0"),
        ({"uniform": [0, 1], "step": 1e-300}, float, "step 1e-300 is too small for the range"),
        ({"uniform": [0, "inf"]}, float, "must be finite"),
        ({"uniform": [float("nan"), 1]}, float, "must be finite"),
        ({"uniform": [0]}, float, "must be both ends of a range"),
        ({"uniform": 3}, float, "must be both ends of a range"),
        ({"uniform": ["low", 1]}, float, 'uniform must be a number, but got "low"'),
        ({"log": [1, 100]}, int, r"takes whole numbers; write \{int: \[1, 20\]\}, with log: true"),
        ({"int": [1.5, 3]}, int, "must be a whole number, but got 1.5"),
        ({"int": [1, 3]}, Literal["tanh", "relu"], "a range has numbers; give it choices"),
        ({"one_minus_log": [0.9, 1]}, float, "both ends must be below 1, but got 1"),
        ({"power_of_two": [32, 100]}, int, "must be powers of two, such as 32, but got 100"),
        ({"power_of_two": [0, 4]}, int, "must be powers of two, such as 32, but got 0"),
        ({"unifrom": [0, 1]}, float, 'but got unifrom. Did you mean "uniform"?'),
        ({"uniform": [0, 1], "log": [1, 2]}, float, "must have one of .* but got uniform and log"),
        ({"uniform": [0, 1], "stp": 1}, float, 'uniform takes step in addition, but got "stp"'),
        ({"choice": [1], "step": 1}, float, 'choice takes nothing in addition, but got "step"'),
        ({}, float, "must have one of"),
        ([], float, "choice must be a list of at least one value"),
        ([1, 1.0], float, "names 1.0 twice"),
        ([True, False], float, "must be a number, but got True"),
        (["tahn"], Literal["tanh", "relu"], 'Did you mean "tanh"?'),
        (0.5, float, "set a value that all trials share on the command line"),
        (None, float, "must be a list of choices, or a range"),
    ],
)
def test_what_describes_no_range_is_answered_in_one_sentence(content, hint, sentence):
    with pytest.raises(UserError, match=f"^space.yaml: x.*{sentence}") as told:
        read(content, hint)
    assert "\n" not in str(told.value)

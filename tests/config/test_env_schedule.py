"""Numbers of environments by global step: how they are written, and what is refused."""

import json

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from ml_pipeline.config.env_schedule import continued, n_envs_at, planned_end, with_change
from ml_pipeline.config.errors import UserError
from ml_pipeline.config.ppo import PPOConfig
from ml_pipeline.config.run import RunConfig
from ml_pipeline.config.settings import flatten
from ml_pipeline.config.wording import written
from ml_pipeline.runs.train_command_line import parse_train_start
from ml_pipeline.runs.train_config import TrainConfig

SCHEDULE = {100_000: 16, 500_000: 32}


@pytest.mark.parametrize(
    "words",
    [
        ["100000:16", "500000:32"],
        ["1e5:16", "5e5:32"],
        ["100000:16, 500000:32"],
        ['{"100000": 16, "500000": 32}'],
    ],
    ids=" ".join,
)
def test_a_flag_takes_pairs(words):
    assert parse_train_start(["--n-envs-schedule", *words]).config.run.n_envs_schedule == SCHEDULE


@pytest.mark.parametrize(
    "text",
    ["{100000: 16, 500000: 32}", '["100000:16", "500000:32"]', '"100000:16 500000:32"', "\n  100000: 16\n  500000: 32"],
)
def test_a_file_takes_a_mapping_or_pairs(tmp_path, text):
    path = tmp_path / "run.yaml"
    path.write_text(f"n_envs_schedule: {text}")
    assert parse_train_start(["--config", str(path)]).config.run.n_envs_schedule == SCHEDULE


@pytest.mark.parametrize("words", [[], ["none"], ["{}"]], ids=str)
def test_none_is_no_schedule(words):
    assert parse_train_start(["--n-envs-schedule", *words]).config.run.n_envs_schedule == {}


def test_what_is_written_is_read_again(tmp_path):
    config = TrainConfig(run=RunConfig(n_envs_schedule=SCHEDULE))
    flat = flatten(config)
    for name, text in {"a.yaml": yaml.safe_dump(flat), "a.json": json.dumps(flat)}.items():
        (tmp_path / name).write_text(text)
        assert parse_train_start(["--config", str(tmp_path / name)]).config == config
    typed = written(SCHEDULE).split()
    assert parse_train_start(["--n-envs-schedule", *typed]).config.run == config.run


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["100:0"], "n_envs_schedule from step 100 on must be a whole number of at least 1, but got 0."),
        (["0:4"], "A step of n_envs_schedule must be a whole number of at least 1, but got 0."),
        (["-5:4"], "A step of n_envs_schedule must be a whole number of at least 1, but got -5."),
        (["500:4", "100:8"], "The steps of n_envs_schedule must increase, but 100 comes after 500."),
        (["500:4", "500:8"], "--n-envs-schedule names step 500 twice; keep one of the two."),
        (["500:many"], '--n-envs-schedule from step 500 on must be a whole number, but got "many".'),
        (["soon:4"], 'A step of --n-envs-schedule must be a whole number, but got "soon".'),
        (["500"], "--n-envs-schedule must be pairs of a step and a number of environments, such as 100000:16"),
        (["1:2:3"], "--n-envs-schedule must be pairs of a step and a number of environments"),
        (["{100: 4"], "--n-envs-schedule must be pairs of a step and a number of environments"),
        (["{100:4"], 'A step of --n-envs-schedule must be a whole number, but got "{100".'),
        (["500:99999"], "n_envs_schedule from step 500 on must be at most 65,536 environments, but got 99,999."),
        (
            ["500:2", "--n-steps", "32", "--n-envs", "8"],
            "n_envs_schedule from step 500 on: 2 environments are too few for a minibatch of 256: their rollout "
            "has 2 * 32 = 64 steps; 8 is the nearest number that does.",
        ),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_is_refused_in_a_sentence(words, sentence):
    with pytest.raises(UserError) as told:
        parse_train_start(["--n-envs-schedule", *words])
    assert str(told.value).startswith(sentence)
    assert "\n" not in str(told.value)


def test_one_pair_in_a_file_needs_no_quotes(tmp_path):
    (tmp_path / "run.yaml").write_text("n_envs_schedule: 100000:16")  # a number to the base of sixty in YAML 1.1
    start = parse_train_start(["--config", str(tmp_path / "run.yaml")])
    assert start.config.run.n_envs_schedule == {100000: 16}


@pytest.mark.parametrize(
    ("n_envs", "fits"), [(1, False), (2, False), (3, True), (4, True)]
)  # a minibatch of 80 in rollouts of 32 steps each
def test_a_rollout_holds_at_least_a_minibatch(n_envs, fits):
    settings = {
        "run": RunConfig(n_envs=4, n_envs_schedule={9: n_envs}),
        "ppo": PPOConfig(n_steps=32, minibatch_size=80),
    }
    if fits:
        TrainConfig(**settings)
    else:
        with pytest.raises(UserError, match="; 3 is the nearest number that does"):
            TrainConfig(**settings)


def test_as_many_workers_are_allowed_as_there_are_ever_environments():
    RunConfig(n_envs=2, n_workers=8, n_envs_schedule={9: 8})
    with pytest.raises(UserError, match="n_workers must be at most n_envs = 8, but got 9"):
        RunConfig(n_envs=2, n_workers=9, n_envs_schedule={9: 8, 10: 4})


def test_a_change_holds_until_the_next_one_that_is_planned():
    schedule = with_change({100: 16, 500: 4}, 300, 8)
    assert [n_envs_at(step, first=2, schedule=schedule) for step in (0, 100, 299, 300, 499, 500)] == [
        2,
        16,
        16,
        8,
        8,
        4,
    ]
    assert with_change(schedule, 300, 9)[300] == 9


@pytest.mark.parametrize(
    ("given", "ahead"),
    [
        ({}, {100: 16}),  # what lies ahead is dropped
        ({100: 16, 600: 8}, {100: 16, 600: 8}),
        ({300: 8}, {100: 16, 300: 8}),  # the next iteration begins there
        ({100: 16, 500: 4}, {100: 16, 500: 4}),
    ],
)
def test_a_resumed_run_may_change_what_lies_ahead(given, ahead):
    assert continued({100: 16, 500: 4}, given, start=300, under_way=False) == ahead


@pytest.mark.parametrize(
    ("given", "under_way", "had"),
    [
        ({100: 8}, False, "had 16 there"),
        ({200: 8}, False, "changed nothing there"),
        ({300: 8}, True, "changed nothing there"),
    ],
)
def test_a_resumed_run_keeps_its_past(given, under_way, had):
    with pytest.raises(UserError, match=f"but the run is at step 300, and {had}; name only later steps"):
        continued({100: 16, 500: 4}, given, start=300, under_way=under_way)


def test_a_change_that_was_made_where_the_run_stands_stays():
    with pytest.raises(UserError, match="had 16 there"):
        continued({300: 16}, {300: 8}, start=300, under_way=False)


@given(
    st.integers(0, 5000),
    st.integers(0, 400),
    st.integers(1, 64),
    st.integers(1, 9),
    st.dictionaries(st.integers(1, 6000), st.integers(1, 9), max_size=4),
)
def test_the_planned_end_is_that_of_iterations_one_by_one(total, start, n_steps, first, schedule):
    step, n_iterations = start, 0
    now = n_envs_at(start, first=first, schedule=schedule)
    while step < total:
        step += n_steps * n_envs_at(step, first=first, schedule=schedule)
        n_iterations += 1
    ends = planned_end(total, step=start, n_steps=n_steps, n_envs=now, schedule=schedule)
    assert ends == (n_iterations, step)

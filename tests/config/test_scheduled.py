"""What lin_3e-4 means, and what stands for a function where its name alone is known."""

import pytest

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.scheduled import LostFunction, function_shown, spelled_out


def warm_up(left):
    return 3e-4 * min(1.0, 10.0 * (1.0 - left))


@pytest.mark.parametrize("name", ["learning_rate", "clip_range", "ent_coef"])
@pytest.mark.parametrize("beside", [{}, {"schedule": "constant"}, {"schedule": "linear"}], ids=str)
def test_a_line_is_a_number_and_a_schedule(name, beside):
    beside = {f"{name}_{key}": value for key, value in beside.items()}
    assert spelled_out({name: "lin_2.5e-4", **beside}) == {name: 2.5e-4, f"{name}_schedule": "linear"}


def test_a_line_and_another_schedule_contradict_each_other():
    with pytest.raises(
        UserError, match=r"ent_coef is lin_0\.01, which is linear, but ent_coef_schedule is cosine; leave"
    ):
        spelled_out({"ent_coef": "lin_0.01", "ent_coef_schedule": "cosine"})


@pytest.mark.parametrize(
    "settings", [{"gamma": "lin_0.9"}, {"learning_rate": "lin_fast"}, {"clip_range": 0.3}], ids=str
)
def test_what_is_no_line_stays_as_it_is(settings):
    assert spelled_out(settings) == settings


def test_the_name_of_a_function_stands_for_it_and_says_so_when_it_is_called():
    shown = function_shown(warm_up)
    lost = spelled_out({"learning_rate": shown})["learning_rate"]
    assert (shown, lost) == ("function warm_up", LostFunction("learning_rate", "warm_up"))
    assert (str(lost), function_shown(lost)) == (shown, shown)
    with pytest.raises(UserError) as told:
        lost(1.0)
    assert str(told.value) == (
        "learning_rate was the Python function warm_up, of which files, checkpoints and other processes hold the name "
        "alone; hand it again, PPOConfig(learning_rate=...), or give a number."
    )

"""Code that is sent by value keeps the names of its files, with every version of cloudpickle."""

import pickle
import traceback
from types import CodeType

import pytest

from ml_pipeline.models.rl.core.stepping import by_value


def raises_inside():
    def inner():
        return [1 / each for each in (1, 0)]

    return inner()


def file_names(code: CodeType) -> set[str]:
    inside = [file_names(each) for each in code.co_consts if isinstance(each, CodeType)]
    return {code.co_filename}.union(*inside)


def test_functions_within_functions_keep_the_name_of_their_file():
    sent = pickle.loads(by_value.dumps(raises_inside))
    assert sent.__code__ is not raises_inside.__code__
    assert file_names(sent.__code__) == file_names(raises_inside.__code__) == {__file__}


def test_a_traceback_shows_the_lines_of_the_file():
    sent = pickle.loads(by_value.dumps(raises_inside))
    with pytest.raises(ZeroDivisionError) as raised:
        sent()
    assert "return [1 / each for each in (1, 0)]" in "".join(traceback.format_exception(raised.value))

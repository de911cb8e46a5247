"""The catalogue keeps up with the source; `make mutations` checks that its tests fail where they must."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.collected import COLLECTED
from tests.mutations.catalogue import MUTATIONS
from tests.mutations.checklist import CHECKLIST

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KNOWN = [mutation for of_subject in MUTATIONS.values() for mutation in of_subject]


@pytest.mark.parametrize("mutation", KNOWN, ids=lambda mutation: mutation.mistake)
def test_the_place_of_the_mistake_is_there_and_with_it_the_source_is_still_python(mutation):
    source = (REPOSITORY / mutation.source).read_text()
    assert source.count(mutation.old) == 1
    ast.parse(source.replace(mutation.old, mutation.new))


def test_every_test_of_the_catalogue_is_there(pytestconfig):
    collected_here = pytestconfig.stash[COLLECTED]
    without_parameters = {test.partition("[")[0] for test in collected_here}
    tests = sorted({mutation.caught_by for mutation in KNOWN} - collected_here - without_parameters)
    if not tests:
        return
    command = [sys.executable, "-m", "pytest", "--collect-only", "-qq", "-p", "no:cacheprovider", *tests]
    collected = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert collected.returncode == 0, collected.stderr


def test_every_clause_of_the_checklist_has_its_mistake():
    assert {mutation.clause for mutation in KNOWN} - {""} == set(CHECKLIST)

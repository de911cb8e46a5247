"""The catalogue keeps up with the source; `make mutations` checks that its tests fail where they must."""

from pathlib import Path

import pytest

from tests.mutations.catalogue import MUTATIONS
from tests.mutations.checklist import CHECKLIST

REPOSITORY = Path(__file__).resolve().parent.parent.parent
KNOWN = [mutation for of_subject in MUTATIONS.values() for mutation in of_subject]


@pytest.mark.parametrize("mutation", KNOWN, ids=lambda mutation: mutation.mistake)
def test_the_place_of_the_mistake_and_its_test_are_there(mutation):
    assert (REPOSITORY / mutation.source).read_text().count(mutation.old) == 1
    path, *_, test = mutation.caught_by.split("::")
    assert (REPOSITORY / path).exists()
    beside = [file.read_text() for file in (REPOSITORY / path).parent.glob("*.py")]  # a class may have inherited it
    assert any(f"def {test.partition('[')[0]}(" in text for text in beside)


def test_every_clause_of_the_checklist_has_its_mistake():
    assert {mutation.clause for mutation in KNOWN} - {""} == set(CHECKLIST)

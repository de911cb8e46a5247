"""What an entry of a catalogue is: a mistake as a change of one place in the source, and the test that must notice."""

from typing import NamedTuple

RL = "ml_pipeline/models/rl"
RL_TESTS = "tests/models/rl"
TRADING = "ml_pipeline/trading"
TRADING_TESTS = "tests/trading"


class Mutation(NamedTuple):
    """`old` stands once in the file `source`; with `new` in its place the test `caught_by` must fail.

    clause: of `checklist.CHECKLIST`, where the mistake is one that it names.
    """

    mistake: str
    source: str
    old: str
    new: str
    caught_by: str
    clause: str = ""

"""Whether the environments of a batch must have equal observation spaces, or only spaces that fit the same arrays."""

from collections.abc import Sequence
from typing import Any, Literal

from gymnasium import Space
from gymnasium.vector.utils import batch_differing_spaces, batch_space

from ml_pipeline.config.errors import UserError
from ml_pipeline.models.rl.core.stepping.errors import SpacesDifferError
from ml_pipeline.models.rl.core.stepping.protocol import SpaceMismatch
from ml_pipeline.models.rl.core.stepping.rows import have_equal_rows

# "same": they are equal. "different": they may differ in all but shape and dtype, for example in their bounds. A tuple:
# the batch's space and the single one, and they may differ as well. The names and messages are Gymnasium's.
ObservationMode = Literal["same", "different"] | tuple[Space, Space]


def check_observation_mode(mode: Any) -> None:
    """Raises UserError or TypeError if `mode` is not an ObservationMode."""
    if isinstance(mode, tuple) and len(mode) == 2:
        if not all(isinstance(space, Space) for space in mode):
            kinds = " and ".join(str(type(space)) for space in mode)
            raise TypeError(f"Expected both elements of observation_mode to be Spaces, got {kinds}.")
    elif mode not in ("same", "different"):
        raise UserError(
            "Invalid `observation_mode`, expected: 'same' or 'different' or tuple of single and batch observation "
            f"space, actual got {mode}"
        )


def check_space_mismatches(space_mismatches: Sequence[SpaceMismatch], mode: ObservationMode) -> None:
    """Raises SpacesDifferError if environments cannot be stepped as one batch."""
    for mismatch in space_mismatches:
        if mismatch.has_equal_rows and mode != "same":
            continue
        remedy = ""
        if mismatch.has_equal_rows:
            remedy = (
                " Thus the sub-environments observation spaces are not equivalent. If this is intentional, use "
                "`observation_mode='different'` instead."
            )
        raise SpacesDifferError(
            f"All environments of a batch must have the same spaces, but {mismatch.name} of environment "
            f"{mismatch.index} is {mismatch.received}, and of environment 0 {mismatch.expected}.{remedy}"
        )


def observation_spaces(
    mode: ObservationMode, single: Space, num_envs: int, of_each: Sequence[Space]
) -> tuple[Space, Space]:
    """The batch's space and the single one. of_each: every environment's, needed for "different".

    Raises SpacesDifferError where those of a tuple do not fit what environments observe.
    """
    if mode == "same":
        return batch_space(single, num_envs), single
    if mode == "different":
        return batch_differing_spaces(list(of_each)), single
    if not have_equal_rows(single, mode[1]):
        raise SpacesDifferError(
            f"observation_mode gives {mode[1]} as the space of each environment, but theirs is {single}; shape and "
            "dtype must be equal."
        )
    return mode

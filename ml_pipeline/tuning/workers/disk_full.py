"""Whether a failure is about a full disk, where no further trial would fare better."""

import errno
import os

from ml_pipeline.config.errors import UserError

_FULL = (
    *(os.strerror(code).lower() for code in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)),
    "the disk is full",  # of a checkpoint, for which torch tells no code
)


class DiskFull(UserError):
    """Nothing more can be saved."""


def is_about_a_full_disk(sentence: str | None) -> bool:
    """
    >>> is_about_a_full_disk("Cannot write the checkpoint: No space left on device.")
    True
    """
    return any(words in (sentence or "").lower() for words in _FULL)

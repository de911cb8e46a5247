"""Whether a failure is about a full disk, where no further trial would fare better."""

import errno
import os

from ml_pipeline.config.errors import UserError

# The last is what a checkpoint says that the disk took a part of.
_FULL = (*(os.strerror(code).lower() for code in (errno.ENOSPC, errno.EDQUOT)), "the disk is full")


class DiskFull(UserError):
    """Nothing more can be saved."""


def is_about_a_full_disk(sentence: str | None) -> bool:
    """
    >>> is_about_a_full_disk("Cannot write the checkpoint: No space left on device.")
    True
    """
    return any(words in (sentence or "").lower() for words in _FULL)

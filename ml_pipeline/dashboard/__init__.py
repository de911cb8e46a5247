"""Runs, studies and sessions as they are seen, in the browser and in a terminal."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.dashboard.server import serve as serve

__getattr__, __dir__ = lazy_names(__name__, __file__)

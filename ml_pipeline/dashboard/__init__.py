"""Show runs, studies and trading sessions in the browser and in the terminal."""

from typing import TYPE_CHECKING

from ml_pipeline.runtime.lazy_names import lazy_names

if TYPE_CHECKING:
    from ml_pipeline.dashboard.server import serve as serve

__getattr__, __dir__ = lazy_names(__name__, __file__)

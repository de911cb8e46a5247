"""A file of the user's own that stops all orders as long as it exists."""

import math
import os
from collections.abc import Callable
from pathlib import Path

from ml_pipeline.config.errors import UserError
from ml_pipeline.config.wording import shown_path
from ml_pipeline.live.guards.guard import Guard, Moment
from ml_pipeline.live.guards.guard_config import OnLoss
from ml_pipeline.live.guards.verdict import TRADE, Refusal, Verdict
from ml_pipeline.trading.market.bar_set import BarSet


class KillFile(Guard):
    """While the file exists, positions are held or closed; it is looked for on each bar, and again before each order.

    A file that cannot be looked for counts as one that exists.
    """

    name = "kill_file"

    def __init__(self, path: Path, on_kill_file: OnLoss, look: Callable[[Path], object] = os.lstat) -> None:
        """look: raises FileNotFoundError where there is no file. Raises UserError where its folder is missing, which
        would make a mistyped name a switch that does nothing.
        """
        self._path = path.expanduser().absolute()
        self._action: OnLoss = on_kill_file
        self._look = look
        if not self._path.parent.is_dir():
            raise UserError(
                f"The folder of kill_file {shown_path(self._path)} is not there; make it, or name a file in another."
            )

    def on_bars(self, bars: BarSet, moment: Moment) -> Verdict:
        return self._verdict()

    def before_orders(self) -> Verdict:
        return self._verdict()

    def _verdict(self) -> Verdict:
        path = shown_path(self._path)
        try:
            self._look(self._path)
        except FileNotFoundError:
            return TRADE
        except OSError as error:
            why = f"The kill file {path} cannot be looked for ({error.strerror})"
        else:
            why = f"The kill file {path} exists"
        done = "held" if self._action == "hold" else "closed"
        refusal = Refusal(self.name, None, math.nan, math.nan, f"{why}: nothing is ordered, and positions are {done}.")
        return Verdict((refusal,), self._action)

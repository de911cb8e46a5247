"""What happens to rows that cannot be used: the first is refused, or all are left out and listed."""

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ml_pipeline.config.errors import UserError
from ml_pipeline.trading.market.tables import Table


@dataclass
class Faults:
    """What to do about unusable rows.

    policy: "refuse" the first; "drop" them and collect sentences; "list" is as "drop", and also collects what cannot
    be mended by dropping rows. Cells that can be done without are emptied, and their rows stay.
    all_rows: name every row, not only the first twenty. sentences: about the rows.
    """

    policy: Literal["refuse", "drop", "list"] = "refuse"
    all_rows: bool = False
    sentences: list[str] = field(default_factory=list)

    def report(
        self, table: Table, rows: NDArray[np.int64], sentence: str, *, droppable: bool = True, emptied: bool = False
    ) -> None:
        """Report rows of the table, in order; the sentence is about the first. Raises UserError by `policy`.

        emptied: the rows can be used without the cell.
        """
        message = f"{table.place(int(rows[0]))}: {sentence}"
        if len(rows) > 1 and self.policy != "refuse":
            message += f" The same in {len(rows):,} rows in all: {table.numbers(rows, all_of_them=self.all_rows)}."
        self.add(message, droppable=droppable, emptied=emptied)

    def add(self, message: str, *, droppable: bool = True, emptied: bool = False) -> None:
        """Collect a sentence about unusable bars. Raises UserError with it by `policy`."""
        if self.policy == "list":
            self.sentences.append(message)
        elif self.policy == "drop" and droppable:
            self.sentences.append(f"{'taken as empty' if emptied else 'left out'}: {message}")
        elif droppable:
            done = "takes such cells as empty" if emptied else "leaves such rows out"
            raise UserError(f"{message} --drop-bad-rows {done} and lists them.")
        else:
            raise UserError(message)

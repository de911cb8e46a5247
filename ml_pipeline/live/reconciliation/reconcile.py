"""From the folder of a session to its reconciliation, and the files that it is written into."""

import json
from dataclasses import dataclass
from pathlib import Path

from ml_pipeline.live.reconciliation.costs_met import write_realized_costs
from ml_pipeline.live.reconciliation.page import write_reconciliation_page
from ml_pipeline.live.reconciliation.read_session import read_session
from ml_pipeline.live.reconciliation.reconciliation import Reconciliation, reconcile
from ml_pipeline.live.session_files import COSTS_MET_FILE, RECONCILIATION_FIGURES_FILE, RECONCILIATION_FILE


@dataclass(frozen=True, eq=False)
class ReconciledSession:
    """A reconciliation and the files that it was written into. text: for a terminal."""

    found: Reconciliation
    page: Path
    figures: Path
    settings: Path

    @property
    def text(self) -> str:
        return self.found.text


def reconcile_session(folder: Path) -> ReconciledSession:
    """Run a session's bars through the backtest, compare, and write reconciliation.html, reconciliation.json and
    costs-met.yaml into its folder.

    The session may still trade. Raises UserError where there is none, or where it cannot be run again.
    """
    found = reconcile(read_session(folder))
    written = ReconciledSession(
        found, folder / RECONCILIATION_FILE, folder / RECONCILIATION_FIGURES_FILE, folder / COSTS_MET_FILE
    )
    write_reconciliation_page(written.page, found)
    written.figures.write_text(json.dumps(found.as_json(), indent=2) + "\n", encoding="utf-8")
    write_realized_costs(written.settings, found.record, found.costs)
    return written

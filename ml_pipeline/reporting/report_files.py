"""The file names of reports, the same for every kind of run."""

EVALUATION_FILE = "evaluation.json"
PAGE_FILE = "report.html"

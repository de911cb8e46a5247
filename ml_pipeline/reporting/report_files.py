"""What the files of a report are called, whatever the run was about."""

EVALUATION_FILE = "evaluation.json"
PAGE_FILE = "report.html"

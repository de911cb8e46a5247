"""run.log: what a run told its listener, a line each, with the time in UTC."""

LOG_FILE = "run.log"

"""A sink of your own: keeps the mean return of each iteration in a small SQLite database.

PYTHONPATH=examples ml-pipeline train --env-id CartPole-v1 --total-timesteps 20000 --sink custom_sink:SqliteSink

PYTHONPATH names the folder of this file; without it, run where the file lies.
"""

import sqlite3


class SqliteSink:
    """Made with the run folder and every setting by name; write() follows each iteration, close() the last."""

    def __init__(self, folder, config):
        self.path = folder / "returns.sqlite"
        self.seed = config["seed"]
        self.database = None

    def write(self, metrics, episodes):
        if self.database is None:  # SQLite belongs to the thread that opens it, and write() has one of its own
            self.database = sqlite3.connect(self.path)
            self.database.execute("CREATE TABLE IF NOT EXISTS returns (seed INTEGER, step INTEGER, mean REAL)")
        row = (self.seed, metrics["time/global_step"], metrics["rollout/mean_return_100"])
        with self.database:
            self.database.execute("INSERT INTO returns VALUES (?, ?, ?)", row)

    def close(self):
        if self.database is not None:
            self.database.close()

"""run.log: one entry per thing that was told, whatever it holds and whatever the disk does."""

import contextlib
from datetime import UTC, datetime
from pathlib import Path

from ml_pipeline.monitoring.listener import LoggedListener, RunListener, RunLog, RunStart

NOON = datetime(2026, 3, 4, 12, 0, 5, tzinfo=UTC)


class Recorder(RunListener):
    def __init__(self):
        self.told = []

    def started(self, start):
        self.told.append(start)

    def say(self, sentence):
        self.told.append(sentence)

    def trained(self):
        self.told.append("trained")


def write(path, *texts):
    with contextlib.closing(RunLog(path, clock=lambda: NOON)) as log:
        for text in texts:
            log.write(text)


def test_an_entry_is_a_line_with_its_time_in_utc(tmp_path):
    write(tmp_path / "run.log", "One.", "Two.\n")
    assert (tmp_path / "run.log").read_text() == "2026-03-04T12:00:05Z One.\n2026-03-04T12:00:05Z Two.\n"


def test_the_file_is_made_by_the_first_entry_and_added_to_by_the_next_run(tmp_path):
    path = tmp_path / "run.log"
    write(path)
    assert not path.exists()
    write(path, "One.")
    write(path, "Two.")
    assert len(path.read_text().splitlines()) == 2


def test_a_torn_line_is_ended_first(tmp_path):
    (tmp_path / "run.log").write_text("2026-03-04T12:00:05Z On")
    log = RunLog(tmp_path / "run.log", clock=lambda: NOON)
    log.write("Two.")
    log.close()
    log.close()
    assert (tmp_path / "run.log").read_text() == "2026-03-04T12:00:05Z On\n2026-03-04T12:00:05Z Two.\n"


def test_a_log_stays_with_its_folder(tmp_path):
    (tmp_path / "run").mkdir()
    log = RunLog(tmp_path / "run" / "run.log", clock=lambda: NOON)
    log.write("One.")
    (tmp_path / "run").rename(tmp_path / "moved")
    (tmp_path / "run").mkdir()
    log.write("Two.")
    log.close()
    assert list((tmp_path / "run").iterdir()) == []
    assert len((tmp_path / "moved" / "run.log").read_text().splitlines()) == 2


def test_further_lines_are_indented_and_control_characters_are_taken_out(tmp_path):
    write(tmp_path / "run.log", "Failed:\r\n\tline 3\x1b[31m\r of \x9b2Jäöü")
    assert (tmp_path / "run.log").read_text() == (
        "2026-03-04T12:00:05Z Failed:\n  \tline 3\ufffd[31m\ufffd of \ufffd2Jäöü\n"
    )


def test_what_the_disk_does_not_take_is_dropped(tmp_path):
    write(tmp_path / "missing" / "run.log", "One.")
    if Path("/dev/full").exists():
        write(Path("/dev/full"), "One.")


def test_a_listener_hears_what_is_written_down(tmp_path):
    listener = Recorder()
    log = RunLog(tmp_path / "run.log", clock=lambda: NOON)
    logged = LoggedListener(listener, log)
    start = RunStart(tmp_path, 8, 2, "spawn", 10, 1000, 500)
    logged.started(start)
    logged.say("Hello.")
    logged.trained()
    log.close()
    assert listener.told == [start, "Hello.", "trained"]
    first, second = (line.partition(" ")[2] for line in (tmp_path / "run.log").read_text().splitlines())
    assert first.startswith("Resumed in process ")
    assert first.endswith(": 8 environments by 2 workers (spawn), 10 iterations, 1,000 environment steps.")
    assert second == "Hello."

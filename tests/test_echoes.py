"""How far a query in real time is, by the pulses that it passes on; and when it is taken for stuck."""

import json
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

from streaming.echoes import Heard, Pulsed
from streaming.progress import QueryProgress, StreamProgress
from streaming.watch import ProgressWriter

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
INTERVAL, PULSE = 60.0, 5.0


def echo(partition: int, number: int, seconds_ago: float = 0.5, sender: str = "this host") -> bytes:
    at = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    told = {"sender": sender, "partition": partition, "sequence_number": number, "enqueued_time": at}
    return json.dumps(told).encode()


class Watched:
    """A query that reads a hub of two partitions."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "progress.json"
        self.writer = ProgressWriter(self._file, "sensors", None, lambda: NOW)
        self.writer.expect("alerts", INTERVAL)
        self.heard = Heard(Pulsed("alerts", 2, PULSE, "this host"), self.writer)

    def hear(self, *echoes: bytes, clock: float | None = None) -> QueryProgress:
        self.heard.take(echoes, NOW, time.monotonic() if clock is None else clock)
        return self.now

    @property
    def now(self) -> QueryProgress:
        progress = StreamProgress.read(self._file)
        assert progress is not None
        return progress.queries["alerts"]


def test_until_every_partition_was_heard_of_it_has_the_time_of_its_notes(tmp_path: Path) -> None:
    """A backlog from before the start has no pulses: it may take long to the first."""
    watched = Watched(tmp_path)
    before = watched.now.sign_clock
    heard = watched.hear(echo(0, 10), b"of somebody else", b"")
    assert (heard.trigger_seconds, heard.sign_clock, heard.idle_at) == (INTERVAL, before, None)
    later = before + 100
    heard = watched.hear(echo(1, 7), clock=later)
    assert heard.trigger_seconds == PULSE and heard.idle_at is not None, "that counts as progress"


def test_a_partition_that_is_not_heard_of_any_more_gives_no_sign(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    start = watched.now.sign_clock
    assert watched.hear(echo(0, 1), echo(1, 1), clock=start + 10).sign_clock == start + 10
    assert watched.hear(echo(0, 2), clock=start + 20).sign_clock == start + 10
    assert watched.hear(echo(0, 3), clock=start + 30).sign_clock == start + 10
    assert watched.hear(echo(1, 2), clock=start + 40).sign_clock == start + 30, "since when both answered"


def test_echoes_of_another_host_or_of_the_one_before_do_not_count(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    before = watched.now
    assert watched.hear(echo(0, 10, sender="that host"), echo(1, 10, sender="that host"), b'{"partition": 0}') == before
    watched.hear(echo(0, 3), echo(0, 900, sender="that host"), echo(1, 4))
    assert watched.now.read_to == {"0": 4, "1": 5}


def test_the_lag_is_that_at_the_last_pulse(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.hear(echo(0, 9))
    watched.writer.hub_reaches("alerts", {0: 10, 1: 5_000})
    assert watched.now.lag_records is None, "nobody knows of the other partition yet"
    assert watched.hear(echo(1, 4_949)).lag_records == 50
    watched.writer.hub_reaches("alerts", {0: 700, 1: 6_000})
    assert watched.now.lag_records == 50, "it reads all the time: only a pulse tells how far"
    after = watched.hear(echo(0, 699, 2.0), echo(1, 5_999, 0.25))
    assert (after.lag_records, after.end_to_end_seconds) == (0, 2.0)


def test_without_signs_the_lag_grows(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    long_ago = time.monotonic() - 1000
    watched.heard.take([echo(0, 9), echo(1, 9)], NOW, long_ago)
    # Its last sign is that of its start, which is older than two pulses by now.
    query = watched.now
    watched.writer._progress.queries["alerts"] = QueryProgress(**{**vars(query), "sign_clock": long_ago})
    watched.writer.hub_reaches("alerts", {0: 110, 1: 10})
    assert watched.now.lag_records == 100

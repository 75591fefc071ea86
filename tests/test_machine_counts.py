"""`tidewatch status` on machines: how many are how, and as of when."""

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import write_deltalake

from lake.machines import MACHINES
from orchestration.command.status import (
    JUDGING,
    MachineCounts,
    machine_counts,
    machines_line,
    stream_states,
    to_json,
)
from settings import Settings
from streaming.catalog import HEARTBEAT
from streaming.files import StreamFiles
from streaming.progress import STARTING, QueryProgress, StreamProgress

CHANGED = datetime(2026, 3, 1, 12, tzinfo=UTC)


def at(seconds: float) -> str:
    return (CHANGED + timedelta(seconds=seconds)).isoformat()


def has_machines(settings: Settings) -> None:
    rows = [{"status": status, "since": CHANGED} for status in ("Healthy", "Healthy", "Unhealthy")]
    write_deltalake(MACHINES.path(settings.lake_root), pa.Table.from_pylist(rows))


def judged(settings: Settings, **read_up_to: str) -> None:
    query = QueryProgress(1.0, read_up_to=read_up_to)
    file = StreamFiles(settings.run_folder, HEARTBEAT.name).progress
    StreamProgress(HEARTBEAT.name, STARTING, at(0), at(0), queries={JUDGING: query}).write(file)


def test_machines_are_told_as_of_the_time_up_to_which_all_partitions_were_read(settings: Settings) -> None:
    """The stream does not run: what was healthy then need not be so any more."""
    has_machines(settings)
    judged(settings, **{"0": at(90), "1": at(60.5)})
    assert machines_line(settings) == "machines: 2 Healthy, 1 Unhealthy, as of 2026-03-01T12:01:00 UTC"


def test_without_anything_read_they_are_told_as_of_the_last_change(settings: Settings) -> None:
    assert machine_counts(settings) is None and machines_line(settings) is None
    has_machines(settings)
    expected = MachineCounts({"Healthy": 2, "Unhealthy": 1}, at(0))
    assert machine_counts(settings) == expected
    judged(settings)
    assert machine_counts(settings) == expected


def test_programs_are_told_too(settings: Settings) -> None:
    has_machines(settings)
    told = json.loads(to_json(stream_states(settings), machine_counts(settings)))
    assert told["heartbeat"]["machines"] == {"by_status": {"Healthy": 2, "Unhealthy": 1}, "as_of": at(0)}
    assert "machines" not in told["bronze"]

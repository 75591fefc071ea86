import json
import time
from dataclasses import asdict, fields, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from processes.identity import boot_id
from streaming.health import HealthState, StreamHealth
from streaming.progress import RUNNING, QueryProgress, StreamProgress
from streaming.watch import after_batch, with_lag

PROGRESS = StreamProgress(
    "bronze",
    RUNNING,
    started_at="2026-01-01T00:00:00+00:00",
    written_at="2026-01-01T00:00:05+00:00",
    run_id="r",
    queries={"clicks": QueryProgress(5, batch=3, batch_at="2026-01-01T00:00:05+00:00", total_rows=7)},
)


def test_progress_survives_its_file(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "progress.json"
    assert StreamProgress.read(file) is None
    PROGRESS.write(file)
    assert StreamProgress.read(file) == PROGRESS
    file.write_text("{")
    assert StreamProgress.read(file) is None
    PROGRESS.write(file)
    assert [other.name for other in file.parent.iterdir()] == ["progress.json"]


def test_what_a_newer_version_tells_beyond_is_passed_over(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    newer = asdict(PROGRESS) | {"a_new_field": {"deep": 1}}
    newer["queries"]["clicks"]["another_new_field"] = 1
    file.write_text(json.dumps(newer))
    assert StreamProgress.read(file) == PROGRESS
    health = StreamHealth("bronze", HealthState.RUNNING, "well", "2026-01-01T00:00:00+00:00", counts={"starts": 3})
    file.write_text(json.dumps(asdict(health) | {"a_new_field": 1}))
    assert StreamHealth.read(file) == health


@pytest.mark.parametrize("missing", [field.name for field in fields(StreamProgress) if field.name != "run_id"])
def test_a_host_of_an_older_version_that_just_wrote_is_not_silent(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "progress.json"
    older = asdict(replace(PROGRESS, boot=boot_id(), alive_clock=time.monotonic()))
    del older[missing]
    file.write_text(json.dumps(older))
    read = StreamProgress.read(file)
    assert read is not None and read.run_id == "r" and read.boot == boot_id()
    assert time.monotonic() - read.alive_clock < 5


@pytest.mark.parametrize("missing", [field.name for field in fields(QueryProgress)])
def test_a_query_of_an_older_version_that_just_wrote_is_not_stuck(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "progress.json"
    query = asdict(replace(PROGRESS.queries["clicks"], sign_clock=time.monotonic()))
    del query[missing]
    file.write_text(json.dumps(asdict(PROGRESS) | {"queries": {"clicks": query}}))
    read = StreamProgress.read(file)
    assert read is not None and time.monotonic() - read.queries["clicks"].sign_clock < 5


@pytest.mark.parametrize("missing", [field.name for field in fields(StreamHealth) if field.name != "counts"])
def test_the_counts_of_an_older_supervisor_are_kept(tmp_path: Path, missing: str) -> None:
    file = tmp_path / "health.json"
    older = asdict(StreamHealth("bronze", HealthState.RUNNING, "", "2026-01-01T00:00:00+00:00", counts={"starts": 3}))
    del older[missing]
    file.write_text(json.dumps(older))
    read = StreamHealth.read(file)
    assert read is not None and read.counts == {"starts": 3} and read.age_seconds(NOW) > 0


def test_the_time_to_catch_up_follows_from_what_is_gained_on_the_hub() -> None:
    query = replace(PROGRESS.queries["clicks"], lag_records=9000, rows=2000, batch_seconds=2)
    assert replace(query, arriving_rows_per_second=100).seconds_until_caught_up() == 30
    assert replace(query, arriving_rows_per_second=400).seconds_until_caught_up() is None
    assert replace(query, lag_records=0, arriving_rows_per_second=400).seconds_until_caught_up() == 0
    # What is left is no more than the last batch took: the next one takes it.
    one_more = replace(query, lag_records=2000, arriving_rows_per_second=400)
    assert one_more.seconds_until_caught_up() == query.trigger_seconds + 2


def test_the_time_left_is_what_the_retention_leaves_of_the_lag() -> None:
    query = replace(PROGRESS.queries["clicks"], lag_seconds=100.0)
    assert query.retention_left_seconds() is None
    assert replace(query, retention_seconds=3600).retention_left_seconds() == 3500


NOW = datetime(2026, 1, 1, 0, 1, tzinfo=UTC)
READ = replace(PROGRESS.queries["clicks"], read_to={"0": 5, "1": 7}, read_up_to={"0": "2026-01-01T00:00:50+00:00"})


def test_lag_is_what_the_hub_has_beyond_what_was_read() -> None:
    seen = with_lag(READ, {"0": 9, "1": 7, "2": 3}, NOW)
    assert (seen.lag_records, seen.lag_seconds) == (7, 10)
    fresh = replace(READ, read_up_to={**READ.read_up_to, "1": NOW.isoformat()})
    assert with_lag(fresh, {"0": 9, "1": 8}, NOW).lag_seconds == 10, "the partition that is furthest behind counts"
    seen = with_lag(READ, {"0": 5, "1": 7}, NOW)
    assert (seen.lag_records, seen.lag_seconds) == (0, 0)
    assert with_lag(QueryProgress(5), {"0": 9}, NOW).lag_records is None


def test_records_that_come_after_a_quiet_hour_have_not_been_waiting_for_an_hour() -> None:
    quiet = with_lag(READ, {"0": 5, "1": 7}, NOW + timedelta(hours=1))
    seen = with_lag(quiet, {"0": 6, "1": 7}, NOW + timedelta(hours=1, seconds=4))
    assert (seen.lag_records, seen.lag_seconds) == (1, 4)


def test_the_hubs_growth_is_measured_between_two_looks() -> None:
    first = with_lag(READ, {"0": 100}, NOW)
    assert with_lag(first, {"0": 600}, NOW + timedelta(seconds=50)).arriving_rows_per_second == 10
    assert with_lag(first, {"0": 200}, NOW + timedelta(seconds=10)).arriving_rows_per_second == 5


def batch_of(seconds: float) -> dict[str, Any]:
    """As Spark tells of it: it read all that there was when it began."""
    return {
        "timestamp": (NOW - timedelta(seconds=seconds)).isoformat().replace("+00:00", "Z"),
        "batchId": 4,
        "numInputRows": 20,
        "batchDuration": seconds * 1000,
        "stateOperators": [],
        "sources": [{"endOffset": {"clicks": {"0": 20}}, "latestOffset": {"clicks": {"0": 20}}}],
    }


def test_what_came_during_a_long_batch_has_waited_since_it_began() -> None:
    began = NOW - timedelta(seconds=47)
    before = with_lag(replace(READ, read_to={"0": 0}, read_up_to={}), {"0": 20}, began - timedelta(seconds=1))
    # Nobody asked the hub during the batch; then it is asked a second after it.
    after = after_batch(before, batch_of(47), NOW)
    seen = with_lag(after, {"0": 960}, NOW + timedelta(seconds=1))
    assert (seen.lag_records, seen.lag_seconds) == (940, 48)
    assert seen.arriving_rows_per_second == pytest.approx(940 / 48)
    # It was asked three seconds before the batch ended.
    asked = with_lag(before, {"0": 900}, NOW - timedelta(seconds=3))
    seen = after_batch(replace(asked, read_up_to={"0": began.isoformat()}), batch_of(47), NOW, {"0": 900})
    assert (seen.lag_records, seen.lag_seconds) == (880, 47)
    assert seen.arriving_rows_per_second == asked.arriving_rows_per_second

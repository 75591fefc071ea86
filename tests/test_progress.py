from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from streaming.progress import RUNNING, QueryProgress, StreamProgress
from streaming.watch import with_lag

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
    file.write_text(file.read_text().replace("total_rows", "a_field_of_another_version"))
    assert StreamProgress.read(file) is None
    PROGRESS.write(file)
    assert [other.name for other in file.parent.iterdir()] == ["progress.json"]


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

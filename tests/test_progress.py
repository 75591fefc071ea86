from dataclasses import replace
from pathlib import Path

from streaming.progress import RUNNING, QueryProgress, StreamProgress
from streaming.watch import unread_records

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


def test_the_last_sign_of_life_is_a_batch_or_a_look_that_found_nothing() -> None:
    query = PROGRESS.queries["clicks"]
    assert query.last_sign is not None and query.last_sign.second == 5
    later = replace(query, idle_at="2026-01-01T00:00:09+00:00")
    assert later.last_sign is not None and later.last_sign.second == 9
    assert QueryProgress(5).last_sign is None


def test_unread_records_are_counted_over_partitions() -> None:
    assert unread_records('{"clicks":{"0":5,"1":7}}', '{"clicks":{"0":9,"1":7}}') == 4
    assert unread_records('{"clicks":{"0":5}}', '{"clicks":{"0":5,"1":3}}') == 3
    assert unread_records(None, '{"clicks":{"0":5}}') == 5
    assert unread_records('{"clicks":{"0":5}}', None) == 0

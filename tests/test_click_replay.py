"""Quarantine replayed: what passes now becomes clicks, exactly once, also when the replay is cut off."""

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable

from lake.commit import SchemaMismatch
from lake.lock import LockTimeout, tables_locked
from lake.silver import CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH
from streaming.click_replay import Choice, Replayed, _Note, _Replay, replay_clicks
from streaming.click_tables import BatchInWork, click_lock, click_tables_locked, refuse_half_a_replay
from tests.silver import BRONZE, CLICKS, START, Silver, assert_windows_follow, click, cut_off_after, execute_job

pytestmark = pytest.mark.slow

LATER_STEPS = ("_add_clickpath", "_restate_windows", "remove")


def replay(silver: Silver, *, dry_run: bool = False, **choice: Any) -> Replayed:
    return replay_clicks(silver.spark, silver.settings, Choice(**choice), dry_run=dry_run)


def slow(event: str) -> bytes:
    return click(event, page_loading_seconds=5000)


def put_slow_clicks(silver: Silver) -> None:
    """Slow ones of which `a` was kept as a good click too, `b` is there twice, and `c` comes again too late."""
    silver.put(click("a"), slow("b"), b"no JSON", click("d", page_loading_seconds=-1))
    silver.put(slow("a"), slow("b"), slow("c"), minute=3)
    silver.put(click("c"), minute=14)
    silver.put(click("e"), minute=40)  # closes all windows before
    silver.work()
    silver.work("click_activity")
    assert silver.books() == {"clicks": 3, "duplicates": 0, "quarantine": 6}
    silver.set(longest_page_seconds=9999)


def assert_replayed(silver: Silver) -> None:
    assert silver.books() == {"clicks": 5, "duplicates": 2, "quarantine": 2}
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b", "c", "c", "e"]
    repeated = {(r.eventID, r.sequence_number, r.kept_sequence_number) for r in silver.read(CLICK_DUPLICATES).collect()}
    assert repeated == {("a", 4, 0), ("b", 5, 1)}
    assert {row.reason for row in silver.read(CLICK_QUARANTINE).collect()} == {"malformed_json", "load_time_negative"}
    assert_windows_follow(silver)


def test_what_passes_now_becomes_clicks_once(silver: Silver) -> None:
    put_slow_clicks(silver)
    expected = Replayed(
        {"load_time_absurd": 4, "load_time_negative": 1, "malformed_json": 1}, {"load_time_absurd": 4}, clicks=2
    )
    assert replay(silver, dry_run=True) == expected
    assert silver.books()["quarantine"] == 6, "a dry run writes nothing"
    assert replay(silver) == expected
    assert_replayed(silver)
    assert replay(silver) == Replayed({"load_time_negative": 1, "malformed_json": 1}, {}, clicks=0)
    assert_replayed(silver)
    # The stream goes on as if nothing had been, and knows what the replay kept.
    silver.put(click("c"), click("f"), minute=4)
    silver.work()
    assert silver.books() == {"clicks": 6, "duplicates": 3, "quarantine": 2}


@pytest.mark.parametrize("step", LATER_STEPS)
def test_a_replay_that_was_cut_off_is_completed_by_the_next(
    silver: Silver, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_slow_clicks(silver)

    def cut_off(_: Any) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as patched:
        patched.setattr(_Note if step == "remove" else _Replay, step, cut_off)
        with pytest.raises(OSError, match="cut off"):
            replay(silver)
    # Another one, by rules that nothing passes, first completes it.
    silver.set(longest_page_seconds=1)
    replay(silver, reasons=["malformed_json"])
    assert_replayed(silver)
    refuse_half_a_replay(silver.spark, silver.settings)


def test_a_click_that_comes_while_quarantine_is_read_again_is_not_there_twice(
    silver: Silver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.put(slow("x"), click("y"))
    silver.work()
    silver.set(longest_page_seconds=9999)

    def locked(*arguments: Any) -> Any:
        monkeypatch.undo()
        silver.put(click("x"), minute=2)
        silver.work()
        return click_tables_locked(*arguments)

    monkeypatch.setattr("streaming.click_replay.click_tables_locked", locked)
    replay(silver)
    assert silver.books() == {"clicks": 2, "duplicates": 1, "quarantine": 0}
    assert silver.events() == silver.events(CLICKPATH) == ["x", "y"]


def test_what_bronze_has_no_more_is_replayed_from_quarantine(silver: Silver) -> None:
    silver.put(slow("x"), b"no", click("y"))
    silver.work()
    silver.set(longest_page_seconds=9999)
    DeltaTable.forPath(silver.spark, BRONZE.path(silver.settings.lake_root)).delete()
    replay(silver)
    assert silver.books() == {"clicks": 2, "duplicates": 0, "quarantine": 1}


def test_by_reason_and_time(silver: Silver) -> None:
    put_slow_clicks(silver)
    assert replay(silver, reasons=["malformed_json"]).passed == {}
    late = replay(silver, since=START + timedelta(minutes=3), dry_run=True)
    early = replay(silver, until=START + timedelta(minutes=3))
    assert (early.passed, late.passed) == ({"load_time_absurd": 1}, {"load_time_absurd": 3})
    assert silver.books() == {"clicks": 4, "duplicates": 0, "quarantine": 5}
    replay(silver, reasons=["load_time_absurd"])
    assert_replayed(silver)


def test_a_promoted_field_is_in_its_column(silver: Silver) -> None:
    silver.set(promoted_fields={"referrer": "BIGINT"})
    silver.put(click("a", referrer="search"))
    silver.work()
    assert silver.books() == {"clicks": 0, "duplicates": 0, "quarantine": 1}
    silver.set(promoted_fields={"source": "STRING"})
    with pytest.raises(SchemaMismatch, match="no column source yet: launch the job `restart`"):
        replay(silver)
    silver.put(click("b", source="mail"))
    silver.work()
    replay(silver)
    rows = {row.eventID: (row.source, row.unknown_fields) for row in silver.read(CLICKS).collect()}
    assert rows == {"a": (None, '{"referrer":"search"}'), "b": ("mail", None)}


def test_refused_while_a_batch_is_half_done(silver: Silver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_slow_clicks(silver)
    silver.put(b"no JSON", click("g"), minute=41)
    with cut_off_after(1, monkeypatch), pytest.raises(Exception, match="cut off"):
        silver.start().processAllAvailable()
    with pytest.raises(BatchInWork, match="run until it has done a batch"):
        replay(silver)
    # A lost checkpoint leaves the half batch of its writer behind for ever; the next writer has all of it.
    Path(silver.settings.checkpoint_root, "silver", "clicks").rename(tmp_path / "moved")
    silver.work()
    assert replay(silver).clicks == 2
    assert silver.books() == {"clicks": 6, "duplicates": 2, "quarantine": 3}


def test_refused_where_windows_have_another_length(silver: Silver) -> None:
    put_slow_clicks(silver)
    silver.set(longest_page_seconds=9999, window_minutes=1)
    with pytest.raises(SchemaMismatch, match="windows of 5 minutes"):
        replay(silver)
    assert silver.books()["quarantine"] == 6


def test_waits_for_the_lock_of_the_tables(silver: Silver) -> None:
    put_slow_clicks(silver)
    silver.set(longest_page_seconds=9999, lock_seconds=0.2)
    with tables_locked(silver.spark, click_lock(silver.settings), 1), pytest.raises(LockTimeout):
        replay(silver)


def test_the_job_in_a_run_of_its_own(silver: Silver, tmp_path: Path) -> None:
    put_slow_clicks(silver)
    wrong = execute_job(tmp_path, "replay_quarantine", {"reasons": ["too_slow"]})
    assert wrong.returncode != 0
    assert "There is no reason too_slow: there are empty_body" in wrong.stderr
    done = execute_job(tmp_path, "replay_quarantine", {"reasons": ["load_time_absurd"], "since": "2026-03-01"})
    assert done.returncode == 0, done.stderr
    assert "4 of 4 records pass: 2 became clicks, 2 repeat one" in done.stderr
    assert_replayed(silver)


def test_without_any_table_there_is_nothing_to_do(silver: Silver) -> None:
    assert replay(silver) == Replayed({}, {}, clicks=0)

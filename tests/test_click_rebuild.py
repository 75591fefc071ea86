"""Silver made anew from bronze: what today's rules say, beside the stream, without gap or overlap."""

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from delta import DeltaTable

from bench.rig import wait_for
from lake.commit import SchemaMismatch, newest_version
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH
from lake.swap import replace_files
from lake.tables import Table
from streaming.click_rebuild import Compared, Days, RebuildRefused, Rebuilt, _Shadow, rebuild_clicks
from streaming.click_tables import CLICK_TABLES, BatchInWork
from tests.silver import BRONZE, CLICKS, Silver, assert_windows_follow, click, cut_off_after, execute_job

pytestmark = pytest.mark.slow

DAY = 24 * 60
MIDNIGHT = DAY / 2
FIRST, SECOND = date(2026, 3, 1), date(2026, 3, 2)


def rebuild(silver: Silver, first: date | None = None, last: date | None = None, *, dry_run: bool = False) -> Rebuilt:
    return rebuild_clicks(silver.spark, silver.settings, Days(first, last), dry_run=dry_run)


def slow(event: str) -> bytes:
    return click(event, page_loading_seconds=5000)


def put_three_days(silver: Silver) -> None:
    """With slow clicks in each, which the rules take for errors until `allow_slow_clicks`."""
    silver.put(click("a"), slow("b"))
    silver.put(click("c"), slow("d"), click("c"), b"no JSON", minute=DAY)
    silver.put(click("e"), slow("f"), minute=2 * DAY)
    silver.work()
    silver.work("click_activity")
    assert silver.books() == {"clicks": 3, "duplicates": 1, "quarantine": 4}


def allow_slow_clicks(silver: Silver) -> None:
    silver.set(longest_page_seconds=9999)


def versions(silver: Silver) -> list[int]:
    return [newest_version(silver.spark, table, silver.settings.lake_root) for table in CLICK_TABLES]


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], None]) -> None:
    """Once, between what a rebuild makes and what it swaps."""
    compared, waiting = _Shadow.compared, [happens]

    def and_more(shadow: _Shadow) -> Rebuilt:
        result = compared(shadow)
        if waiting:
            waiting.pop()()
        return result

    monkeypatch.setattr(_Shadow, "compared", and_more)


def test_days_are_made_anew_and_the_others_left_alone(silver: Silver) -> None:
    put_three_days(silver)
    allow_slow_clicks(silver)
    before = versions(silver)
    expected = {
        "silver/clicks": Compared(before=1, after=2, gone=0, new=1),
        "silver/clickpath": Compared(before=1, after=2, gone=0, new=1),
        "silver/click_duplicates": Compared(before=1, after=1, gone=0, new=0),
        "quarantine/clicks": Compared(before=2, after=1, gone=1, new=0),
    }
    assert rebuild(silver, SECOND, SECOND, dry_run=True) == Rebuilt(Days(SECOND, SECOND), expected)
    assert versions(silver) == before
    (shadow,) = Path(silver.settings.lake_root, "shadow").glob("*/silver/clicks")
    assert {row.eventID for row in silver.spark.read.format("delta").load(str(shadow)).collect()} == {"c", "d"}
    assert rebuild(silver, SECOND, SECOND).tables == expected
    assert not Path(silver.settings.lake_root, "shadow").exists()
    assert silver.events() == silver.events(CLICKPATH) == ["a", "c", "d", "e"]
    assert silver.books() == {"clicks": 4, "duplicates": 1, "quarantine": 3}
    assert_windows_follow(silver)
    swapped = max(Path(CLICKS.path(silver.settings.lake_root), "_delta_log").glob("*.json"))
    actions = [json.loads(line) for line in swapped.read_text().splitlines()]
    files = [action[kind] for action in actions for kind in ("add", "remove") if kind in action]
    assert [(file["partitionValues"]["date"], file["dataChange"]) for file in files] == [(str(SECOND), True)] * 2
    # The stream goes on, and knows what the rebuild kept.
    silver.put(click("d"), click("g"), minute=DAY + 5)
    silver.work()
    silver.work("click_activity")
    assert silver.books() == {"clicks": 5, "duplicates": 2, "quarantine": 3}
    assert silver.events() == ["a", "c", "d", "e", "g"]


def test_damage_is_mended_and_what_is_right_stays_untouched(silver: Silver) -> None:
    put_three_days(silver)
    silver.put(None, minute=3 * DAY)
    silver.work()
    before = {table.name: sorted(map(str, silver.read(table).collect())) for table in (*CLICK_TABLES, CLICK_ACTIVITY)}
    silver.read(CLICKPATH).write.format("delta").mode("append").save(CLICKPATH.path(silver.settings.lake_root))
    changed(silver, CLICKS).delete("eventID = 'a'")
    changed(silver, CLICK_QUARANTINE).delete("body IS NULL")
    changed(silver, CLICK_ACTIVITY).update(set={"eventType": "'nobody did'"})
    result = rebuild(silver)
    assert result.tables["silver/clicks"] == Compared(before=2, after=3, gone=0, new=1)
    assert result.tables["silver/clickpath"] == Compared(before=6, after=3, gone=3, new=0)
    after = {table.name: sorted(map(str, silver.read(table).collect())) for table in (*CLICK_TABLES, CLICK_ACTIVITY)}
    assert after == before
    untouched = versions(silver)
    assert rebuild(silver).same
    assert versions(silver) == untouched


def changed(silver: Silver, table: Table) -> DeltaTable:
    return DeltaTable.forPath(silver.spark, table.path(silver.settings.lake_root))


def test_beside_the_running_stream_nothing_is_lost_or_there_twice(
    silver: Silver, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_three_days(silver)
    allow_slow_clicks(silver)
    for module in ("streaming.click_rebuild", "lake.days"):
        monkeypatch.setattr(f"{module}.MB", 1 / 1024)
    monkeypatch.setattr("streaming.click_rebuild.MOST_PARTS", 2)
    query, enough = silver.start(), threading.Event()
    minutes: list[int] = []

    def keep_coming() -> None:
        while not enough.wait(0.5):
            number = len(minutes)
            silver.put(click(f"g{number}"), click(f"g{number}"), slow(f"h{number}"), b"no", minute=DAY + number)
            minutes.append(number)

    def wait_for_more() -> None:
        clicks = silver.read(CLICKS).count()
        wait_for("the stream takes up clicks", lambda: silver.read(CLICKS).count() > clicks + 3, 120)

    meanwhile(monkeypatch, wait_for_more)
    coming = threading.Thread(target=keep_coming)
    coming.start()
    try:
        rebuild(silver)
    finally:
        enough.set()
        coming.join()
    query.processAllAvailable()
    silver.work("click_activity")
    more = len(minutes)
    assert silver.books() == {"clicks": 6 + 2 * more, "duplicates": 1 + more, "quarantine": 1 + more}
    expected = [*"abcdef", *(f"{kind}{number}" for number in minutes for kind in "gh")]
    assert silver.events() == silver.events(CLICKPATH) == sorted(expected)
    # What came after the windows were counted was too late for closed ones; another rebuild has only that to do.
    assert rebuild(silver).same
    assert_windows_follow(silver)


@pytest.mark.parametrize("at", ["after the first table", "after the last table"])
def test_a_swap_that_was_cut_off_is_completed_by_the_stream(
    silver: Silver, at: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_three_days(silver)
    allow_slow_clicks(silver)
    done: list[str] = []

    def cut_off_at_the_second(*arguments: Any) -> None:
        if done:
            raise OSError("cut off")
        replace_files(*arguments)
        done.append("one")

    def cut_off(*_: Any) -> None:
        raise OSError("cut off")

    with monkeypatch.context() as patched:
        if at == "after the first table":
            patched.setattr("streaming.click_tables.replace_files", cut_off_at_the_second)
        else:
            patched.setattr("streaming.click_tables.note_stale_days", cut_off)
        with pytest.raises(OSError, match="cut off"):
            rebuild(silver)
    silver.put(click("d"), click("g"), minute=DAY + 5)
    silver.work()
    silver.work("click_activity")
    assert silver.books() == {"clicks": 7, "duplicates": 2, "quarantine": 1}
    assert_windows_follow(silver)


KILLED = """
import sys, time
from pathlib import Path
import streaming.click_tables as tables
from settings import Settings, SilverSettings
from streaming.click_rebuild import Days, rebuild_clicks
from streaming.session import spark_session

replace_files, done = tables.replace_files, []

def hold(*arguments):
    if len(done) == 2:
        Path(sys.argv[1], "held").touch()
        time.sleep(600)
    replace_files(*arguments)
    done.append(1)

tables.replace_files = hold
settings = Settings(home=sys.argv[1], silver=SilverSettings(longest_page_seconds=9999))
rebuild_clicks(spark_session(settings, "batch"), settings, Days())
"""


def test_killed_half_way_through_a_swap(silver: Silver, tmp_path: Path) -> None:
    put_three_days(silver)
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path)])
    try:
        wait_for("the swap is half done", (tmp_path / "held").exists, 300)
        books = silver.books()
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert sum(books.values()) != 8, "some tables have the new rows and some the old ones"
    silver.work()  # without any new record
    silver.work("click_activity")
    assert silver.books() == {"clicks": 6, "duplicates": 1, "quarantine": 1}
    assert silver.events() == silver.events(CLICKPATH) == [*"abcdef"]
    assert_windows_follow(silver)


def test_the_next_day_joins_where_it_repeats_a_click_that_is_no_more(silver: Silver) -> None:
    silver.put(slow("e"), minute=MIDNIGHT + 1)
    silver.set(longest_page_seconds=9999)
    silver.work()
    silver.put(slow("a"), click("b"), click("e"), minute=MIDNIGHT - 1)
    silver.put(click("a"), click("c"), minute=MIDNIGHT + 1)
    silver.put(click("d"), minute=DAY + MIDNIGHT + 1)
    silver.work()
    assert silver.books() == {"clicks": 5, "duplicates": 2, "quarantine": 0}
    silver.set()
    assert rebuild(silver, FIRST, FIRST).days == Days(FIRST, SECOND)
    assert silver.books() == {"clicks": 5, "duplicates": 0, "quarantine": 2}
    assert silver.events() == ["a", "b", "c", "d", "e"], "e repeated a click of the day that joined"


def test_the_next_day_joins_where_it_got_a_click_that_the_rebuild_kept(
    silver: Silver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.put(slow("a"), minute=MIDNIGHT - 1)
    silver.put(click("b"), minute=MIDNIGHT + 1)
    silver.work()
    allow_slow_clicks(silver)

    def the_click_comes_again() -> None:
        silver.put(click("a"), minute=MIDNIGHT + 1)
        silver.work()

    meanwhile(monkeypatch, the_click_comes_again)
    assert rebuild(silver, last=FIRST).days == Days(None, SECOND)
    assert silver.books() == {"clicks": 2, "duplicates": 1, "quarantine": 0}
    (repeat,) = silver.read(CLICK_DUPLICATES).collect()
    assert (repeat.sequence_number, repeat.kept_sequence_number) == (2, 0)


def test_refused_where_it_would_lose_something(silver: Silver, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RebuildRefused, match="let the stream silver run first"):
        rebuild(silver)
    silver.set(promoted_fields={"referrer": "STRING"})
    put_three_days(silver)
    silver.set(promoted_fields={"referrer": "BIGINT"})
    with pytest.raises(SchemaMismatch, match="has a column referrer string, so that it can't have one referrer bigint"):
        rebuild(silver)
    silver.set()
    silver.put(click("g"), b"no JSON")
    with cut_off_after(1, monkeypatch), pytest.raises(Exception, match="cut off"):
        silver.start().processAllAvailable()
    with pytest.raises(BatchInWork, match="run until it has done a batch"):
        rebuild(silver)
    silver.work()
    changed(silver, BRONZE).delete(f"date = date'{SECOND}'")
    silver.put(click("h"))
    silver.work()
    before = versions(silver)
    with pytest.raises(RebuildRefused, match="Silver has 4 records of 2026-03-02 that bronze/clicks does not have"):
        rebuild(silver)
    assert versions(silver) == before


def test_refused_when_the_stream_got_other_rules_meanwhile(silver: Silver, monkeypatch: pytest.MonkeyPatch) -> None:
    put_three_days(silver)
    allow_slow_clicks(silver)

    def the_stream_is_started_anew() -> None:
        silver.set(longest_page_seconds=7)
        silver.put(slow("z"), minute=DAY + 1)
        silver.work()

    meanwhile(monkeypatch, the_stream_is_started_anew)
    with pytest.raises(RebuildRefused, match="other rules or promoted fields while the rebuild ran"):
        rebuild(silver)
    assert "z" not in silver.events(), "it stays in quarantine, where the newer rules put it"


def test_the_job_in_a_run_of_its_own(silver: Silver, tmp_path: Path) -> None:
    put_three_days(silver)
    wrong = execute_job(tmp_path, "rebuild_silver", {"first_day": "yesterday"})
    assert wrong.returncode != 0
    assert "first_day is 'yesterday', which is no day: write it like 2026-03-01." in wrong.stderr
    done = execute_job(tmp_path, "rebuild_silver", {"first_day": "2026-03-02"})
    assert done.returncode == 0, done.stderr
    assert "Silver of 2026-03-02 to the last day changed: silver/clicks by 0 rows gone, 2 new" in done.stderr
    assert silver.books() == {"clicks": 5, "duplicates": 1, "quarantine": 2}
    assert_windows_follow(silver)

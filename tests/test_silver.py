"""The silver stream on real tables: nothing lost, nothing twice, whatever happens in between."""

import random
import shutil
from datetime import timedelta
from pathlib import Path

import pytest
from pyspark.sql import DataFrame, Row

from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH
from streaming.click_activity import click_activity
from tests.silver import CLICKS, Silver, click, cut_off_after
from tests.test_clicks import corpus

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("small", [0, 50_000])
def test_the_books_balance_across_batches_restarts_and_repeated_batches(
    silver: Silver, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("streaming.clicks_query.ROWS_OF_ONE_FILE", small)
    silver.put(click("a"), click("b"), click("a"), b"no JSON", click("c", page_loading_seconds=-1))
    silver.work()
    assert silver.books() == {"clicks": 2, "duplicates": 1, "quarantine": 2}
    silver.put(click("b"), click("d", extraPayload=[]), click("d"), None, minute=9)
    silver.work()
    expected = {"clicks": 3, "duplicates": 3, "quarantine": 3}
    assert silver.books() == expected
    # Killed after Delta's last commit and before Spark's: the batch comes again.
    silver.forget("clicks", "commits")
    silver.work()
    assert silver.books() == expected
    assert silver.events() == ["a", "b", "d"]
    assert silver.events(CLICKPATH) == ["a", "b"], "d was kept without related products"
    repeated = {(r.eventID, r.sequence_number, r.kept_sequence_number) for r in silver.read(CLICK_DUPLICATES).collect()}
    assert repeated == {("a", 2, 0), ("b", 5, 1), ("d", 7, 6)}
    reasons = {r.sequence_number: (r.reason, r.body) for r in silver.read(CLICK_QUARANTINE).collect()}
    assert reasons[3] == ("malformed_json", b"no JSON")
    assert (reasons[4][0], reasons[8]) == ("load_time_negative", ("empty_body", None))
    silver.put(click("a"), minute=30)
    silver.work()
    assert silver.events() == ["a", "a", "b", "d"], "long after it, the same id is another event"


@pytest.mark.parametrize("written", [0, 1, 2, 3])
def test_a_batch_cut_off_between_its_tables_is_completed(
    silver: Silver, written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.put(click("a"), click("a"), b"no JSON")
    silver.work()
    silver.put(click("a"), click("b"), click("b"), b"no", click("c"))
    with cut_off_after(written, monkeypatch), pytest.raises(Exception, match="cut off"):
        silver.start().processAllAvailable()
    assert silver.read(CLICKS).count() == 1
    silver.work()
    assert silver.books() == {"clicks": 3, "duplicates": 3, "quarantine": 2}
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b", "c"]


def test_settings_that_change_while_a_batch_is_half_written_do_not_judge_it_anew(
    silver: Silver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.put(click("a", referrer=5), click("b", page_loading_seconds=5000), b"no JSON")
    with cut_off_after(1, monkeypatch), pytest.raises(Exception, match="cut off"):
        silver.start().processAllAvailable()
    silver.set(longest_page_seconds=9999, promoted_fields={"referrer": "STRING"})
    silver.put(click("c", referrer=5), click("d", page_loading_seconds=5000))
    silver.work()
    assert silver.books() == {"clicks": 2, "duplicates": 0, "quarantine": 3}
    assert silver.events() == ["a", "d"], "the first batch by the old rules, the second by the new ones"


def test_after_a_new_generation_or_a_lost_checkpoint_nothing_is_there_twice(silver: Silver, tmp_path: Path) -> None:
    silver.put(click("a"), click("a"), b"no JSON")
    silver.put(click("b"))
    silver.work()
    silver.put(click("c"))
    silver.plan = 2
    silver.work()
    expected = {"clicks": 3, "duplicates": 1, "quarantine": 1}
    assert silver.books() == expected
    Path(silver.settings.checkpoint_root, "silver").rename(tmp_path / "moved")
    silver.put(click("d"), click("b"))
    silver.work()
    expected = {"clicks": 4, "duplicates": 2, "quarantine": 1}
    assert silver.books() == expected
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b", "c", "d"]
    # The last table lost, and with it every batch: the others still have what they had.
    shutil.rmtree(CLICKS.path(silver.settings.lake_root))
    silver.work()
    assert silver.books() == expected
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b", "c", "d"]


@pytest.mark.parametrize("lost", [False, True])
def test_half_a_batch_that_its_generation_never_completes_is_taken_back(
    silver: Silver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lost: bool
) -> None:
    """Its records come out otherwise in the next, and what was written of them would contradict that."""
    silver.put(click("a"), click("b"))
    silver.work()
    silver.put(click("c"), click("a"), b"no JSON", minute=1)
    with cut_off_after(3, monkeypatch), pytest.raises(Exception, match="cut off"):
        silver.work()
    assert silver.books() == {"clicks": 2, "duplicates": 1, "quarantine": 1}
    assert silver.events(CLICKPATH) == ["a", "b", "c"]
    if lost:
        Path(silver.settings.checkpoint_root, "silver").rename(tmp_path / "moved")
    silver.plan = 2
    silver.set(longest_page_seconds=0.5)
    silver.work()
    assert silver.books() == {"clicks": 2, "duplicates": 0, "quarantine": 3}
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b"]
    silver.put(b"again")
    silver.work()
    assert silver.books() == {"clicks": 2, "duplicates": 0, "quarantine": 4}


def test_hostile_bodies_do_not_stop_the_stream_and_the_books_balance(silver: Silver) -> None:
    bodies = corpus(5_000)
    silver.put(*bodies[:3_000])
    silver.work()
    silver.put(*bodies[3_000:])
    silver.work()
    assert sum(silver.books().values()) == len(bodies)
    assert min(silver.books().values()) > 20


def test_a_promoted_field_becomes_a_column_without_a_new_checkpoint(silver: Silver) -> None:
    silver.put(click("a", referrer="search"), click("b", referrer=5))
    silver.work()
    silver.work("click_activity")
    assert {r.eventID: r.unknown_fields for r in silver.read(CLICKS).collect()} == {
        "a": '{"referrer":"search"}',
        "b": '{"referrer":5}',
    }
    silver.set(promoted_fields={"referrer": "STRING"})
    silver.put(click("c", referrer="mail"), click("d", referrer=7), click("e"))
    silver.work()
    silver.work("click_activity")
    assert sum(row.clicks for row in silver.read(CLICK_ACTIVITY).collect()) == 4
    rows = {row.eventID: row for row in silver.read(CLICKS).collect()}
    assert {event: row.referrer for event, row in rows.items()} == {"a": None, "b": None, "c": "mail", "e": None}
    assert rows["c"].unknown_fields is None
    assert [(r.reason, r.schema_version) for r in silver.read(CLICK_QUARANTINE).collect()] == [
        ("wrong_type", "1+referrer:STRING")
    ]
    generations = Path(silver.settings.checkpoint_root, "silver", "clicks")
    assert [folder.name for folder in generations.iterdir()] == ["g000001"]
    # Taken back, the column stays and the field is unknown again.
    silver.set()
    silver.put(click("f", referrer="mail"))
    silver.work()
    (last,) = (row for row in silver.read(CLICKS).collect() if row.eventID == "f")
    assert (last.referrer, last.unknown_fields) == (None, '{"referrer":"mail"}')


def activity_of(frame: DataFrame) -> list[Row]:
    return sorted(frame.select(*(column.name for column in CLICK_ACTIVITY.columns)).drop("closed").collect(), key=str)


def test_windows_follow_their_clicks_and_are_final_once_closed(silver: Silver) -> None:
    random_source = random.Random(1)

    def some(count: int) -> list[bytes]:
        return [
            click(
                f"{random_source.random()}",
                eventType=random_source.choice(["view", "click", None]),
                userAgent={"platform": random_source.choice(["ios", "linux"])},
                productId=f"p{random_source.randrange(30)}",
                page_loading_seconds=random_source.choice([None, random_source.random()]),
            )
            for _ in range(count)
        ]

    def expected() -> list[Row]:
        return activity_of(click_activity(silver.read(CLICKS), timedelta(minutes=5), None))

    for minute in (0, 4.999, 5, 12):
        silver.put(*some(40), minute=minute)
        silver.work()
        silver.work("click_activity")
        assert activity_of(silver.read(CLICK_ACTIVITY)) == expected()
    assert {r.window_start.minute for r in silver.read(CLICK_ACTIVITY).where("closed").collect()} == set()
    # Late, but within the watermark
    silver.put(*some(40), minute=3)
    silver.put(*some(1), minute=15.1)
    silver.work()
    silver.work("click_activity")
    assert activity_of(silver.read(CLICK_ACTIVITY)) == expected()
    assert {r.window_start.minute for r in silver.read(CLICK_ACTIVITY).where("closed").collect()} == {0}
    final = activity_of(silver.read(CLICK_ACTIVITY).where("closed"))
    # Too late: in silver/clicks, but the closed window stays as it is.
    silver.put(*some(5), minute=1)
    silver.work()
    silver.work("click_activity")
    assert activity_of(silver.read(CLICK_ACTIVITY).where("closed")) == final
    assert activity_of(silver.read(CLICK_ACTIVITY)) != expected()
    silver.forget("click_activity", "commits")
    silver.work("click_activity")
    assert activity_of(silver.read(CLICK_ACTIVITY).where("closed")) == final

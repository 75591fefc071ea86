"""The silver stream on real tables: nothing lost, nothing twice, whatever happens in between."""

import json
import random
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery

from bench.rig import wait_for
from hub.connection import HubConnection
from lake.commit import append_once, bring_up_to_date
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table, bronze_table
from settings import Settings, SilverSettings
from streaming.catalog import SILVER
from streaming.click_activity import click_activity
from streaming.lease import Holder
from streaming.progress import RUNNING
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from tests.system import Host, System
from tests.test_clicks import corpus

pytestmark = pytest.mark.slow

BRONZE = bronze_table("clicks")
CLICKS = clicks_table({})
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
WINDOW_MINUTES = 0.5
QUERIES = {query.name: query for query in SILVER.queries}


def click(event: str, **fields: Any) -> bytes:
    whole = {
        "eventType": "view",
        "eventID": event,
        "productId": "p1",
        "userAgent": {"platform": "ios", "browser": "safari"},
        "extraPayload": [{"relatedProductId": "r", "relatedProductCategory": "c"}],
        "page_loading_seconds": 1.0,
        **fields,
    }
    return json.dumps(whole).encode()


@dataclass
class Silver:
    """A bronze table that the test fills, and the queries that read it."""

    spark: SparkSession
    settings: Settings
    sent: int = 0
    plan: int = 1
    running: list[StreamingQuery] = field(default_factory=list)

    def put(self, *bodies: bytes | None, minute: float = 0) -> None:
        """Appends one commit to bronze."""
        bring_up_to_date(self.spark, BRONZE, self.settings.lake_root)
        at = START + timedelta(minutes=minute)
        rows = [
            (None if each is None else bytearray(each), None, None, "clicks", 0, self.sent + number, at, at, at.date())
            for number, each in enumerate(bodies)
        ]
        frame = self.spark.createDataFrame(rows, BRONZE.ddl).coalesce(1)
        append_once(frame, BRONZE, self.settings.lake_root, "test", self.sent)
        self.sent += len(bodies)

    def start(self, name: str = "clicks") -> StreamingQuery:
        context = QueryContext(
            self.spark,
            self.settings,
            HubConnection("unused:1"),
            {},
            stopping=lambda: False,
            check_lease=lambda: None,
            now=datetime.now(UTC),
        )
        query = start_query(context, SILVER, replace(QUERIES[name], plan=self.plan))
        self.running.append(query)
        return query

    def work(self, name: str = "clicks") -> None:
        """Runs the query until it has done all there is."""
        query = self.start(name)
        query.processAllAvailable()
        query.stop()

    def read(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(table.path(self.settings.lake_root))

    def events(self, table: Table = CLICKS) -> list[str]:
        return sorted(row.eventID for row in self.read(table).collect())

    def books(self) -> dict[str, int]:
        names = {"clicks": CLICKS, "duplicates": CLICK_DUPLICATES, "quarantine": CLICK_QUARANTINE}
        return {name: self.read(table).count() for name, table in names.items()}

    def forget(self, name: str, *logs: str) -> None:
        """Leaves the last batch of the checkpoint as a kill does that came before these logs were written."""
        folder = Path(self.settings.checkpoint_root, "silver", name)
        for log in logs:
            files = folder.glob(f"g*/spark/{log}/[0-9]*")
            max(files, key=lambda file: (file.parts[-4], int(file.name))).unlink()


@pytest.fixture
def silver(spark: SparkSession, tmp_path: Path) -> Iterator[Silver]:
    made = Silver(spark, Settings(home=tmp_path, silver=SilverSettings(trigger_seconds=0, activity_trigger_seconds=0)))
    yield made
    for query in made.running:
        query.stop()


def test_the_books_balance_across_batches_restarts_and_repeated_batches(silver: Silver) -> None:
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
    appends = 0

    def cut_off(*arguments: Any) -> bool:
        nonlocal appends
        if appends == written:
            raise OSError("cut off")
        appends += 1
        return append_once(*arguments)

    monkeypatch.setattr("streaming.clicks_query.append_once", cut_off)
    query = silver.start()
    with pytest.raises(Exception, match="cut off"):
        query.processAllAvailable()
    monkeypatch.undo()
    assert silver.read(CLICKS).count() == 1
    silver.work()
    assert silver.books() == {"clicks": 3, "duplicates": 3, "quarantine": 2}
    assert silver.events() == silver.events(CLICKPATH) == ["a", "b", "c"]


def test_settings_that_change_while_a_batch_is_half_written_do_not_judge_it_anew(
    silver: Silver, monkeypatch: pytest.MonkeyPatch
) -> None:
    silver.put(click("a", referrer=5), click("b", page_loading_seconds=5000), b"no JSON")
    appends = 0

    def cut_off(*arguments: Any) -> bool:
        nonlocal appends
        if appends == 1:
            raise OSError("cut off")
        appends += 1
        return append_once(*arguments)

    monkeypatch.setattr("streaming.clicks_query.append_once", cut_off)
    with pytest.raises(Exception, match="cut off"):
        silver.start().processAllAvailable()
    monkeypatch.undo()
    other = SilverSettings(trigger_seconds=0, longest_page_seconds=9999, promoted_fields={"referrer": "STRING"})
    silver.settings = silver.settings.model_copy(update={"silver": other})
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


def test_hostile_bodies_do_not_stop_the_stream_and_the_books_balance(silver: Silver) -> None:
    bodies = corpus(1_000)
    silver.put(*bodies[:600])
    silver.put(*bodies[600:])
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
    promoted = SilverSettings(trigger_seconds=0, promoted_fields={"referrer": "STRING"})
    silver.settings = silver.settings.model_copy(update={"silver": promoted})
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
    silver.settings = silver.settings.model_copy(update={"silver": SilverSettings(trigger_seconds=0)})
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


def test_killed_five_times_under_bad_repeated_and_late_clicks_the_audit_is_clean(
    spark: SparkSession, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    environment = {
        "TIDEWATCH_SUPERVISOR_STREAMS": '["bronze", "silver"]',
        "TIDEWATCH_SILVER_TRIGGER_SECONDS": "1",
        "TIDEWATCH_SILVER_ACTIVITY_TRIGGER_SECONDS": "3",
        "TIDEWATCH_SILVER_WINDOW_MINUTES": str(WINDOW_MINUTES),
        "TIDEWATCH_SILVER_WATERMARK_MINUTES": "1",
    }
    with System(tmp_path / "home", **environment) as system:
        system.start_host()
        silver = system.start_host(stream="silver")
        shares = ("--bad-fraction", "0.03", "--duplicate-fraction", "0.05", "--late-fraction", "0.02")
        traffic = system.start_command(
            *("traffic", "clicks", "--rate", "2000", "--seconds", "100", "--ledger", str(ledger)), *shares
        )
        for kill in range(5):
            wait_for_batches(system, silver, kill % 2)
            time.sleep(kill / 3)
            silver.kill()
            silver = system.start_host(stream="silver")
        assert traffic.wait(300) == 0
        result = system.audit(ledger, wait=300)
        assert result["clean"], result
        assert result["acknowledged"] >= 2 * 200_000, "the same records, in bronze and in silver"
        wait_for("click_activity has caught up", lambda: caught_up(system), 120)
        silver.stop()
        assert_equal_to_a_batch(spark, system.settings.lake_root)


def wait_for_batches(system: System, host: Host, count: int) -> None:
    """Until this host has begun its queries and done so many batches."""

    def done() -> bool:
        assert host.process.poll() is None, host.log.read_text()
        holder, progress = system.files("silver").lease, system.progress("silver")
        found = Holder.read(holder)
        if found is None or found.host.pid != host.process.pid or progress is None or progress.phase != RUNNING:
            return False
        return progress.queries["clicks"].total_batches >= count

    wait_for(f"{count} batches of silver", done, 180)


def caught_up(system: System) -> bool:
    progress = system.progress("silver")
    query = progress.queries["click_activity"] if progress else None
    return query is not None and query.lag_records == 0 and (query.idle_at or "") > (query.batch_at or "")


def assert_equal_to_a_batch(spark: SparkSession, root: str) -> None:
    """Against plain SQL over bronze that shares no code with the stream."""

    def table(name: str) -> DataFrame:
        return spark.read.format("delta").load(f"{root}/{name}")

    parsed = (
        table("bronze/clicks")
        .withColumn(
            "click",
            F.from_json(
                F.col("body").cast("string"),
                "eventType STRING, eventID STRING, productId STRING, userAgent STRUCT<platform: STRING>, "
                "extraPayload ARRAY<STRUCT<relatedProductId: STRING, relatedProductCategory: STRING>>, "
                "page_loading_seconds DOUBLE",
                {"mode": "PERMISSIVE"},
            ),
        )
        .where(
            "is_valid_utf8(cast(body AS STRING)) AND click.eventID IS NOT NULL "
            "AND click.page_loading_seconds BETWEEN 0 AND 3600 AND size(click.extraPayload) <= 1000"
        )
    )
    first = parsed.selectExpr(
        "*", "row_number() OVER (PARTITION BY click.eventID ORDER BY enqueued_time, partition, sequence_number) AS nth"
    ).where("nth = 1")
    wanted = first.selectExpr("click.*", "enqueued_time", "partition", "sequence_number").persist()
    path = wanted.selectExpr("eventID", "posexplode(extraPayload) AS (position, related)", "sequence_number")
    assert_same(
        path.selectExpr("eventID", "position", "related.*", "sequence_number"),
        table("silver/clickpath").select(
            "eventID", "position", "relatedProductId", "relatedProductCategory", "sequence_number"
        ),
    )
    window = F.window("enqueued_time", f"{round(WINDOW_MINUTES * 60)} seconds")["start"].alias("window_start")
    exact = wanted.groupBy(window, "eventType", "userAgent.platform").agg(
        F.count("*").alias("clicks"),
        F.round(F.avg("page_loading_seconds"), 6).alias("mean"),
        F.count_distinct("productId").alias("exact_products"),
        F.expr("percentile(page_loading_seconds, array(0.49, 0.51, 0.94, 0.96))").alias("around"),
    )
    found = table("silver/click_activity")
    assert_same(
        exact.select("window_start", "eventType", "platform", "clicks", "mean"),
        found.select("window_start", "eventType", "platform", "clicks", F.round("page_loading_mean", 6)),
    )
    large = found.where("clicks >= 200").join(exact.drop("clicks"), ["window_start", "eventType", "platform"])
    assert large.count() > 5
    assert not found.where("closed").isEmpty()
    off = large.where(
        "abs(products - exact_products) > 0.08 * exact_products "
        "OR NOT page_loading_p50 BETWEEN around[0] AND around[1] "
        "OR NOT page_loading_p95 BETWEEN around[2] AND around[3]"
    )
    assert off.isEmpty(), off.collect()


def assert_same(one: DataFrame, other: DataFrame) -> None:
    other = other.toDF(*one.columns)
    assert one.exceptAll(other).isEmpty(), one.exceptAll(other).limit(3).collect()
    assert other.exceptAll(one).isEmpty(), other.exceptAll(one).limit(3).collect()

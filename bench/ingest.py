"""Clicks from the hub to bronze and on to silver, against a bare read, a hand-written loop and the textbook's chain.

All in one session, after rounds that only warm up, and in turns: both sides of a ratio are of the same round.
"""

import random
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from bench.by_hand import load_by_hand
from bench.figures import Figure, Result
from bench.textbook import textbook_silver
from hub import CLICKS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher
from hub.topics import create_missing_topics, partition_counts
from hub.traffic.clicks import Clicks
from hub.traffic.faults import Faults
from hub.traffic.planned import Planned
from hub.traffic.run import TrafficRun
from lake.tables import bronze_table
from processes.ports import free_port
from settings import BronzeSettings, HubSettings, Settings, SilverSettings, SparkSettings
from streaming.catalog import BRONZE, SILVER, QuerySpec, StreamSpec
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.session import close_session, spark_session
from streaming.sources import hub_records

CLICKS_SENT = 1_000_000
BAD, DUPLICATE = 0.03, 0.05
SENDING_SECONDS = 60
MOST_BYTES = 10_000
# What a batch takes at most, of the hub and of bronze, where it is all that the bench has: in production silver runs
# every five minutes.
MAX_RECORDS, MAX_MB = 500_000, 512
WARM_UP_ROUNDS = 2
DRIVER_MEMORY = "4g"
CHECKPOINT_PHASES = ("walCommit", "commitOffsets")


@dataclass(frozen=True)
class Measured:
    seconds: float
    checkpoint_share: float = 0.0
    """Of the batches' time, what went into the offset log, the commit log and the commit of state."""


def measure(runs: int, say: Callable[[str], None], clicks: int = CLICKS_SENT) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        settings = _settings(Path(folder))
        with _hub(settings) as connection:
            say(f"Sending {clicks:,} clicks, {BAD:.0%} of them spoiled, and {DUPLICATE:.0%} of them again")
            rows = _send(connection, clicks)
            spark = spark_session(settings, "bench")
            try:
                return _result(_measured(spark, connection, Path(folder), runs, rows, say), rows)
            finally:
                close_session(spark)


def _settings(home: Path) -> Settings:
    """Nothing of the user's: neither hub nor lake nor checkpoints."""
    return Settings(
        home=home,
        lake=None,
        checkpoints=None,
        hub=HubSettings(),
        spark=SparkSettings(driver_memory=DRIVER_MEMORY),
        bronze=BronzeSettings(max_records=MAX_RECORDS),
        silver=SilverSettings(max_mb=MAX_MB),
    )


@contextmanager
def _hub(settings: Settings) -> Iterator[HubConnection]:
    with EmbeddedBroker(settings.hub_folder, settings.jars, port=free_port(), controller_port=free_port()) as broker:
        connection = HubConnection(broker.servers)
        create_missing_topics(connection, settings.hub, [CLICKS])
        yield connection


def _send(connection: HubConnection, clicks: int) -> int:
    random_source = random.Random(1)
    with KafkaPublisher(connection) as publisher:
        run = TrafficRun(publisher, ledger=None)
        source = Clicks(clicks / SENDING_SECONDS, random_source)
        run.run([source], _SmallFaults(random_source, bad=BAD, duplicate=DUPLICATE), SENDING_SECONDS)
    assert not run.failed
    return run.acknowledged


class _SmallFaults(Faults):
    """Leaves out spoiled records that are as large as hundreds of clicks: the bytes measured would be mostly theirs."""

    def apply(self, planned: Planned, elapsed: float) -> Iterator[Planned]:
        return (actual for actual in super().apply(planned, elapsed) if len(actual.record.body or b"") <= MOST_BYTES)


def _measured(
    spark: SparkSession,
    connection: HubConnection,
    folder: Path,
    runs: int,
    rows: int,
    say: Callable[[str], None],
) -> dict[str, list[Measured]]:
    measured: dict[str, list[Measured]] = {}
    for number in range(1 - WARM_UP_ROUNDS, runs + 1):
        one = _Round(spark, connection, folder / f"round-{number}")
        for name, side in one.sides().items():
            found = side()
            told = f"{found.seconds:.1f} s, {rows / found.seconds:,.0f} rows/s"
            say(f"{number if number > 0 else 'warm-up'}: {name} {told}")
            if number > 0:
                measured.setdefault(name, []).append(found)
        one.check(rows)
        shutil.rmtree(one.home)
    return measured


def _result(measured: dict[str, list[Measured]], rows: int) -> Result:
    seconds = {name: [one.seconds for one in side] for name, side in measured.items()}

    def speed_against(name: str, other: str) -> list[float]:
        return [theirs / ours for ours, theirs in zip(seconds[name], seconds[other], strict=True)]

    pairs = zip(measured["bronze"], measured["silver"], strict=True)
    return Result(
        "ingest",
        {
            "bronze_vs_noop": Figure.at_least(0.7, speed_against("bronze", "noop")),
            "bronze_vs_rs": Figure.at_least(0.7, speed_against("bronze", "by hand")),
            "silver_vs_noop": Figure.at_least(0.3, speed_against("silver", "noop")),
            "silver_vs_textbook": Figure.at_least(1.5, speed_against("silver", "textbook")),
            "checkpoint_share": Figure.at_most(
                0.05, [max(one.checkpoint_share, other.checkpoint_share) for one, other in pairs]
            ),
            **{
                f"{name.replace(' ', '_')}_speed": Figure.plain([rows / each for each in side], "rows/s")
                for name, side in seconds.items()
            },
        },
    )


class _Round:
    """All sides once, in a home of their own. Silver and the textbook's chain read what bronze has written."""

    def __init__(self, spark: SparkSession, connection: HubConnection, home: Path) -> None:
        self._spark, self._connection, self.home = spark, connection, home
        self._settings = _settings(home)
        self._by_hand, self._textbook = home / "by-hand", home / "textbook"

    def sides(self) -> dict[str, Callable[[], Measured]]:
        return {
            "noop": self.noop,
            "bronze": lambda: self._stream(BRONZE, next(query for query in BRONZE.queries if query.hub == CLICKS)),
            "by hand": self.by_hand,
            "silver": lambda: self._stream(SILVER, next(query for query in SILVER.queries if query.name == "clicks")),
            "textbook": self.textbook,
        }

    def noop(self) -> Measured:
        """The hub read by Spark, and nothing done with it."""
        records = hub_records(self._spark, self._connection, CLICKS, starts_at=None, max_records=MAX_RECORDS)
        began = time.monotonic()
        writer = records.writeStream.format("noop").option("checkpointLocation", str(self.home / "noop"))
        return _done(began, [writer.trigger(availableNow=True).start()])

    def by_hand(self) -> Measured:
        began = time.monotonic()
        load_by_hand(self._connection, CLICKS, self._by_hand, MAX_RECORDS)
        return Measured(time.monotonic() - began)

    def textbook(self) -> Measured:
        began = time.monotonic()
        bronze = bronze_table(CLICKS).path(self._settings.lake_root)
        return _done(began, textbook_silver(self._spark.newSession(), bronze, self._textbook))

    def check(self, rows: int) -> None:
        """Whoever left rows out was not fast."""
        root = self._settings.lake_root
        tables = (f"{root}/bronze/clicks", self._by_hand)
        assert [self._count(table) for table in tables] == [rows, rows]
        ours = [self._count(f"{root}/{name}") for name in ("silver/clicks", "silver/clickpath", "quarantine/clicks")]
        theirs = [self._count(self._textbook / name) for name in ("clicks", "clickpath", "quarantine")]
        assert ours == theirs, (ours, theirs)
        assert ours[0] + ours[2] + self._count(f"{root}/silver/click_duplicates") == rows

    def _count(self, table: Path | str) -> int:
        return self._spark.read.format("delta").load(str(table)).count()

    def _stream(self, stream: StreamSpec, query: QuerySpec) -> Measured:
        began = time.monotonic()
        context = QueryContext.without_host(
            self._spark,
            self._settings,
            self._connection,
            partition_counts(self._connection),
        )
        return _done(began, [start_query(context, stream, query, until_done=True)])


def _done(began: float, queries: Sequence[StreamingQuery]) -> Measured:
    for query in queries:
        query.awaitTermination()
    seconds = time.monotonic() - began
    batches = [batch for query in queries for batch in query.recentProgress if batch.numInputRows]
    spent = sum(batch.durationMs[phase] for batch in batches for phase in CHECKPOINT_PHASES)
    spent += sum(operator.commitTimeMs for batch in batches for operator in batch.stateOperators)
    return Measured(seconds, spent / sum(batch.durationMs["triggerExecution"] for batch in batches))

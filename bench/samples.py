"""Samples of sliding windows, in readings a second: ours, with all readings written to silver too, against the textbook
ways of collecting each window's readings, in turns and on the same readings. All have to find the same samples."""

import itertools
import json
import random
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from pyspark.sql import DataFrame, SparkSession

from bench.figures import Figure, Result
from bench.textbook_samples import OUTPUT, in_a_stateful_function, in_an_aggregation
from hub import SENSORS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.topics import partition_counts
from hub.traffic.planned import timestamp
from lake.commit import create_if_missing
from lake.sensors import SENSOR_SAMPLES
from processes.ports import free_port
from settings import HubSettings, SensorSettings, Settings, SparkSettings
from streaming import catalog
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.session import close_session, spark_session
from streaming.sources import hub_records

READINGS, READINGS_A_SECOND = 600_000, 2_000
"""In 300 s of the devices' time."""
LARGE, SMALL = SensorSettings().max_records, 20_000
"""Readings of a batch: as many as the stream takes when it is behind, which has the bar, and what comes in its interval
of 10 s, where fixed costs weigh more: 1.6 times the textbook when it was first measured."""
PARTITIONS, DEVICES, ANOMALIES = 4, 1_000, 0.005
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SPEC = next(query for query in catalog.SENSORS.queries if query.name == "samples")
Sample = tuple[datetime, tuple[str, ...], int, int]


def measure(runs: int, say: Callable[[str], None], readings: int = READINGS) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        settings = Settings(
            home=Path(folder),
            lake=None,
            checkpoints=None,
            hub=HubSettings(partitions=PARTITIONS),
            spark=SparkSettings(driver_memory="2g"),
        )
        hub, jars = settings.hub_folder, settings.jars
        with EmbeddedBroker(hub, jars, port=free_port(), controller_port=free_port()) as broker:
            connection = HubConnection(broker.servers)
            _fill(connection, readings)
            spark = spark_session(settings, "bench")
            try:
                return _Bench(settings, connection, spark, readings, say).result(runs)
            finally:
                close_session(spark)


class _Bench:
    def __init__(
        self,
        settings: Settings,
        connection: HubConnection,
        spark: SparkSession,
        readings: int,
        say: Callable[[str], None],
    ) -> None:
        self._settings, self._connection, self._spark = settings, connection, spark
        self._readings, self._say = readings, say
        self._started = 0

    def result(self, runs: int) -> Result:
        ways: dict[str, Callable[[Path, int], Callable[[], DataFrame]]] = {
            "ours": self._ours,
            "textbook": lambda folder, batch: self._textbook(folder, batch, in_a_stateful_function),
            "native": lambda folder, batch: self._textbook(folder, batch, in_an_aggregation),
        }
        rates: dict[tuple[int, str], list[float]] = defaultdict(list)
        mismatches = 0
        for number, batch in itertools.product(range(runs + 1), (LARGE, SMALL)):
            found: dict[str, Counter[Sample]] = {}
            for side, way in ways.items():
                self._started += 1
                work = way(self._settings.home / f"{side}-{self._started}", batch)
                began = time.monotonic()
                samples = work()
                rate = self._readings / (time.monotonic() - began)
                found[side] = _comparable(samples)
                if number:  # the first round warms up
                    rates[batch, side].append(rate)
                    self._say(f"{number}: {side}, {rate:,.0f} readings a second in batches of {batch:,}")
            assert found["ours"], "no window has closed"
            for side in ("textbook", "native"):
                mismatches += ((found["ours"] - found[side]) + (found[side] - found["ours"])).total()

        def ratios(batch: int, other: str) -> list[float]:
            return [ours / theirs for ours, theirs in zip(rates[batch, "ours"], rates[batch, other], strict=True)]

        return Result(
            "samples",
            {
                "samples_vs_textbook": Figure.at_least(3, ratios(LARGE, "textbook")),
                "mismatches": Figure.at_most(0, [float(mismatches)], "samples"),
                "samples_vs_native": Figure.plain(ratios(LARGE, "native"), "ratio"),
                "small_batches_vs_textbook": Figure.plain(ratios(SMALL, "textbook"), "ratio"),
                "small_batches_vs_native": Figure.plain(ratios(SMALL, "native"), "ratio"),
                **{
                    f"{side}_per_second_{batch // 1000}k": Figure.plain(values, "readings/s")
                    for (batch, side), values in rates.items()
                },
            },
        )

    def _ours(self, folder: Path, batch: int) -> Callable[[], DataFrame]:
        """Each way makes its tables first, and returns what is to be timed."""
        settings = self._settings.model_copy(
            update={
                "checkpoints": str(folder / "checkpoints"),
                "lake": str(folder / "lake"),
                "sensors": SensorSettings(max_records=batch),
            }
        )
        partitions = partition_counts(self._connection)
        context = QueryContext.without_host(self._spark, settings, self._connection, partitions)
        for table in SPEC.tables:
            create_if_missing(self._spark, table, settings.lake_root)

        def work() -> DataFrame:
            start_query(context, catalog.SENSORS, SPEC, until_done=True).awaitTermination()
            return self._spark.read.format("delta").load(SENSOR_SAMPLES.path(settings.lake_root))

        return work

    def _textbook(
        self, folder: Path, batch: int, samples: Callable[[DataFrame, str, str, str], DataFrame]
    ) -> Callable[[], DataFrame]:
        chosen = self._settings.sensors
        self._spark.createDataFrame([], OUTPUT).write.format("delta").save(str(folder / "samples"))
        records = hub_records(self._spark, self._connection, SENSORS, starts_at=None, max_records=batch)
        seconds = (chosen.window_seconds, chosen.slide_seconds, chosen.lateness_seconds)

        def work() -> DataFrame:
            query = (
                samples(records, *(f"{each} seconds" for each in seconds))
                .writeStream.format("delta")
                .option("checkpointLocation", str(folder / "checkpoint"))
                .trigger(availableNow=True)
                .start(str(folder / "samples"))
            )
            query.awaitTermination()
            return self._spark.read.format("delta").load(str(folder / "samples"))

        return work


def _comparable(samples: DataFrame) -> Counter[Sample]:
    rows = samples.select("window_end", "roles", "partition", "sequence_number").collect()
    return Counter((row["window_end"], tuple(row["roles"]), row["partition"], row["sequence_number"]) for row in rows)


def _fill(connection: HubConnection, readings: int) -> None:
    """In order and in time, so that every way takes all of them. After them each partition gets one that closes all
    windows with others."""
    topic = NewTopic(SENSORS, PARTITIONS, 1, config={"message.timestamp.type": "CreateTime", "retention.ms": "-1"})
    admin = AdminClient({**connection.client_options()})
    admin.create_topics([topic])[SENSORS].result(30)
    draw = random.Random(1)
    producer = Producer({**connection.client_options(), "linger.ms": 50, "queue.buffering.max.messages": 1_000_000})

    def send(partition: int, device: str, at: datetime, frequency: float) -> None:
        body = {"device_id": device, "sensor_freq": frequency, "event_time": timestamp(at)}
        millis = round(at.timestamp() * 1000)
        producer.produce(SENSORS, json.dumps(body), device, partition=partition, timestamp=millis)
        producer.poll(0)

    for number in range(readings):
        device = number % DEVICES
        frequency = round(-draw.random() if draw.random() < ANOMALIES else draw.gauss(50, 4), 4)
        at = BEGIN + timedelta(seconds=number / READINGS_A_SECOND)
        send(device % PARTITIONS, f"device-{device:04}", at, frequency)
    end = BEGIN + timedelta(seconds=readings / READINGS_A_SECOND + 600)
    for partition in range(PARTITIONS):
        send(partition, f"device-{partition:04}", end, 50.0)
    assert producer.flush(60) == 0

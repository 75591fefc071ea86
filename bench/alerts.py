"""From a reading that the hub has acknowledged to its alert readable on the hub: in real time, in micro-batches as fast
as they go, and by a bare loop of a consumer and a producer, in turns and on one hub.

The stream's other query, which samples windows, runs beside the first two, as it does in use.
"""

import contextlib
import json
import random
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from pyspark.sql import SparkSession

from bench.alert_loop import alert_loop
from bench.figures import Figure, Result
from hub import SENSOR_ALERTS, SENSOR_ECHOES, SENSORS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import create_missing_topics, offset_ranges, partition_counts
from hub.traffic.planned import timestamp
from processes.ports import free_port
from settings import HubSettings, SensorSettings, Settings, SparkSettings
from streaming import catalog
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.session import close_session, spark_session

READINGS_A_SECOND = 400
ANOMALIES = 0.1
WARM_UP_SECONDS, SETTLE_SECONDS = 45.0, 15.0
MEASURED_SECONDS = 60.0
"""As long as the interval in which alerts in real time note how far they are, so that one such moment is in it."""
MISSING_AFTER_SECONDS = 10.0
PARTITIONS = 4
SIDES = ("real_time", "micro_batch", "loop")
Place = tuple[int, int]


def measure(runs: int, say: Callable[[str], None]) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        settings = Settings(
            home=Path(folder),
            lake=None,
            checkpoints=None,
            hub=HubSettings(partitions=PARTITIONS),
            spark=SparkSettings(master="local[*]"),
        )
        hub, jars = settings.hub_folder, settings.jars
        with EmbeddedBroker(hub, jars, port=free_port(), controller_port=free_port()) as broker:
            connection = HubConnection(broker.servers)
            create_missing_topics(connection, settings.hub, [SENSORS, SENSOR_ALERTS, SENSOR_ECHOES])
            spark = spark_session(settings, "bench", PARTITIONS)
            try:
                return _result(_Bench(settings, connection, spark, say).seconds(runs))
            finally:
                close_session(spark)


class _Bench:
    def __init__(
        self, settings: Settings, connection: HubConnection, spark: SparkSession, say: Callable[[str], None]
    ) -> None:
        self._settings, self._connection, self._spark, self._say = settings, connection, spark, say
        self._started = 0

    def seconds(self, runs: int) -> "dict[str, list[Measured]]":
        found: dict[str, list[Measured]] = defaultdict(list)
        ways: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "real_time": lambda: self._stream(alerts="real-time"),
            "micro_batch": lambda: self._stream(alerts="micro-batch", alert_trigger_seconds=0),
            "loop": lambda: alert_loop(self._connection.servers, SENSORS, SENSOR_ALERTS),
        }
        for number in range(1, runs + 1):
            for side, way in ways.items():
                with way(), _Traffic(self._connection) as traffic:
                    time.sleep(SETTLE_SECONDS if number > 1 else WARM_UP_SECONDS)
                    traffic.begin()
                    time.sleep(MEASURED_SECONDS)
                    measured = traffic.end()
                found[side].append(measured)
                p50, p99 = measured.quantile(0.5), measured.quantile(0.99)
                self._say(
                    f"{number}: {side}, {len(measured.seconds):,} alerts, half within {p50 * 1000:.1f} ms, 99% within "
                    f"{p99 * 1000:.1f} ms, {measured.missing} missing"
                )
        return found

    @contextlib.contextmanager
    def _stream(self, **chosen: object) -> Iterator[None]:
        self._started += 1
        folder = self._settings.home / str(self._started)
        settings = self._settings.model_copy(
            update={
                "sensors": SensorSettings(**chosen),  # type: ignore[arg-type]
                "checkpoints": str(folder / "checkpoints"),
                "lake": str(folder / "lake"),
            }
        )
        partitions = partition_counts(self._connection)
        context = QueryContext.without_host(self._spark, settings, self._connection, partitions)
        ends = {str(number): end for number, (_, end) in offset_ranges(self._connection, SENSORS).items()}
        pulses = Pulses(self._connection, SENSORS, settings.sensors.pulse_seconds, "bench")
        pulses.start()
        stream = catalog.SENSORS
        queries = [start_query(context, stream, spec, begins_at={SENSORS: ends}) for spec in stream.queries]
        try:
            yield
            assert all(query.isActive for query in queries)
        finally:
            for query in queries:
                query.stop()
            pulses.stop()


class Measured:
    def __init__(self, acknowledged: dict[Place, float], read: dict[Place, float]) -> None:
        """An alert may be there before the sender has heard of the acknowledgement."""
        self.seconds = [max(0.0, read[place] - at) for place, at in acknowledged.items() if place in read]
        self.missing = len(acknowledged.keys() - read.keys())

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


class _Traffic:
    """Readings, and one who reads alerts, each in threads of its own: all times are of one clock."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection
        self._over = threading.Event()
        self._acknowledged: dict[Place, float] = {}
        self._read: dict[Place, float] = {}
        self._producer = Producer({**connection.client_options(), "acks": "all", "linger.ms": 0})
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._send, self._serve, self._listen)
        ]

    def __enter__(self) -> "_Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def begin(self) -> None:
        self._acknowledged = {}

    def end(self) -> Measured:
        measured = dict(self._acknowledged)
        deadline = time.monotonic() + MISSING_AFTER_SECONDS
        while measured.keys() - self._read.keys() and time.monotonic() < deadline:
            time.sleep(0.1)
        return Measured(measured, dict(self._read))

    def _send(self) -> None:
        draw = random.Random(1)
        began, sent = time.monotonic(), 0
        while not self._over.is_set():
            while sent < (time.monotonic() - began) * READINGS_A_SECOND:
                sent += 1
                device = f"device-{sent % 200:04}"
                anomalous = draw.random() < ANOMALIES
                frequency = -20.0 if anomalous else 50.0
                body = {"device_id": device, "sensor_freq": frequency, "event_time": timestamp(datetime.now(UTC))}
                told = self._told if anomalous else None
                self._producer.produce(SENSORS, json.dumps(body), device, on_delivery=told)
            time.sleep(0.002)
        self._producer.flush(10)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self._acknowledged[partition, offset] = now

    def _serve(self) -> None:
        while not self._over.is_set():
            self._producer.poll(0.1)

    def _listen(self) -> None:
        consumer = Consumer({**self._connection.client_options(), "group.id": "bench", "enable.auto.commit": False})
        ends = {partition: end for partition, (_, end) in offset_ranges(self._connection, SENSOR_ALERTS).items()}
        consumer.assign([TopicPartition(SENSOR_ALERTS, partition, end) for partition, end in ends.items()])
        while not self._over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                now = time.monotonic()
                alert = json.loads(message.value() or b"")
                self._read.setdefault((alert["partition"], alert["sequence_number"]), now)
        consumer.close()


def _result(found: dict[str, list[Measured]]) -> Result:
    quantiles = {
        (side, share): [measured.quantile(share / 100) for measured in found[side]]
        for side in SIDES
        for share in (50, 99)
    }

    def ratios(above: str, below: str, share: int) -> list[float]:
        return [a / b for a, b in zip(quantiles[above, share], quantiles[below, share], strict=True)]

    return Result(
        "alerts",
        {
            "p50_speedup": Figure.at_least(20, ratios("micro_batch", "real_time", 50)),
            "p99_speedup": Figure.at_least(8, ratios("micro_batch", "real_time", 99)),
            "p50_vs_loop": Figure.at_most(3, ratios("real_time", "loop", 50)),
            "p99_vs_loop": Figure.at_most(6, ratios("real_time", "loop", 99)),
            "missing": Figure.at_most(
                0, [float(sum(run.missing for runs in found.values() for run in runs))], "alerts"
            ),
            **{
                f"{side}_p{share}_ms": Figure.plain([seconds * 1000 for seconds in values], "ms")
                for (side, share), values in quantiles.items()
            },
        },
    )

"""From a reading that the hub has acknowledged to its alert readable on the hub: in real time, in micro-batches as fast
as they go into Spark's own sink, and by a bare loop of a consumer and a producer, in turns and on one hub.

The stream's other query, which samples windows, runs beside each of them, as it does in use.
"""

import contextlib
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from pyspark.sql import SparkSession

from bench.alert_loop import alert_loop
from bench.alert_traffic import READINGS_A_SECOND, Measured, Traffic
from bench.figures import Figure, Result
from hub import SENSOR_ALERTS, SENSOR_ECHOES, SENSORS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import create_missing_topics, offset_ranges, partition_counts
from processes.ports import free_port
from settings import HubSettings, SensorSettings, Settings, SparkSettings
from streaming.catalog import SENSORS as STREAM
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.compilation import interpret
from streaming.queries import start_query
from streaming.query_plan import Planner, QueryContext, QueryPlan
from streaming.sensor_alerts import as_alerts
from streaming.sensor_readings import anomalous_readings
from streaming.session import close_session, spark_session
from streaming.sources import planned_records

WARM_UP_SECONDS, SETTLE_SECONDS = 45.0, 15.0
MEASURED_SECONDS = 60.0
"""As long as the interval in which alerts in real time note how far they are, so that one such moment is in it."""
PARTITIONS = 4
SIDES = ("real_time", "micro_batch", "loop")
ALERTS, SAMPLES = STREAM.queries
AT_ONCE = SensorSettings(alerts="micro-batch", alert_trigger_seconds=0)
SHARES = {"p50": 0.5, "p99": 0.99, "p99.9": 0.999, "max": 1.0}


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
            interpret(spark)  # as the stream's host does
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

    def seconds(self, runs: int) -> dict[str, list[Measured]]:
        found: dict[str, list[Measured]] = defaultdict(list)
        ways: dict[str, Callable[[], contextlib.AbstractContextManager[None]]] = {
            "real_time": lambda: self._stream(ALERTS, SAMPLES),
            "micro_batch": lambda: self._stream(ALERTS, SAMPLES, chosen=AT_ONCE, planner=_as_fast_as_possible),
            "loop": self._loop,
        }
        for number in range(1, runs + 1):
            for side, way in ways.items():
                with way(), Traffic(self._connection) as traffic:
                    time.sleep(SETTLE_SECONDS if number > 1 else WARM_UP_SECONDS)
                    traffic.begin()
                    time.sleep(MEASURED_SECONDS)
                    measured = traffic.end()
                found[side].append(measured)
                told = ", ".join(f"{name} {measured.quantile(share) * 1000:.1f} ms" for name, share in SHARES.items())
                self._say(f"{number}: {side}, {len(measured.seconds):,} alerts, {told}, {measured.missing} missing")
        return found

    @contextlib.contextmanager
    def _loop(self) -> Iterator[None]:
        with self._stream(SAMPLES), alert_loop(self._connection.servers, SENSORS, SENSOR_ALERTS):
            yield

    @contextlib.contextmanager
    def _stream(
        self, *specs: QuerySpec, chosen: SensorSettings | None = None, planner: Planner | None = None
    ) -> Iterator[None]:
        """Queries of the stream; the planner is for alerts. Their tables are there when this returns."""
        self._started += 1
        folder = self._settings.home / str(self._started)
        settings = self._settings.model_copy(
            update={
                "sensors": chosen or self._settings.sensors,
                "checkpoints": str(folder / "checkpoints"),
                "lake": str(folder / "lake"),
            }
        )
        partitions = partition_counts(self._connection)
        context = replace(
            QueryContext.without_host(self._spark, settings, self._connection, partitions),
            # Told by the host otherwise, which chooses by it how a batch is done.
            rows_of_last_batch=lambda query: round(READINGS_A_SECOND * settings.sensors.trigger_seconds),
        )
        ends = {str(number): end for number, (_, end) in offset_ranges(self._connection, SENSORS).items()}
        pulses = Pulses(self._connection, SENSORS, settings.sensors.pulse_seconds, "bench")
        pulses.start()
        planners = {ALERTS.name: planner}
        queries = [
            start_query(context, STREAM, spec, planners.get(spec.name), begins_at={SENSORS: ends}) for spec in specs
        ]
        try:
            yield
            assert all(query.isActive for query in queries)
        finally:
            for query in queries:
                query.stop()
            pulses.stop()


def _as_fast_as_possible(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    settings = context.settings.sensors
    records = planned_records(context, SENSORS, generation, settings.max_records)
    alerts = as_alerts(anomalous_readings(records, settings))
    return QueryPlan(alerts.selectExpr(f"'{SENSOR_ALERTS}' AS topic", "*"), None)


def _result(found: dict[str, list[Measured]]) -> Result:
    quantiles = {
        (side, name): [measured.quantile(share) for measured in found[side]]
        for side in SIDES
        for name, share in SHARES.items()
    }

    def ratios(above: str, below: str, name: str) -> list[float]:
        return [a / b for a, b in zip(quantiles[above, name], quantiles[below, name], strict=True)]

    return Result(
        "alerts",
        {
            "p50_speedup": Figure.at_least(20, ratios("micro_batch", "real_time", "p50")),
            "p99_speedup": Figure.at_least(8, ratios("micro_batch", "real_time", "p99")),
            "p50_vs_loop": Figure.at_most(3, ratios("real_time", "loop", "p50")),
            "p99_vs_loop": Figure.at_most(6, ratios("real_time", "loop", "p99")),
            "missing": Figure.at_most(
                0, [float(sum(run.missing for runs in found.values() for run in runs))], "alerts"
            ),
            **{
                f"{side}_{name}_ms": Figure.plain([seconds * 1000 for seconds in values], "ms")
                for (side, name), values in quantiles.items()
            },
        },
    )

"""Machine health from heartbeats: how many machines at one beat a second, and how soon a silence is told.

The whole stream, against the straightforward way, one state key a machine with event-time timers, in turns and in one
session. The machines beat in a process of their own on the same cores. What was told is held against the story that the
hub's own records tell.
"""

import json
import shutil
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql.streaming.query import StreamingQuery

from bench.beating import beating
from bench.figures import Figure, Result
from bench.keyed_machines import keyed_changes
from hub import HEARTBEATS, MACHINE_STATUS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import create_missing_topics, offset_ranges, partition_counts
from lake.machine_audit import UNHEALTHY, Patience, story
from processes.ports import free_port
from settings import HeartbeatSettings, HubSettings, Settings, SparkSettings
from streaming.catalog import HEARTBEAT
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.session import close_session, spark_session
from streaming.sources import hub_records

SETTLE_SECONDS, LOOK_SECONDS = 8.0, 12.0
WARM_UP_SECONDS = 40.0
MEASURED_SECONDS = 60.0
LEVELS = (10_000, 20_000, 30_000, 40_000, 60_000, 80_000, 100_000)
KEYED_LEVELS = (250, 500, 750, 1_000, 1_500, 2_000, 3_000, 5_000, 10_000, 20_000)
KEYED = "keyed-machine-status"
LONGEST_BATCH = 1.0
PAUSE_CHANCE, LEAST_READ = 0.005, 0.9
"""While capacity is measured; of a machine's heartbeats so many are read, the others being left out in pauses."""
DETECTION = {1_000: (0.02, 0.6, 1.2), 20_000: (0.015, 0.8, 1.8)}
"""For so many machines: how likely each beat is to begin a pause, and how late half and 99% of silences may be told."""
BY_DEFAULT = 1_000
"""So many machines once more with the trigger that the stream has when nobody sets one."""
LEAST_SILENCES = 10_000
"""Over all runs; of fewer, that none is missed and none is false says little."""
PATIENCE = Patience(silence=5_000, retirement=24 * 3_600_000)
PARTS = ("latestOffset", "queryPlanning", "walCommit", "addBatch", "commitOffsets")
STATE_CALLS = ("rocksdbGetCount", "rocksdbPutCount")


@dataclass(frozen=True)
class Detected:
    late: list[float]
    """Seconds from when each silence was due until it was readable on the hub."""
    missed: int
    false: int


def measure(runs: int, say: Callable[[str], None]) -> Result:
    with own_hub() as (settings, connection):
        bench = _Bench(settings, connection, say)
        try:
            return bench.result(runs)
        finally:
            bench.close()


@contextmanager
def own_hub() -> Iterator[tuple[Settings, HubConnection]]:
    """A broker and a home in a folder of their own, with nothing of the user's settings; batches back to back."""
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        settings = Settings(
            home=Path(folder),
            lake=None,
            checkpoints=None,
            hub=HubSettings(),
            heartbeat=HeartbeatSettings(trigger_seconds=0),
            spark=SparkSettings(driver_memory="2g"),
        )
        folder_of_hub, jars = settings.hub_folder, settings.jars
        with EmbeddedBroker(folder_of_hub, jars, port=free_port(), controller_port=free_port()) as broker:
            yield settings, HubConnection(broker.servers)


class _Bench:
    def __init__(self, settings: Settings, connection: HubConnection, say: Callable[[str], None]) -> None:
        self._settings, self._connection, self._say = settings, connection, say
        create_missing_topics(connection, settings.hub, [HEARTBEATS, MACHINE_STATUS, KEYED])
        self._spark = spark_session(settings, "bench")
        self._started = 0

    def close(self) -> None:
        close_session(self._spark)

    def result(self, runs: int) -> Result:
        for way, count in ((self._ours, 5_000), (self._keyed, 250)):
            with way() as query, beating(self._connection.servers) as machines:
                machines.set(count, 0.01)
                time.sleep(WARM_UP_SECONDS)
                if (error := query.exception()) is not None:
                    raise error
        sustained: dict[str, list[float]] = {"ours": [], "keyed": []}
        detected: dict[int, list[Detected]] = defaultdict(list)
        parts: dict[str, list[float]] = defaultdict(list)
        for number in range(1, runs + 1):
            for count, (chance, _, _) in DETECTION.items():
                found, batches = self._detection(count, chance)
                detected[count].append(found)
                p50, p99 = np.quantile(found.late, [0.5, 0.99])
                told = f"told after {p50:.2f} s (half) and {p99:.2f} s (99%)"
                self._say(f"{number}: {count:,} machines, {len(found.late):,} silences {told}")
                for name, value in _parts(batches).items():
                    parts[f"{name}_{count // 1000}k"].append(value)
            sustained["ours"].append(self._capacity(self._ours, LEVELS, at_least=0))
            # Where it manages none it is given the lowest level: there is no ratio to nothing.
            sustained["keyed"].append(self._capacity(self._keyed, KEYED_LEVELS, at_least=KEYED_LEVELS[0]))
            self._say(f"{number}: sustained {sustained['ours'][-1]:,.0f}, keyed {sustained['keyed'][-1]:,.0f}")
        self._say(f"as it is set out of the box: {BY_DEFAULT:,} machines")
        by_default, _ = self._detection(BY_DEFAULT, DETECTION[BY_DEFAULT][0], HeartbeatSettings().trigger_seconds)
        return result_of(sustained, detected, by_default, parts)

    def _detection(
        self, machines: int, pause_chance: float, trigger_seconds: float = 0.0
    ) -> tuple[Detected, list[dict[str, Any]]]:
        """Of the last minute: before, all machines have come up."""
        first = {hub: _ends(self._connection, hub) for hub in (HEARTBEATS, MACHINE_STATUS)}
        with self._ours(trigger_seconds) as query, beating(self._connection.servers) as running:
            running.set(machines, pause_chance)
            time.sleep(SETTLE_SECONDS)
            begin = time.time() * 1000
            time.sleep(MEASURED_SECONDS)
            end = time.time() * 1000
            batches = [json.loads(batch.json) for batch in query.recentProgress]
            time.sleep(5)
        beats: dict[str, list[int]] = defaultdict(list)
        for body, at in records(self._connection, HEARTBEATS, first[HEARTBEATS]):
            if "machine_name" in body:
                beats[body["machine_name"]].append(at)
        told = {
            (body["machine_name"], _millis(body["since"])): at
            for body, at in records(self._connection, MACHINE_STATUS, first[MACHINE_STATUS])
            if body["status"] == UNHEALTHY
        }
        due = {
            (machine, change.since)
            for machine, times in beats.items()
            for change in story(times, PATIENCE, end)
            if change.status == UNHEALTHY and begin <= change.since <= end
        }
        of_time = {key: at for key, at in told.items() if begin <= key[1] <= end}
        late = [(of_time[key] - key[1]) / 1000 for key in due & of_time.keys()]
        return Detected(late, len(due - of_time.keys()), len(of_time.keys() - due)), batches

    def _capacity(self, way: "Callable[[], Any]", levels: Sequence[int], at_least: int) -> float:
        """The most machines for which half of the batches take less than a second, and all that is sent is read."""
        with way() as query, beating(self._connection.servers) as machines:

            def holds(level: int) -> bool:
                machines.set(level, PAUSE_CHANCE)
                time.sleep(SETTLE_SECONDS)
                began = datetime.now(UTC)
                time.sleep(LOOK_SECONDS)
                batches = [
                    batch
                    for batch in (json.loads(each.json) for each in query.recentProgress)
                    if datetime.fromisoformat(batch["timestamp"]) >= began
                ]
                seconds = [batch["durationMs"]["triggerExecution"] / 1000 for batch in batches]
                return (
                    bool(seconds)
                    and statistics.median(seconds) < LONGEST_BATCH
                    and _read(batches) >= LEAST_READ * level
                )

            return highest(levels, holds, at_least)

    @contextmanager
    def _ours(self, trigger_seconds: float = 0.0) -> "Iterator[StreamingQuery]":
        checkpoints = self._next_folder()
        heartbeat = self._settings.heartbeat.model_copy(update={"trigger_seconds": trigger_seconds})
        settings = self._settings.model_copy(
            update={"checkpoints": checkpoints, "lake": f"{checkpoints}/lake", "heartbeat": heartbeat}
        )
        context = QueryContext.without_host(
            self._spark,
            settings,
            self._connection,
            partition_counts(self._connection),
        )
        pulses = Pulses(self._connection, HEARTBEATS, settings.heartbeat.pulse_seconds, "bench")
        pulses.start()
        queries = {}
        for spec in HEARTBEAT.queries:
            begins_at = {spec.source_name: self._from_now(spec.source_name)}
            queries[spec.name] = start_query(context, HEARTBEAT, spec, begins_at=begins_at)
        try:
            yield queries["machine_health"]
        finally:
            for query in queries.values():
                query.stop()
            pulses.stop()

    @contextmanager
    def _keyed(self) -> "Iterator[StreamingQuery]":
        starts_at = {HEARTBEATS: self._from_now(HEARTBEATS)}
        records = hub_records(self._spark, self._connection, HEARTBEATS, starts_at=starts_at, max_records=200_000)
        query = (
            keyed_changes(records)
            .writeStream.format("kafka")
            .options(**self._connection.spark_options())
            .option("topic", KEYED)
            .option("checkpointLocation", self._next_folder())
            .trigger(processingTime="0 seconds")
            .start()
        )
        try:
            yield query
        finally:
            query.stop()

    def _from_now(self, hub: str) -> dict[str, int]:
        return {str(partition): end for partition, end in _ends(self._connection, hub).items()}

    def _next_folder(self) -> str:
        shutil.rmtree(self._settings.home / f"checkpoints-{self._started}", ignore_errors=True)
        self._started += 1
        return str(self._settings.home / f"checkpoints-{self._started}")


def highest(levels: Sequence[int], holds: Callable[[int], bool], at_least: int) -> int:
    """The last of the levels that hold one after the other; `at_least` where the first does not."""
    best = at_least
    for level in levels:
        if not holds(level):
            break
        best = level
    return best


def result_of(
    sustained: dict[str, list[float]],
    detected: dict[int, list[Detected]],
    by_default: Detected,
    parts: dict[str, list[float]],
) -> Result:
    figures = {
        "capacity_vs_keyed": Figure.at_least(
            20, [ours / keyed for ours, keyed in zip(sustained["ours"], sustained["keyed"], strict=True)]
        ),
        "machines_sustained": Figure.at_least(30_000, sustained["ours"], "machines"),
    }
    for count, (_, half, nearly_all) in DETECTION.items():
        for share, bar in ((50, half), (99, nearly_all)):
            runs = [float(np.quantile(found.late, share / 100)) for found in detected[count]]
            figures[f"detect_p{share}_s_{count // 1000}k"] = Figure.at_most(bar, runs, "s")
    for share in (50, 99):
        late = float(np.quantile(by_default.late, share / 100))
        figures[f"detect_p{share}_s_{BY_DEFAULT // 1000}k_by_default"] = Figure.plain([late], "s")
    everything = [*(found for each in detected.values() for found in each), by_default]
    figures["missed"] = Figure.at_most(0, [float(sum(found.missed for found in everything))], "silences")
    figures["false_alarms"] = Figure.at_most(0, [float(sum(found.false for found in everything))], "silences")
    silences = float(sum(len(found.late) for found in everything))
    figures["silences"] = Figure.at_least(LEAST_SILENCES, [silences], "silences")
    state_calls = [value for name, values in parts.items() if name.startswith("state_calls") for value in values]
    figures["state_calls_per_bucket"] = Figure.at_most(4, state_calls, "calls")
    for name, values in parts.items():
        if not name.startswith("state_calls"):
            figures[name] = Figure.plain(values, "ms")
    return Result("heartbeat", figures)


def _parts(batches: list[dict[str, Any]]) -> dict[str, float]:
    """Of half of the batches, what each part takes at most."""
    done = [batch for batch in batches if batch["numInputRows"]]
    times = {part: [batch["durationMs"].get(part, 0) for batch in done] for part in ("triggerExecution", *PARTS)}
    operators = [operator for batch in done for operator in batch["stateOperators"]]
    times["stateCommit"] = [operator["commitTimeMs"] for operator in operators]
    calls = [
        sum(operator["customMetrics"].get(name, 0) for name in STATE_CALLS) / operator["numShufflePartitions"]
        for operator in operators
    ]
    found = {f"batch_{name}": statistics.median(values) for name, values in times.items() if values}
    return {**found, "state_calls": statistics.median(calls)}


def _read(batches: list[dict[str, Any]]) -> float:
    """Heartbeats a second, over the time of the batches themselves."""
    begin, last = (datetime.fromisoformat(batch["timestamp"]) for batch in (batches[0], batches[-1]))
    seconds = (last - begin).total_seconds() + batches[-1]["durationMs"]["triggerExecution"] / 1000
    read: float = sum(batch["numInputRows"] for batch in batches) / seconds
    return read


def _ends(connection: HubConnection, hub: str) -> dict[int, int]:
    return {partition: end for partition, (_, end) in offset_ranges(connection, hub).items()}


def records(connection: HubConnection, hub: str, first: dict[int, int]) -> Iterator[tuple[dict[str, Any], int]]:
    """Bodies and times, in milliseconds, of all records from there on."""
    last = _ends(connection, hub)
    consumer = Consumer({**connection.client_options(), "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(hub, partition, offset) for partition, offset in first.items()])
    left = sum(last[partition] - offset for partition, offset in first.items())
    while left > 0:
        for message in consumer.consume(10_000, timeout=10):
            left -= 1
            yield json.loads(message.value() or b""), message.timestamp()[1]
    consumer.close()


def _millis(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)

"""Readings from the hub into silver, with samples of their windows: exact however they are cut, and cut off."""

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic
from pyspark.sql import SparkSession

from bench.rig import wait_for
from hub.connection import HubConnection
from hub.pulses import pulse
from hub.topics import partition_counts
from lake import commit
from lake.audit import rows_of
from lake.sensor_audit import Reading, WindowRules, audit_readings, audit_samples, newest_closed, samples_of
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS
from lake.silver import quarantine_table
from lake.tables import Table
from settings import SensorSettings, Settings
from streaming.catalog import SENSORS
from streaming.checkpoints import CheckpointError
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.sensor_samples import HubClock, samples_plan
from streaming.sensor_windows import MICROS

pytestmark = pytest.mark.slow

SPEC = next(query for query in SENSORS.queries if query.name == "samples")
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
START_MS = 1_772_366_400_000
RULES = WindowRules(60 * MICROS, 30 * MICROS, 30 * MICROS)


@dataclass
class Readings:
    """A hub whose times a test sets, two partitions of it, and the query that reads it."""

    spark: SparkSession
    settings: Settings
    connection: HubConnection
    topic: str
    sent: list[Reading] = field(default_factory=list)
    spoiled: list[tuple[int, int]] = field(default_factory=list)
    ends: Counter[int] = field(default_factory=Counter)

    def send(self, partition: int, enqueued_ms: int, body: bytes) -> tuple[int, int]:
        producer = self._producer
        producer.produce(self.topic, body, partition=partition, timestamp=enqueued_ms)
        producer.poll(0)
        place = partition, self.ends[partition]
        self.ends[partition] += 1
        return place

    def reading(self, partition: int, enqueued_ms: int, event_ms: int, device: str, frequency: float) -> None:
        at = (EPOCH + timedelta(milliseconds=event_ms)).isoformat(timespec="milliseconds")
        body = json.dumps({"device_id": device, "sensor_freq": frequency, "event_time": at}).encode()
        place = self.send(partition, enqueued_ms, body)
        self.sent.append(Reading(event_ms * 1000, device, frequency, place, enqueued_ms * 1000, frequency < 0))

    def pulse(self, enqueued_ms: int, partitions: tuple[int, ...] = (0, 1)) -> None:
        for partition in partitions:
            self.send(partition, enqueued_ms, pulse("test", EPOCH))

    def add_partition(self) -> None:
        admin = AdminClient(self.connection.client_options())  # type: ignore[arg-type]
        for future in admin.create_partitions([NewPartitions(self.topic, 3)]).values():
            future.result()
        wait_for("the third", lambda: partition_counts(self.connection)[self.topic] == 3, 30)
        self._producer.flush()
        self.__post_init__()  # the producer asks for partitions only every few minutes

    def work(self, plan: int = 1, known: int | None = None) -> None:
        """With `known` it starts while the hub has so many partitions, and is not told of more."""
        self._producer.flush()
        there = partition_counts(self.connection)
        partitions = there | {self.topic: known or there[self.topic]}
        context = QueryContext.without_host(self.spark, self.settings, self.connection, partitions)
        spec = replace(SPEC, source=self.topic, plan=plan)
        start_query(context, SENSORS, spec, samples_plan, until_done=True).awaitTermination()

    def __post_init__(self) -> None:
        # Without idempotence a retry changes the order, and with it the places that the test counts.
        self._producer = Producer({**self.connection.client_options(), "linger.ms": 5, "enable.idempotence": True})

    def rows(self, table: Table, *columns: str) -> list[dict[str, Any]]:
        return list(rows_of(table, self.settings.lake_root, columns))

    def expect(self, closed_up_to_ms: int) -> None:
        """All of it is right, against what was sent."""
        root = self.settings.lake_root
        assert newest_closed(root) == closed_up_to_ms * 1000
        assert (found := audit_readings(root, self.sent, self.spoiled)).clean, found
        assert (found := audit_samples(root, RULES, first=0, closed_by=closed_up_to_ms * 1000)).clean, found
        right = {sample for sample in samples_of(self.sent, RULES) if sample[0] <= closed_up_to_ms * 1000}
        places = Counter((row["partition"], row["sequence_number"]) for row in self.samples())
        assert places == Counter(place for _, _, place, _ in right), "over what was sent, not over what is in silver"
        quarantined = self.rows(quarantine_table(self.topic), "partition", "sequence_number")
        assert Counter((row["partition"], row["sequence_number"]) for row in quarantined) == Counter(self.spoiled)

    def samples(self) -> list[dict[str, Any]]:
        return self.rows(SENSOR_SAMPLES, "window_end", "roles", "partition", "sequence_number", "alert_id")


@pytest.fixture
def hub(spark: SparkSession, tmp_path: Path, connection: HubConnection, topic: str) -> Readings:
    config = {"message.timestamp.type": "CreateTime", "retention.ms": "-1"}
    admin = AdminClient(connection.client_options())  # type: ignore[arg-type]
    for future in admin.create_topics([NewTopic(topic, 2, 1, config=config)]).values():
        future.result()
    chosen = SensorSettings(max_records=400)
    return Readings(spark, Settings(home=tmp_path, sensors=chosen), connection, topic)


def fill(hub: Readings, seconds: int, seed: int, begin_ms: int = START_MS) -> int:
    """Readings out of order, late, repeated and of one moment, and spoiled ones. Returns the hub's last time."""
    draw = random.Random(seed)
    before: list[tuple[int, str, float]] = []
    now = begin_ms
    while now < begin_ms + seconds * 1000:
        now += draw.choice([0, 0, 1, 40, 200])
        partition = draw.randrange(2)
        kind = draw.random()
        late = draw.choice([0, 0, 0, 5, 900, 20_000, 29_999, 30_000, 61_000, 95_000, 10_000_000])
        device, frequency = f"{partition}-{draw.randrange(3)}", draw.choice([-1.5, 1.0, 50.0, 50.25])
        if kind < 0.02:
            hub.spoiled.append(hub.send(partition, now, draw.choice([b"no JSON", b"{}", b""])))
        elif kind < 0.1 and before:
            event, device, frequency = draw.choice(before[-50:])
            hub.reading(int(device[0]), now, event, device, frequency)
        else:
            event = (now - late) // 100 * 100
            before.append((event, device, frequency))
            hub.reading(partition, now, event, device, frequency)
    hub.pulse(now)
    return now


def last_closed(clock_ms: int) -> int:
    return (clock_ms - 30_000) // 30_000 * 30_000


def test_samples_are_those_of_all_that_was_sent(hub: Readings) -> None:
    last = fill(hub, 200, seed=1)
    hub.work()
    quiet = last + 200_000
    hub.pulse(quiet)  # nobody sends any more, but windows close
    hub.work()
    hub.expect(last_closed(quiet))
    missed = Counter(row["missed_windows"] for row in hub.rows(SENSOR_READINGS, "missed_windows"))
    assert missed == Counter(2 - len(RULES.ends(reading)) for reading in hub.sent)
    assert missed[1] and missed[2], "some were late"
    windows = hub.rows(SENSOR_WINDOWS, "window_end", "readings", "repeats", "anomalies")
    assert sum(row["repeats"] for row in windows) > 0
    inside = sum(len(RULES.ends(reading)) for reading in hub.sent)
    assert sum(row["readings"] + row["repeats"] for row in windows) == inside
    alerts = {row["alert_id"] for row in hub.samples() if "anomaly" in row["roles"]}
    assert len(alerts) > 10 and None not in alerts


def test_each_device_may_be_sampled_by_itself(hub: Readings) -> None:
    chosen = hub.settings.sensors.model_copy(update={"per_device": True})
    hub.settings = hub.settings.model_copy(update={"sensors": chosen})
    last = fill(hub, 60, seed=2)
    hub.pulse(last + 200_000)
    hub.work()
    rules = replace(RULES, per_device=True)
    closed = last_closed(last + 200_000) * 1000
    assert (found := audit_samples(hub.settings.lake_root, rules, first=0, closed_by=closed)).clean, found
    devices = {row["of_device"] for row in hub.rows(SENSOR_SAMPLES, "of_device")}
    assert len(devices) == 6 and None not in devices


APPENDING = (
    "streaming.appended.append_once",
    "streaming.sensor_samples.append_once",
    "streaming.sensor_samples.append_files",
)
WRITES = (quarantine_table("x").name.split("/")[0], SENSOR_READINGS.name, SENSOR_SAMPLES.name, SENSOR_WINDOWS.name)


def cut_off(name: str, table: str, when: str) -> Callable[..., Any]:
    """In place of a function that appends: raises before or after the batch is in the table."""
    whole = getattr(commit, name)

    def append(rows: Any, into: Table, *others: Any) -> Any:
        if not into.name.startswith(table):
            return whole(rows, into, *others)
        if when == "after":
            whole(rows, into, *others)
        raise OSError("cut off")

    return append


@pytest.mark.parametrize("plan", [1, 2], ids=["resumed", "in a new generation"])
def test_cut_off_anywhere_a_batch_is_completed(hub: Readings, plan: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each of its tables in turn, with traffic going on."""
    last = START_MS
    for turn, (table, when) in enumerate((table, when) for table in WRITES for when in ("before", "after")):
        last = fill(hub, 45, seed=10 + turn, begin_ms=last)
        with monkeypatch.context() as patched:
            for place in APPENDING:
                patched.setattr(place, cut_off(place.rpartition(".")[2], table, when))
            with pytest.raises(Exception, match="cut off"):
                hub.work(1 if plan == 1 else turn + 1)
        hub.work(1 if plan == 1 else turn + 2)
    hub.pulse(last + 200_000)
    hub.work(1 if plan == 1 else turn + 2)
    hub.expect(last_closed(last + 200_000))


@pytest.mark.parametrize("table", [SENSOR_SAMPLES, SENSOR_WINDOWS], ids=lambda table: table.name)
def test_a_batch_that_is_done_again_may_close_more_than_the_first_time(
    hub: Readings, table: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The host's clock is a minute behind the hub's the first time, and closes nothing beyond its own time."""
    hub.settings = hub.settings.model_copy(update={"sensors": SensorSettings()})  # all of it in one batch
    end = fill(hub, 180, seed=5)
    with monkeypatch.context() as patched:
        patched.setattr("streaming.sensor_samples.time", clock_at(end / 1000 - 60))
        patched.setattr("streaming.sensor_samples.append_once", cut_off("append_once", table.name, "after"))
        with pytest.raises(Exception, match="cut off"):
            hub.work()
    assert len(hub.samples()) > 0 and newest_closed(hub.settings.lake_root) < last_closed(end) * 1000
    monkeypatch.setattr("streaming.sensor_samples.time", clock_at(end / 1000))
    hub.work()
    hub.expect(last_closed(end))


def clock_at(seconds: float) -> SimpleNamespace:
    return SimpleNamespace(time=lambda: seconds, monotonic=time.monotonic, sleep=time.sleep)


def test_a_partition_that_falls_behind_holds_windows_open(hub: Readings) -> None:
    """Its readings are in time by the hub's clock, however far the other partition has been read before them."""
    for number in range(1500):  # as many in each, so that a batch reads ten times as far in the first
        hub.reading(0, START_MS + number * 1000, START_MS + number * 1000, "0-0", 50.0)
        hub.reading(1, START_MS + number * 100, START_MS + number * 100, "1-0", 50.0)
    for number in range(1500, 15_000, 100):
        hub.reading(1, START_MS + number * 100, START_MS + number * 100, "1-0", 50.0)
    hub.work()
    hub.pulse(START_MS + 1_800_000)
    hub.work()
    assert not any(row["missed_windows"] for row in hub.rows(SENSOR_READINGS, "missed_windows"))
    hub.expect(last_closed(START_MS + 1_800_000))


def test_a_partition_that_is_added_while_it_runs_is_read_and_keeps_time(hub: Readings) -> None:
    last = fill(hub, 60, seed=3)
    hub.work()
    hub.add_partition()
    for second in range(60):
        at = last + second * 1000
        hub.reading(2, at, at, "2-0", -1.0 if second % 10 == 0 else 50.0)
    hub.pulse(last + 300_000)
    hub.work(known=2)
    hub.expect(last_closed(last + 59_000))  # by the newest record of the new one, which may have more to come
    hub.pulse(last + 300_000, (2,))
    hub.work(known=2)
    hub.expect(last_closed(last + 59_000))  # after a start, nothing is known of the others before they are heard of
    hub.pulse(last + 330_000, (0, 1, 2))
    hub.work(known=2)
    hub.expect(last_closed(last + 330_000))


def test_what_was_malformed_before_does_not_change_what_comes_of_a_batch(hub: Readings) -> None:
    """A batch is kept in memory or not, by what the one before had; and one has nothing but malformed records."""
    now = START_MS
    for size in (3, 0, 2, 5, 0, 0, 1):
        for number in range(400):
            now += 100
            if number < size or size == 5:
                hub.spoiled.append(hub.send(number % 2, now, b"no JSON"))
            else:
                hub.reading(number % 2, now, now, f"{number % 2}-0", 50.0)
    hub.pulse(now + 200_000)
    hub.work()
    hub.expect(last_closed(now + 200_000))


def test_without_its_checkpoint_it_refuses_to_write_readings_twice(hub: Readings, tmp_path: Path) -> None:
    last = fill(hub, 60, seed=4)
    hub.work()
    checkpoints = Path(hub.settings.checkpoint_root)
    checkpoints.rename(tmp_path / "lost")
    last = fill(hub, 60, seed=5, begin_ms=last)
    with pytest.raises(CheckpointError, match="Restore the checkpoint from a backup"):
        hub.work()
    (tmp_path / "lost").rename(checkpoints)
    hub.pulse(last + 200_000)
    hub.work()
    hub.expect(last_closed(last + 200_000))


def test_without_pulses_a_quiet_partition_holds_up_nobody(hub: Readings) -> None:
    chosen = hub.settings.sensors.model_copy(update={"pulse_seconds": 0})
    hub.settings = hub.settings.model_copy(update={"sensors": chosen})
    for second in range(100):
        hub.reading(second % 2, START_MS + second * 1000, START_MS + second * 1000, "0-0", 50.0)
    hub.work()
    hub.reading(0, START_MS + 125_000, START_MS + 125_000, "0-0", 50.0)
    hub.work()
    hub.expect(START_MS + 90_000)  # five seconds are left for what the hub was about to show


def test_the_clock_of_the_hub_is_that_of_its_slowest_partition() -> None:
    clock = HubClock(2)
    assert clock.after({0: 100}, now=1000) is None, "the other may have older ones"
    assert clock.after({1: 50}, now=1000) == 50
    assert clock.after({}, now=1000) is None
    assert clock.after({0: 200}, now=1000) == 50
    assert clock.after({1: 5000, 0: 7000}, now=1000) == 1000, "a hub that is ahead does not close what is to come"
    quiet = HubClock(None)
    assert quiet.after({0: 9 * MICROS}, now=10**12) == 4 * MICROS

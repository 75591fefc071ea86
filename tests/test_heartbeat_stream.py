"""The heartbeat stream on a real hub: silence told on time, the same story whatever happens to the stream."""

import json
import shutil
import signal
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewPartitions, NewTopic

from bench.rig import wait_for
from hub import HEARTBEATS, MACHINE_STATUS
from hub.publisher import Record
from hub.topics import offset_ranges, partition_counts
from lake.audit import TableAudit
from lake.machine_audit import Patience, audit_machines
from lake.machines import machines_by_status
from tests import cut_off_telling
from tests.system import Host, System

pytestmark = pytest.mark.slow

PATIENCE = Patience(silence=5_000, retirement=24 * 3_600_000)
AT_ONCE = {
    "TIDEWATCH_SUPERVISOR_STREAMS": '["heartbeat"]',
    "TIDEWATCH_HEARTBEAT_TRIGGER_SECONDS": "0",
    "TIDEWATCH_HEARTBEAT_TABLE_TRIGGER_SECONDS": "1",
    "TIDEWATCH_HUB_PARTITIONS": "2",
}
HOUR = 3_600_000
DAY = 24 * HOUR
Beats = dict[str, list[int]]


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[System]:
    with System(tmp_path / "home", **AT_ONCE) as running:
        yield running


def names(count: int) -> list[str]:
    return [f"press-{number:03}" for number in range(count)]


def no_beats() -> Beats:
    return defaultdict(list)


def start(hub: System, **settings: str) -> Host:
    host = hub.start_host(stream="heartbeat", **settings)
    host.wait_until_running()
    return host


def beat(hub: System, machines: list[str], beats: Beats) -> None:
    bodies = [json.dumps({"machine_name": name, "sent_at": "whenever"}).encode() for name in machines]
    receipts = hub.publish(
        [Record(HEARTBEATS, name.encode(), body) for name, body in zip(machines, bodies, strict=True)]
    )
    for name, receipt in zip(machines, receipts, strict=True):
        beats[name].append(receipt.enqueued_ms)


def beat_for(seconds: float, hub: System, machines: list[str], beats: Beats) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        began = time.monotonic()
        beat(hub, machines, beats)
        time.sleep(max(0.0, 1 - (time.monotonic() - began)))


def beat_until(what: str, ready: Callable[[], bool], hub: System, machines: list[str], beats: Beats) -> None:
    """For as long as a slow machine needs to see it: without beats they would be unhealthy again by then."""

    def beaten() -> bool:
        beat_for(1, hub, machines, beats)
        return ready()

    wait_for(what, beaten, 90)


def told(hub: System) -> list[dict[str, Any]]:
    """Every record of the hub machine-status."""
    ranges = offset_ranges(hub.connection, MACHINE_STATUS)
    consumer = Consumer({**hub.connection.client_options(), "group.id": "test"})
    consumer.assign([TopicPartition(MACHINE_STATUS, partition, first) for partition, (first, _) in ranges.items()])
    found = []
    for _ in range(sum(end - first for first, end in ranges.values())):
        (message,) = consumer.consume(1, timeout=10)
        found.append(json.loads(message.value() or b""))
    consumer.close()
    return found


def statuses(hub: System) -> dict[str, str]:
    """The newest of each machine."""
    return {change["machine_name"]: change["status"] for change in told(hub)}


def repeated(hub: System) -> dict[str, str]:
    """The status of each change that was told more than once, by its id."""
    changes = told(hub)
    counts = Counter(change["id"] for change in changes)
    return {change["id"]: change["status"] for change in changes if counts[change["id"]] > 1}


def all_are(hub: System, machines: list[str], status: str) -> Callable[[], bool]:
    return lambda: statuses(hub) == dict.fromkeys(machines, status)


def story_in_silver(hub: System, beats: Beats, told_up_to: int) -> TableAudit:
    """Once it is right, or after some time as it is."""

    def audit() -> TableAudit:
        return audit_machines(hub.settings.lake_root, beats, PATIENCE, told_up_to=told_up_to, sure_up_to=float("inf"))

    deadline = time.monotonic() + 150
    while not (found := audit()).clean and time.monotonic() < deadline:
        time.sleep(1)
    return found


def test_all_fall_silent_and_come_back_while_the_stream_is_killed(hub: System, tmp_path: Path) -> None:
    """Twice in the middle of telling: what was told is on the hub, but the batch is not done."""
    shutil.copy(cut_off_telling.__file__, tmp_path / "sitecustomize.py")
    in_the_middle = tmp_path / "cut off"
    faulty = {"PYTHONPATH": str(tmp_path), cut_off_telling.FILE: str(in_the_middle)}
    machines, beats = names(60), no_beats()
    host = start(hub, **faulty)
    beat_until("all are healthy", all_are(hub, machines, "Healthy"), hub, machines, beats)
    wait_for("all are unhealthy, on time and without a kill", all_are(hub, machines, "Unhealthy"), 90)
    unhealthy = [change for change in told(hub) if change["status"] == "Unhealthy"]
    late = [
        (datetime.fromisoformat(change["detected_at"]) - datetime.fromisoformat(change["since"])).total_seconds()
        for change in unhealthy
    ]
    assert max(late) < 15, "seen by the next batches, not by some timeout"
    assert not repeated(hub)
    in_the_middle.touch()
    beat(hub, machines, beats)
    assert host.wait_for_exit() == -signal.SIGKILL
    beat(hub, machines, beats)
    host = start(hub, **faulty)
    beat_until("what came before the kill is told again", lambda: bool(repeated(hub)), hub, machines, beats)
    assert set(repeated(hub).values()) == {"Healthy"}
    beat_until("all are healthy again", all_are(hub, machines, "Healthy"), hub, machines, beats)
    in_the_middle.touch()
    assert host.wait_for_exit() == -signal.SIGKILL
    host = start(hub)
    wait_for("that is told again too", lambda: set(repeated(hub).values()) == {"Healthy", "Unhealthy"}, 90)
    wait_for("all are unhealthy", all_are(hub, machines, "Unhealthy"), 90)
    assert story_in_silver(hub, beats, max(map(max, beats.values())) + PATIENCE.silence).clean, "each once"
    wait_for(
        "the machines as they are now", lambda: machines_by_status(hub.settings.lake_root) == {"Unhealthy": 60}, 90
    )
    ids = {(change["machine_name"], change["status"], change["since"]): change["id"] for change in told(hub)}
    assert len(set(ids.values())) == len(ids) == len({change["id"] for change in told(hub)})
    known = hub.command("machine", machines[0], "--json")
    assert known.returncode == 0, known.stderr
    state = json.loads(known.stdout)
    assert state["status"] == "Unhealthy" and datetime.fromisoformat(state["last_heartbeat"]).timestamp() * 1000 == (
        pytest.approx(beats[machines[0]][-1])
    )
    assert "Nothing is known of a machine nobody" in hub.command("machine", "nobody").stderr
    assert "machines: 60 Unhealthy, as of 20" in hub.command("status").stdout
    assert host.stop() == 0


def test_three_days_without_the_stream(hub: System) -> None:
    """On a hub whose records tell their own times, so that days pass in a moment."""
    topic = NewTopic(HEARTBEATS, 2, 1, config={"message.timestamp.type": "CreateTime", "retention.ms": str(9 * DAY)})
    admin = AdminClient({**hub.connection.client_options()})
    admin.create_topics([topic])[HEARTBEATS].result(30)
    now = round(datetime.now(UTC).timestamp() * 1000)
    beats = no_beats()

    def send(machine: str, partition: int, first: int, count: int, every: int = 1000) -> None:
        producer = Producer({**hub.connection.client_options()})
        for number in range(count):
            at = first + number * every
            body = json.dumps({"machine_name": machine, "sent_at": "whenever"})
            producer.produce(HEARTBEATS, body, machine, partition=partition, timestamp=at)
            beats[machine].append(at)
        assert producer.flush(30) == 0

    before = now - 4 * DAY
    for machine, partition in (("always", 0), ("gone", 1), ("returns", 1)):
        send(machine, partition, before, 20)
    silent = start(hub, TIDEWATCH_HEARTBEAT_PULSE_SECONDS="0")
    wait_for("all are healthy", all_are(hub, ["always", "gone", "returns"], "Healthy"), 90)
    assert silent.stop() == 0
    # While the stream is down: one beats on with outages, one comes back after three days, one never does.
    send("always", 0, before + 20_000, 500)
    send("always", 0, before + 600_000, 50, every=4_000)
    send("always", 0, before + 3 * DAY - HOUR, 100)
    send("returns", 1, before + 3 * DAY - HOUR, 100)
    assert start(hub).process.poll() is None
    assert story_in_silver(hub, beats, now).clean
    assert machines_by_status(hub.settings.lake_root) == {}, "all have been gone for a day"
    assert [change["status"] for change in told(hub) if change["machine_name"] == "gone"] == [
        *("Initializing", "Healthy", "Unhealthy", "Retired")
    ]


def test_machines_that_move_to_new_partitions_are_not_missed(hub: System) -> None:
    machines, beats = names(40), no_beats()
    start(hub)
    beat_until("all are healthy", all_are(hub, machines, "Healthy"), hub, machines, beats)
    admin = AdminClient({**hub.connection.client_options()})
    admin.create_partitions([NewPartitions(HEARTBEATS, 7)])[HEARTBEATS].result(30)
    wait_for("the hub has them", lambda: partition_counts(hub.connection)[HEARTBEATS] == 7, 30)
    beat_for(20, hub, machines, beats)
    assert set(statuses(hub).values()) == {"Healthy"}
    last = max(map(max, beats.values()))
    wait_for("all are unhealthy in the end", all_are(hub, machines, "Unhealthy"), 90)
    assert story_in_silver(hub, beats, last + PATIENCE.silence).clean


def test_killed_again_and_again_the_story_is_that_of_the_ledger(hub: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    faults = ("--bad-fraction", "0.02", "--duplicate-fraction", "0.02", "--late-fraction", "0.02")
    host = start(hub)
    with hub.traffic(ledger, 800, HEARTBEATS, faults):
        for _ in range(3):
            time.sleep(12)
            host.kill()
            host = start(hub)
        time.sleep(10)
    audit = hub.audit(ledger, wait=240)
    assert audit["clean"] and audit["ledger_closed"], audit
    changes, quarantine = audit["tables"]
    assert changes["acknowledged"] > 20_000 and quarantine["acknowledged"] > 200
    assert host.stop() == 0

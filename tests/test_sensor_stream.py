"""The sensors stream on a real hub: alerts in real time, and samples, whatever happens to the stream and the hub."""

import json
import time
from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from bench.rig import wait_for
from hub import SENSORS
from hub.alerts import Alert, alerts_since
from hub.publisher import Receipt, Record
from hub.topics import offset_ranges
from hub.traffic.planned import timestamp
from lake.audit import PLACE, Place, place_of, rows_of
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES
from streaming.failures import FailureClass
from streaming.progress import QueryProgress
from tests.system import Host, System

pytestmark = pytest.mark.slow

QUICK = {
    "TIDEWATCH_SUPERVISOR_STREAMS": '["sensors"]',
    "TIDEWATCH_SENSORS_TRIGGER_SECONDS": "1",
    "TIDEWATCH_SENSORS_PULSE_SECONDS": "1",
    "TIDEWATCH_SENSORS_ALERT_INTERVAL_SECONDS": "5",
    "TIDEWATCH_SENSORS_WINDOW_SECONDS": "4",
    "TIDEWATCH_SENSORS_SLIDE_SECONDS": "2",
    "TIDEWATCH_SENSORS_LATENESS_SECONDS": "2",
    "TIDEWATCH_HUB_PARTITIONS": "2",
}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[System]:
    with System(tmp_path / "home", **QUICK) as running:
        yield running


def start(hub: System, **settings: str) -> Host:
    host = hub.start_host(stream="sensors", **settings)
    host.wait_until_running()
    return host


def read(hub: System, *frequencies: float) -> list[Receipt]:
    now = timestamp(datetime.now(UTC))
    bodies = {
        number: {"device_id": f"pump-{number % 5}", "sensor_freq": each, "event_time": now}
        for number, each in enumerate(frequencies)
    }
    return hub.publish(
        [Record(SENSORS, f"pump-{number % 5}".encode(), json.dumps(body).encode()) for number, body in bodies.items()]
    )


def alerts(hub: System) -> list[Alert]:
    return alerts_since(hub.connection, datetime.now(UTC) - timedelta(hours=1))


def told(hub: System, receipts: list[Receipt]) -> bool:
    wanted = {(receipt.partition, receipt.sequence_number) for receipt in receipts}
    return wanted <= {alert.place for alert in alerts(hub)}


def readings(hub: System) -> list[Place]:
    return [place_of(row) for row in rows_of(SENSOR_READINGS, hub.settings.lake_root, PLACE)]


def progress_of(hub: System, query: str) -> QueryProgress | None:
    progress = hub.progress("sensors")
    return progress.queries.get(query) if progress else None


def test_alerts_come_at_once_and_the_stream_tells_how_far_they_are(hub: System) -> None:
    host = start(hub, TIDEWATCH_SENSORS_ALERT_INTERVAL_SECONDS="60")
    first = read(hub, -1.0, 50.0, -2.0)
    wait_for("the first alerts", lambda: told(hub, [first[0], first[2]]), 60)
    wait_for("echoes", lambda: (progress_of(hub, "alerts") or QueryProgress(0)).end_to_end_seconds is not None, 60)
    for _ in range(20):
        read(hub, -3.0)
        time.sleep(0.1)
    wait_for("all of them", lambda: len(alerts(hub)) == 22, 30)
    late = sorted(alert.raised_at - alert.event_time for alert in alerts(hub)[2:])
    assert late[len(late) // 2] < timedelta(seconds=1), "not at the end of the interval of a minute"
    wait_for("no lag", lambda: (progress_of(hub, "alerts") or QueryProgress(0)).lag_records == 0, 30)
    found = progress_of(hub, "alerts")
    assert found is not None and found.total_batches == 0, "all of it was within the first interval"
    assert found.end_to_end_seconds is not None and found.end_to_end_seconds < 5
    began = time.monotonic()
    assert host.stop() == 0
    assert time.monotonic() - began < 30, "a stop does not wait for the interval's end"


def test_after_a_crash_alerts_are_told_again_with_the_same_ids(hub: System) -> None:
    host = start(hub, TIDEWATCH_SENSORS_ALERT_INTERVAL_SECONDS="60")
    sent = read(hub, *(-float(number) for number in range(1, 11)))
    wait_for("all are told", lambda: told(hub, sent), 60)
    ids = {alert.place: alert.alert_id for alert in alerts(hub)}
    host.kill()
    more = read(hub, -11.0, -12.0)
    start(hub)
    wait_for("the rest is told", lambda: told(hub, more), 60)
    again = alerts(hub)
    assert len(again) > 12, "what came after the last note is told again"
    assert all(ids.get(alert.place, alert.alert_id) == alert.alert_id for alert in again)
    assert len({alert.alert_id for alert in again}) == 12


def test_alerts_in_micro_batches_go_on_where_real_time_stopped_and_back(hub: System) -> None:
    host = start(hub)
    first = read(hub, -1.0)
    wait_for("in real time", lambda: told(hub, first), 60)
    wait_for("a note", lambda: bool((progress_of(hub, "alerts") or QueryProgress(0)).total_batches), 30)
    assert host.stop() == 0
    host = start(hub, TIDEWATCH_SENSORS_ALERTS="micro-batch", TIDEWATCH_SENSORS_ALERT_TRIGGER_SECONDS="1")
    second = read(hub, -2.0)
    wait_for("in micro-batches", lambda: told(hub, second), 60)
    wait_for("a batch", lambda: (progress_of(hub, "alerts") or QueryProgress(0)).lag_records == 0, 30)
    assert host.stop() == 0
    start(hub)
    third = read(hub, -3.0)
    wait_for("in real time again", lambda: told(hub, third), 60)


def test_a_person_may_accept_that_the_hub_lost_readings(hub: System) -> None:
    host = start(hub)
    first = read(hub, -1.0, -2.0, -3.0)
    wait_for("the first alerts", lambda: told(hub, first), 60)
    wait_for("a note", lambda: bool((progress_of(hub, "alerts") or QueryProgress(0)).total_batches), 60)
    wait_for("readings", lambda: len(readings(hub)) == 3, 60)
    assert host.stop() == 0
    lost = read(hub, *[-4.0] * 5)
    ends = {partition: end for partition, (_, end) in offset_ranges(hub.connection, SENSORS).items()}
    client = AdminClient({"bootstrap.servers": hub.broker.servers})
    for answer in client.delete_records([TopicPartition(SENSORS, *end) for end in ends.items()]).values():
        answer.result(10)
    kept = read(hub, -5.0, 50.0)
    host = hub.start_host(stream="sensors")
    assert host.wait_for_exit() == FailureClass.SOURCE_DATA_LOST, host.log.read_text()
    for query in ("alerts", "samples"):
        accepted = hub.command("accept-loss", "sensors", query)
        assert accepted.returncode == 0, accepted.stderr
    start(hub)
    wait_for("what is left", lambda: told(hub, kept[:1]) and len(readings(hub)) == 5, 90)
    assert not {alert.place for alert in alerts(hub)} & {(each.partition, each.sequence_number) for each in lost}
    assert Counter(readings(hub)) == Counter((each.partition, each.sequence_number) for each in first + kept)


def test_killed_and_cut_off_from_the_hub_everything_is_told_and_sampled(hub: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"
    faults = ("--bad-fraction", "0.02", "--duplicate-fraction", "0.05", "--late-fraction", "0.05")
    host = start(hub)
    with hub.traffic(ledger, 300, SENSORS, faults):
        time.sleep(10)
        host.kill()
        host = start(hub)
        time.sleep(8)
        hub.broker.stop()
        time.sleep(3)
        hub.broker.start()
        time.sleep(15)
        if host.process.poll() is None:  # a host whose hub went away may end itself: the supervisor starts it again
            host.kill()
        host = start(hub)
        time.sleep(8)
    audit = hub.audit(ledger, wait=240)
    assert audit["clean"], audit
    readings, quarantine, samples, told = audit["tables"]
    assert readings["acknowledged"] > 8000 and quarantine["acknowledged"] > 100 and told["acknowledged"] > 20
    assert samples["acknowledged"] > 8000
    late = [row for row in rows_of(SENSOR_SAMPLES, hub.settings.lake_root, ("roles",)) if "anomaly" in row["roles"]]
    assert late
    assert host.stop() == 0

"""The stream host as a real process: what it keeps, when it ends, and what its end leaves behind."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from deltalake import DeltaTable

from bench.rig import wait_for
from hub import CLICKS, INPUT_HUBS
from hub.publisher import Record
from hub.topics import create_missing_topics
from lake.tables import bronze_table
from processes.child import wait_until_dead
from processes.ports import free_port
from settings import HubSettings
from streaming.failures import Failure, FailureClass
from streaming.lease import Holder, is_held
from streaming.progress import RUNNING, WAITING, StreamProgress
from tests.system import System

pytestmark = pytest.mark.slow


def bronze(system: System, hub: str = CLICKS) -> list[dict[str, object]]:
    path = bronze_table(hub).path(system.settings.lake_root)
    if not DeltaTable.is_deltatable(path):
        return []
    rows: list[dict[str, object]] = DeltaTable(path).to_pyarrow_table().to_pylist()
    return rows


def idle(system: System) -> bool:
    """Every query looked for records after its last batch and found none."""
    progress = StreamProgress.read(system.files().progress)
    assert progress is not None
    return all(query.idle_at and query.idle_at > (query.batch_at or "") for query in progress.queries.values())


def wait_for_rows(system: System, count: int, hub: str = CLICKS) -> None:
    wait_for(f"{count} rows in bronze/{hub}", lambda: len(bronze(system, hub)) >= count)


HOSTILE: list[tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]]]] = [
    (b"k", b'{"eventID": "plain"}', []),
    (b"k", b"this is no JSON", [("plain", b"value")]),
    (b"\xff\xfe", b"\xff\x00\xfe invalid UTF-8 \xc3\x28", [("odd", b"\x00\xff"), ("odd", b"again"), ("", b"")]),
    (b"", b"", [("null", None)]),
    (None, None, []),
    (None, b"no key", []),
    (b"k" * 1000, b"x" * 900_000, [("long", b"y" * 10_000)]),
    ("ключ".encode(), "тело 🌊".encode(), [("имя", b"\xf0\x9f\x8c\x8a")]),
]


def test_hostile_records_land_unchanged_then_a_second_host_is_refused_and_a_stop_is_graceful(system: System) -> None:
    host = system.start_host()
    host.wait_until_running()
    records = [Record(CLICKS, key, body, headers) for key, body, headers in HOSTILE]
    receipts = system.publish(records)
    wait_for_rows(system, len(records))
    rows = {(row["partition"], row["sequence_number"]): row for row in bronze(system)}
    assert len(rows) == len(bronze(system)) == len(records)
    for record, receipt in zip(records, receipts, strict=True):
        row = rows[receipt.partition, receipt.sequence_number]
        headers = [(header["key"], header["value"]) for header in row["headers"] or ()]  # type: ignore[attr-defined]
        assert (row["key"], row["body"], headers) == (record.key, record.body, list(record.headers))
        assert row["enqueued_time"].timestamp() == receipt.enqueued_ms / 1000  # type: ignore[attr-defined]
        assert row["hub"] == CLICKS
        assert row["date"] == row["enqueued_time"].date()  # type: ignore[attr-defined]
        assert row["ingest_time"] >= row["enqueued_time"]  # type: ignore[operator]

    wait_for("the progress file tells it", lambda: system.total_rows() == len(records), 10)
    wait_for("the stream has nothing more to do", lambda: idle(system), 30)
    progress = StreamProgress.read(system.files().progress)
    assert progress is not None and progress.phase == RUNNING
    assert progress.queries[CLICKS].total_rows == len(records)
    assert {query: done.lag_records for query, done in progress.queries.items()} == dict.fromkeys(INPUT_HUBS, 0)

    versions = [DeltaTable(bronze_table(hub).path(system.settings.lake_root)).version() for hub in INPUT_HUBS]
    holder = Holder.read(system.files().lease)
    began = time.monotonic()
    second = system.start_host()
    assert second.process.wait(30) == FailureClass.LEASE_HELD
    assert time.monotonic() - began < 10
    assert f"held by process {host.process.pid}" in second.log.read_text()
    assert Holder.read(system.files().lease) == holder
    after_it = StreamProgress.read(system.files().progress)
    assert after_it is not None and after_it.started_at == progress.started_at
    after = [DeltaTable(bronze_table(hub).path(system.settings.lake_root)).version() for hub in INPUT_HUBS]
    assert after == versions

    os.kill(host.process.pid, signal.SIGTERM)
    assert host.process.wait(60) == 0
    wait_for("the lease is free", lambda: not is_held(system.files().lease), 10)
    assert "bronze stopped" in host.log.read_text()
    assert "Traceback" not in host.log.read_text()
    assert Failure.read(system.files().failure) is None

    # Without its checkpoint it would read everything again: it refuses instead, before it writes anything.
    folder = Path(system.settings.checkpoint_root, "bronze", CLICKS)
    folder.rename(folder.with_name("moved"))
    host = system.start_host()
    assert host.wait_for_exit() == FailureClass.CHECKPOINT
    failure = Failure.read(system.files().failure)
    assert failure is not None and "bronze/clicks has no checkpoint, but its table" in failure.what
    assert len(bronze(system)) == len(records)


def test_killed_again_and_again_nothing_is_lost_or_written_twice(system: System, tmp_path: Path) -> None:
    """Kills the whole process group without warning, in the middle of work, while traffic goes on."""
    ledger = tmp_path / "ledger"
    arguments = ("traffic", "all", "--rate", "2000", "--seconds", "30", "--bad-fraction", "0.02")
    traffic = system.start_command(*arguments, "--duplicate-fraction", "0.02", "--ledger", str(ledger), "--seed", "3")
    host = system.start_host()
    for rows_before_the_kill in (1, 10_000, 20_000):
        before = total_rows(system)
        wait_for_total(system, before + rows_before_the_kill)
        host.kill()
        host = system.start_host()
    assert traffic.wait(180) == 0
    audit = system.audit(ledger, wait=180)
    assert audit["acknowledged"] > 50_000
    assert audit["clean"], audit
    assert host.stop() == 0
    audit = system.audit(ledger, wait=0)
    assert audit["clean"], audit


def wait_for_total(system: System, rows: int) -> None:
    wait_for(f"{rows} rows", lambda: total_rows(system) >= rows)


def total_rows(system: System) -> int:
    count = 0
    for hub in INPUT_HUBS:
        path = bronze_table(hub).path(system.settings.lake_root)
        if DeltaTable.is_deltatable(path):
            count += DeltaTable(path).to_pyarrow_dataset().count_rows()
    return count


def test_the_jvm_keeps_the_lease_of_a_stopped_or_killed_python(system: System) -> None:
    """A stopped Python looks dead, but its JVM may go on writing: the lease must say so."""
    host = system.start_host()
    host.wait_until_running()
    holder = Holder.read(system.files().lease)
    assert holder is not None and holder.host == host.identity
    assert holder.jvm is not None and holder.jvm.is_alive()
    os.kill(host.process.pid, signal.SIGSTOP)
    assert is_held(system.files().lease)
    second = system.start_host()
    assert second.process.wait(30) == FailureClass.LEASE_HELD
    os.kill(holder.jvm.pid, signal.SIGSTOP)  # so that it can't end by itself
    os.kill(host.process.pid, signal.SIGKILL)
    host.process.wait()
    assert holder.jvm.is_alive()
    assert is_held(system.files().lease)
    host.kill()
    assert not is_held(system.files().lease)


def test_a_host_ends_itself_when_its_lease_is_gone_or_its_parent_dies(system: System) -> None:
    host = system.start_host()
    host.wait_until_running()
    holder = system.holder()
    assert holder.jvm is not None
    system.files().lease.unlink()
    assert host.process.wait(10) == -signal.SIGKILL
    wait_for("its JVM is gone", lambda: holder.jvm is not None and not holder.jvm.is_alive(), 5)
    assert "This host ends itself: the lease" in host.log.read_text()

    begin = "import subprocess, sys, time; subprocess.Popen(sys.argv[1:], start_new_session=True); time.sleep(1000)"
    host = system.start_host((sys.executable, "-c", begin), arguments=("--run-id", "a run"))
    host.wait_until_running()
    holder = system.holder()
    assert holder.jvm is not None and holder.host.pid != host.process.pid
    host.process.kill()
    assert wait_until_dead(holder.host, 10) and wait_until_dead(holder.jvm, 10)
    assert "the process that started it has ended" in host.log.read_text()


def test_a_driver_that_lost_its_lease_while_it_was_stopped_commits_nothing_when_it_goes_on(system: System) -> None:
    """The worst case: the lease's file is deleted, another host takes over, and then the first one wakes up."""
    first = system.start_host(arguments=("--run-id", "first"))
    first.wait_until_running()
    system.publish([Record(CLICKS, b"k", b"one")])
    wait_for_rows(system, 1)
    wait_for("it has nothing more to do", lambda: idle(system), 30)
    stale = system.holder()
    assert stale.jvm is not None
    os.killpg(first.process.pid, signal.SIGSTOP)
    system.files().lease.unlink()
    second = system.start_host(arguments=("--run-id", "second"))
    second.wait_until_running()
    system.publish([Record(CLICKS, b"k", b"two")])
    wait_for_rows(system, 2)
    os.killpg(first.process.pid, signal.SIGCONT)
    system.publish([Record(CLICKS, b"k", b"three")])
    assert wait_until_dead(stale.host, 10) and wait_until_dead(stale.jvm, 10)
    wait_for_rows(system, 3)
    assert sorted(str(row["body"]) for row in bronze(system)) == ["b'one'", "b'three'", "b'two'"]
    runs = [run for table, run, _ in system.commits() if table == "bronze/clicks"]
    assert runs == sorted(runs) and set(runs) == {"first", "second"}
    checkpoint = Path(system.settings.checkpoint_root, "bronze", CLICKS, "g000001", "spark", "commits")
    created = 1

    def is_noted_once() -> bool:
        """A batch is in the table shortly before it is in the checkpoint."""
        batches = [name for name in os.listdir(checkpoint) if name.isdigit()]
        return created + len(batches) == sum(table == "bronze/clicks" for table, _, _ in system.commits())

    wait_for("each batch is once in the table and once in the checkpoint", is_noted_once, 30)


def test_a_broker_that_is_away_at_the_start_and_in_between_costs_nothing(system: System) -> None:
    create_missing_topics(system.connection, HubSettings(), INPUT_HUBS)
    system.publish([Record(CLICKS, b"k", b"before")])
    system.broker.stop()
    host = system.start_host()
    wait_for("the host says why it waits", lambda: "waits for the hub" in host.log.read_text())
    assert f"127.0.0.1:{system.broker.port} does not answer" in host.log.read_text()
    progress = StreamProgress.read(system.files().progress)
    assert progress is not None and progress.phase == WAITING
    system.broker.start()
    wait_for_rows(system, 1)

    assert system.broker.process is not None
    os.kill(system.broker.process.pid, signal.SIGKILL)
    system.broker.process.wait()
    time.sleep(60)
    system.broker.start()
    system.publish([Record(CLICKS, b"k", b"after")])
    code = host.process.poll()
    if code is not None:  # it may wait or give up to be started again, but must not call it the wrong name
        assert code == FailureClass.SURROUNDINGS
        host = system.start_host()
    wait_for_rows(system, 2)
    assert sorted(str(row["body"]) for row in bronze(system)) == ["b'after'", "b'before'"]


def test_a_person_may_accept_that_the_hub_lost_records(system: System) -> None:
    create_missing_topics(system.connection, HubSettings(partitions=1), INPUT_HUBS)
    host = system.start_host()
    system.publish([Record(CLICKS, b"k", b"one")])
    wait_for_rows(system, 1)
    running = system.command("accept-loss", "bronze", CLICKS)
    assert running.returncode == 1 and "terminate its run first" in running.stderr
    assert host.stop() == 0
    system.publish([Record(CLICKS, b"k", b"never read"), Record(CLICKS, b"k", b"kept")])
    client = AdminClient({"bootstrap.servers": system.broker.servers})
    for answer in client.delete_records([TopicPartition(CLICKS, 0, 2)]).values():
        answer.result(10)
    host = system.start_host()
    assert host.wait_for_exit() == FailureClass.SOURCE_DATA_LOST
    failure = Failure.read(system.files().failure)
    assert failure is not None and "tidewatch accept-loss" in failure.cure
    accepted = system.command("accept-loss", "bronze", CLICKS)
    assert accepted.returncode == 0, accepted.stderr
    assert "partition 0: 1 record, from number 1 to 1" in accepted.stdout
    host = system.start_host()
    wait_for_rows(system, 2)
    assert sorted(str(row["body"]) for row in bronze(system)) == ["b'kept'", "b'one'"]


def test_a_full_disk_is_a_clear_error_and_no_half_table(system: System, tmp_path: Path) -> None:
    """The lake is a small disk of its own. When the host gave up, the disk grows and the host starts again."""
    lake, code = tmp_path / "lake", tmp_path / "code"
    lake.mkdir()
    twice = (
        f'mount -t tmpfs -o size=6m tidewatch-test "{lake}" && "$@"; echo $? > "{code}"; '
        f'mount -o remount,size=400m "{lake}" && exec "$@"'
    )
    environment = {"TIDEWATCH_LAKE": str(lake), "TIDEWATCH_STREAM_DISK_FLOOR_MB": "1"}
    host = system.start_host(("unshare", "-rm", "sh", "-c", twice, "sh"), **environment)
    host.wait_until_running()
    system.publish([Record(CLICKS, None, os.urandom(900_000)) for _ in range(30)])
    wait_for("the host gives up", lambda: code.exists() and code.read_text() != "")
    assert int(code.read_text()) == FailureClass.SURROUNDINGS
    said = [line.partition(" ERROR ")[2] for line in host.log.read_text().splitlines() if "Z ERROR " in line[:30]]
    assert any(line.startswith("bronze, query clicks: The disk is full; nothing was half written.") for line in said)
    assert "Free some space" in host.log.read_text()
    log = Path(f"/proc/{host.process.pid}/root{lake}", "bronze", CLICKS, "_delta_log")  # as the host sees it
    wait_for("all rows", lambda: rows_in_log(log) >= 30)
    time.sleep(2)
    assert rows_in_log(log) == 30


def rows_in_log(log: Path) -> int:
    """Rows of a table that is only appended to, by its log."""
    actions = [json.loads(line) for commit in log.glob("*.json") for line in commit.read_text().splitlines()]
    return sum(json.loads(action["add"]["stats"])["numRecords"] for action in actions if "add" in action)


def test_places_that_cannot_be_written_are_named_before_a_jvm_starts(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    system = System(tmp_path / "home")
    for environment, kind, said in [
        ({"TIDEWATCH_HOME": str(file)}, FailureClass.SETTINGS, "can't be written"),
        ({"TIDEWATCH_LAKE": str(file / "lake")}, FailureClass.SETTINGS, f"{file} is no folder"),
        ({"TIDEWATCH_STREAM_DISK_FLOOR_MB": str(10**9)}, FailureClass.SURROUNDINGS, "MB are free"),
        ({"TIDEWATCH_HUB_PARTITIONS": "0"}, FailureClass.SETTINGS, "TIDEWATCH_HUB_PARTITIONS=0 is refused"),
        ({"TIDEWATCH_JARS": str(tmp_path)}, FailureClass.SETTINGS, "run `make setup`"),
    ]:
        host = system.start_host(**environment)
        assert host.wait_for_exit(30) == kind
        assert said in host.log.read_text()


def test_a_hub_that_never_comes_is_given_up_for_a_later_try(tmp_path: Path) -> None:
    system = System(tmp_path / "home", TIDEWATCH_HUB_KAFKA_SERVERS=f"127.0.0.1:{free_port()}")
    host = system.start_host(TIDEWATCH_STREAM_HUB_WAIT_SECONDS="1")
    assert host.wait_for_exit() == FailureClass.SURROUNDINGS
    failure = Failure.read(system.files().failure)
    assert failure is not None and "does not answer" in failure.what
    host = system.start_host()
    wait_for("it waits", lambda: "waits for the hub" in host.log.read_text())
    assert host.stop() == 0  # waiting does not keep it from stopping

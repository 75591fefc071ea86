"""`tidewatch traffic` against a real broker."""

import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from bench.rig import wait_for
from hub import INPUT_HUBS
from hub.ledger import TRACE_HEADER, digest, read_ledger
from hub.topics import partition_counts
from tests.system import System

pytestmark = pytest.mark.slow

Place = tuple[str, int, int]


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    """One for all of this module: each run of traffic is told by its trace."""
    with System(tmp_path_factory.mktemp("traffic")) as running:
        yield running


def hub_contents(system: System, run: str) -> dict[Place, tuple[str, str]]:
    """Every record of a run that the hub has: its place, digest and trace."""
    consumer = Consumer({**system.connection.client_options(), "group.id": "test", "enable.auto.commit": False})
    counts = partition_counts(system.connection)
    partitions = [TopicPartition(hub, number, 0) for hub in INPUT_HUBS for number in range(counts[hub])]
    size = sum(consumer.get_watermark_offsets(partition, timeout=10)[1] for partition in partitions)
    consumer.assign(partitions)
    found: dict[Place, tuple[str, str]] = {}
    seen = 0
    while seen < size:
        for message in consumer.consume(1000, timeout=10):
            hub, partition, offset = message.topic(), message.partition(), message.offset()
            assert message.error() is None and hub is not None and partition is not None and offset is not None
            seen += 1
            trace = dict(message.headers() or []).get(TRACE_HEADER)
            assert isinstance(trace, bytes)
            if trace.startswith(run.encode()):
                found[hub, partition, offset] = (digest(message.value()), trace.decode())
    consumer.close()
    return found


def test_every_record_in_the_hub_has_its_line_and_every_line_its_record(system: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    done = system.command(
        *("traffic", "all", "--rate", "1500", "--seconds", "4", "--ledger", str(ledger), "--seed", "1"),
        *("--bad-fraction", "0.05", "--duplicate-fraction", "0.05", "--late-fraction", "0.05"),
    )
    assert done.returncode == 0, done.stderr
    contents = read_ledger(ledger)
    lines = {
        (e.hub, e.partition, e.sequence_number): (e.digest, f"{contents.run}/{e.number}") for e in contents.entries
    }
    assert len(lines) > 5000
    assert lines == hub_contents(system, contents.run)
    assert contents.closed and not contents.unconfirmed
    assert f"{len(lines):,} records acknowledged, 0 not" in done.stderr


def test_a_killed_generator_keeps_every_line_it_promised(system: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    process = system.start_command(
        "traffic", "all", "--rate", "3000", "--ledger", str(ledger), stderr=subprocess.DEVNULL
    )
    wait_for("a few thousand lines", lambda: ledger.exists() and ledger.stat().st_size > 500_000, 60)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    contents = read_ledger(ledger)
    assert not contents.closed
    in_hub = hub_contents(system, contents.run)
    for entry in contents.entries:
        assert in_hub[entry.hub, entry.partition, entry.sequence_number][0] == entry.digest


def test_a_broker_that_goes_away_and_comes_back_costs_no_record(system: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    arguments = ("traffic", "all", "--rate", "400", "--seconds", "15", "--ledger", str(ledger))
    process = system.start_command(*arguments, stderr=subprocess.PIPE)
    wait_for("first lines", lambda: ledger.exists() and ledger.stat().st_size > 20_000, 60)
    assert system.broker.process is not None
    os.kill(system.broker.process.pid, signal.SIGKILL)
    system.broker.process.wait()
    system.broker.start()
    _, said = process.communicate(timeout=120)
    assert process.returncode == 0, said
    contents = read_ledger(ledger)
    assert contents.closed and not contents.unconfirmed
    assert len(contents.entries) > 5000
    in_hub = hub_contents(system, contents.run)
    for entry in contents.entries:
        assert in_hub[entry.hub, entry.partition, entry.sequence_number][0] == entry.digest


def test_ctrl_c_closes_the_ledger(system: System, tmp_path: Path) -> None:
    ledger = tmp_path / "ledger"
    process = system.start_command("traffic", "clicks", "--ledger", str(ledger), stderr=subprocess.PIPE)
    wait_for("first lines", lambda: ledger.exists() and ledger.stat().st_size > 2000, 60)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 0, said
    assert read_ledger(ledger).closed


def test_wrong_calls_are_refused_with_a_sentence(system: System, tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    for arguments, said in [
        (("clicks", "--rate", "-1"), "not in the range"),
        (("clicks", "--bad-fraction", "0.7", "--late-fraction", "0.7"), "add up to more than 1"),
        (("nothing",), "is not one of"),
        (("clicks", "--seconds", "1", "--ledger", str(tmp_path / "there")), "exists already"),
    ]:
        done = system.command("traffic", *arguments)
        assert done.returncode != 0
        assert said in done.stderr

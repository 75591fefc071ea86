"""Everything together: `tidewatch up` with its daemon, webserver, broker and traffic, as a user runs it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from bench.rig import Rig, wait_for
from hub import INPUT_HUBS
from processes.ports import free_port
from streaming.lease import is_held
from tests.system import System

pytestmark = pytest.mark.slow

OBSERVATIONS = """{ assetNodes { assetKey { path } assetObservations(limit: 1) {
    metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } } } } }"""


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Rig]:
    with Rig(tmp_path / "home") as running:
        yield running


def test_a_day_in_the_life(up: Rig, tmp_path: Path) -> None:
    """One start of everything serves all of these, because a start is what costs."""
    up.wait_for_rows()
    assert [(run["jobName"], run["status"]) for run in up.runs()] == [("bronze", "STARTED")]

    # The figures reach Dagster as numbers that it plots.
    def figures() -> dict[str, dict[str, float]]:
        nodes = up.graphql(OBSERVATIONS)["assetNodes"]
        return {
            "/".join(node["assetKey"]["path"]): {
                entry["label"]: entry.get("intValue", entry.get("floatValue"))
                for entry in node["assetObservations"][0]["metadataEntries"]
            }
            for node in nodes
            if node["assetObservations"]
        }

    wait_for("every table is observed", lambda: figures().keys() == {f"bronze/{hub}" for hub in INPUT_HUBS}, 60)
    assert all(table["rows since start"] > 0 and "lag in records" in table for table in figures().values())

    # Everything fits a small machine, with room for the streams that join later.
    resident = sum(process.memory_info().rss for process in up.processes()) / 2**30
    assert resident < 3.0, f"{resident:.1f} GB"

    # A second start on the same home is refused, and hurts nothing.
    second = up.command("up")
    assert second.returncode == 1
    assert f"already runs on {up.home} as process" in second.stderr

    # The host's whole group is killed in the middle of traffic: Dagster starts the stream again, nothing is lost.
    ledger = tmp_path / "ledger"
    arguments = (
        "traffic",
        "all",
        "--rate",
        "1000",
        "--seconds",
        "20",
        "--bad-fraction",
        "0.02",
        "--ledger",
        str(ledger),
    )
    traffic = up.start_command(*arguments, stderr=subprocess.DEVNULL)
    time.sleep(6)
    holder = up.holder()
    assert holder.run_id == up.runs()[0]["runId"]
    os.killpg(holder.host.pid, signal.SIGKILL)
    wait_for("the run failed and another is active", lambda: up.statuses()[:2] == ["STARTED", "FAILURE"], 90)
    assert traffic.wait(120) == 0
    audit = up.audit(ledger)
    assert audit["clean"] and audit["acknowledged"] > 15_000, audit

    # Ctrl-C stops everything in order and leaves nothing running; the next start goes on, on the same records.
    up.stop()
    assert not up.processes()
    assert not is_held(up.files().lease)
    assert "Stopped. The next start goes on from here." in up.log.read_text()
    up.start()
    up.wait_for_rows()
    assert up.statuses()[:3] == ["STARTED", "SUCCESS", "FAILURE"]
    audit = up.audit(ledger, wait=0)
    assert audit["clean"], audit

    # Terminated by a person it stops in order and stays stopped over a restart of everything, until a person launches.
    up.terminate()
    wait_for("the run is canceled", lambda: up.statuses()[0] == "CANCELED", 60)
    wait_for("its host is gone", lambda: not is_held(up.files().lease), 60)
    up.stop()
    stopped_at = datetime.now(UTC).isoformat()
    up.start()

    def looked_again() -> bool:
        health = up.health()
        return health is not None and health.looked_at > stopped_at

    wait_for("the supervisor looks", looked_again, 120)
    time.sleep(10)
    assert up.statuses()[:2] == ["CANCELED", "SUCCESS"]
    assert up.status()["state"] == "stopped by you"
    up.launch()
    up.wait_for_rows()
    up.stop()
    assert not up.processes()


def test_a_taken_port_is_told_before_anything_starts(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for variable in ("TIDEWATCH_DAGSTER_PORT", "TIDEWATCH_HUB_PORT"):
            system = System(tmp_path / variable, **{variable: str(port)})
            done = system.command("up")
            assert done.returncode == 1
            assert str(port) in done.stderr and variable in done.stderr


def test_doctor_says_what_is_wrong_and_how_to_cure_it(tmp_path: Path) -> None:
    system = System(tmp_path / "home")
    healthy = system.command("doctor")
    assert healthy.returncode == 0, healthy.stdout
    assert {line.split()[1] for line in healthy.stdout.splitlines()} == {"java", "jars", "home", "lake", "hub", "port"}
    (tmp_path / "file").write_text("")
    system.environment |= {"TIDEWATCH_JARS": str(tmp_path), "TIDEWATCH_LAKE": str(tmp_path / "file" / "lake")}
    system.environment |= {"TIDEWATCH_HUB_KAFKA_SERVERS": f"127.0.0.1:{free_port()}"}
    sick = system.command("doctor")
    assert sick.returncode == 1
    assert "run `make setup`" in sick.stdout
    assert "set TIDEWATCH_LAKE" in sick.stdout
    assert "does not answer" in sick.stdout

"""Everything together: `tidewatch up` with its daemon, webserver, broker and traffic, as a user runs it."""

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hub import INPUT_HUBS
from processes.ports import free_port
from streaming.lease import Holder, is_held
from tests.reaper import MARK
from tests.system import System, wait_for

pytestmark = pytest.mark.slow

RUNS = "{ runsOrError { ... on Runs { results { runId jobName status } } } }"
OBSERVATIONS = """{ assetNodes { assetKey { path } assetObservations(limit: 1) {
    metadataEntries { label ... on IntMetadataEntry { intValue } ... on FloatMetadataEntry { floatValue } } } } }"""
TERMINATE = 'mutation { terminateRun(runId: "RUN") { __typename } }'
LAUNCH = """mutation { launchRun(executionParams: { selector: { repositoryLocationName: "tidewatch",
    repositoryName: "__repository__", jobName: "bronze" }, runConfigData: {} }) { __typename } }"""


class Up:
    """`tidewatch up` in a process of its own."""

    def __init__(self, home: Path) -> None:
        self.system = System(
            home,
            TIDEWATCH_STREAM_REPORT_SECONDS="5",
            TIDEWATCH_TRAFFIC_RATE="60",
            TIDEWATCH_DAGSTER_PORT=str(free_port()),
        )
        self.log = home.parent / "up.log"
        self.process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = self.system.start_command("up", stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0, self.log.read_text()

    def status(self) -> dict[str, Any]:
        done = self.system.command("status", "--json")
        assert done.returncode == 0, done.stderr
        state: dict[str, Any] = json.loads(done.stdout)["bronze"]
        return state

    def wait_for_rows(self) -> None:
        def arrive() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            state = self.status()
            return state["state"] == "running" and all(query["total_rows"] for query in state["queries"])

        wait_for("bronze runs with rows arriving in each table", arrive, 180)

    def graphql(self, query: str) -> dict[str, Any]:
        port = self.system.environment["TIDEWATCH_DAGSTER_PORT"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/graphql",
            json.dumps({"query": query}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: dict[str, Any] = json.loads(answer.read())["data"]
            return data

    def runs(self) -> list[dict[str, str]]:
        """Newest first."""
        runs: list[dict[str, str]] = self.graphql(RUNS)["runsOrError"]["results"]
        return runs

    def processes(self) -> list[psutil.Process]:
        """Every process that works on this home."""
        found = []
        for process in psutil.process_iter():
            try:
                environment = process.environ()
            except psutil.Error:
                continue
            same = environment.get("TIDEWATCH_HOME") == str(self.system.home) and MARK in environment
            if same and process.pid != os.getpid():
                found.append(process)
        return found


@pytest.fixture
def up(tmp_path: Path) -> Iterator[Up]:
    running = Up(tmp_path / "home")
    running.start()
    yield running
    assert running.process is not None
    if running.process.poll() is None:
        running.stop()


def test_a_day_in_the_life(up: Up, tmp_path: Path) -> None:
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
    second = up.system.command("up")
    assert second.returncode == 1
    assert f"already runs on {up.system.home} as process" in second.stderr

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
    traffic = up.system.start_command(*arguments, stderr=subprocess.DEVNULL)
    time.sleep(6)
    holder = Holder.read(up.system.files.lease)
    assert holder is not None and holder.run_id == up.runs()[0]["runId"]
    os.killpg(holder.host.pid, signal.SIGKILL)
    wait_for("the run failed and another is active", lambda: statuses(up)[:2] == ["STARTED", "FAILURE"], 90)
    assert traffic.wait(120) == 0
    audit = up.system.audit(ledger)
    assert audit["clean"] and audit["acknowledged"] > 15_000, audit

    # Terminated by a person it stops in order and stays stopped, until a person launches it.
    up.graphql(TERMINATE.replace("RUN", up.runs()[0]["runId"]))
    wait_for("the run is canceled", lambda: statuses(up)[0] == "CANCELED", 60)
    wait_for("its host is gone", lambda: not is_held(up.system.files.lease), 60)
    time.sleep(10)
    assert statuses(up) == ["CANCELED", "FAILURE"]
    assert up.status()["state"] == "stopped"
    up.graphql(LAUNCH)
    up.wait_for_rows()

    # Ctrl-C stops everything in order and leaves nothing running.
    up.stop()
    assert not up.processes()
    assert not is_held(up.system.files.lease)
    assert "Stopped. The next start goes on from here." in up.log.read_text()

    # The next start goes on with the stream, on the same records.
    up.start()
    up.wait_for_rows()
    assert statuses(up)[:3] == ["STARTED", "SUCCESS", "CANCELED"]
    audit = up.system.audit(ledger, wait=0)
    assert audit["clean"], audit
    up.stop()
    assert not up.processes()


def statuses(up: Up) -> list[str]:
    return [run["status"] for run in up.runs()]


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

"""Streams that always come back, and never twice: real kills and hangs under a real daemon."""

import http.server
import itertools
import json
import os
import signal
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.rig import CODE_SERVER, DAEMON, FAULTS, Rig, wait_for
from hub import INPUT_HUBS

pytestmark = pytest.mark.slow

BACK_SECONDS = 90


class Webhook:
    """Takes what is posted to it, as a pager would."""

    def __init__(self) -> None:
        self.messages: list[dict[str, str]] = []
        taken = self.messages

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                taken.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
                self.send_response(204)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.port = self.server.server_address[1]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    taking = Webhook()
    threading.Thread(target=taking.server.serve_forever, daemon=True).start()
    yield taking
    taking.server.shutdown()
    taking.server.server_close()


@pytest.fixture
def up(tmp_path: Path, webhook: "Webhook") -> Iterator[Rig]:
    with Rig(
        tmp_path / "home",
        TIDEWATCH_ALERT_WEBHOOK=f"http://127.0.0.1:{webhook.port}/secret",
        TIDEWATCH_SUPERVISOR_SILENCE_SECONDS="10",
        TIDEWATCH_SUPERVISOR_QUIET_SECONDS="20",
        TIDEWATCH_SUPERVISOR_LONGEST_WAIT_SECONDS="5",
        TIDEWATCH_STREAM_STOP_SECONDS="5",
        HANGS=str(tmp_path),
        PYTHONPATH=str(FAULTS),
    ) as running:
        yield running


def comes_back(up: Rig, hurt: Callable[[], object], said: str) -> None:
    """Hurts the running stream; another run takes over, the old one failed for this reason, and its processes are
    dead before the new one commits."""
    old = up.holder()
    assert old.jvm is not None
    hurt()
    wait_for(f"another run commits after: {said}", lambda: up.took_over(old), BACK_SECONDS)
    assert not old.host.is_alive() and not old.jvm.is_alive()
    ended = next(run for run in up.runs() if run["runId"] == old.run_id)
    assert ended["status"] == "FAILURE"
    reason = {tag["key"]: tag["value"] for tag in ended["tags"]}.get("tidewatch/reason", "")
    assert said in reason, reason


@pytest.mark.timeout(900)
def test_every_death_and_every_hang_is_seen_and_cured(up: Rig, tmp_path: Path) -> None:
    up.wait_for_rows()
    ledger = tmp_path / "ledger"
    with up.traffic(ledger):
        comes_back(up, lambda: os.kill(up.worker(), signal.SIGKILL), "")
        comes_back(up, lambda: os.kill(up.holder().host.pid, signal.SIGKILL), "was killed by signal 9")
        comes_back(up, lambda: os.kill(up.jvm(), signal.SIGKILL), "its JVM ended")

        # Stopped, not dead: what a stale driver would be. It must be gone before its successor writes.
        comes_back(up, lambda: os.kill(up.jvm(), signal.SIGSTOP), "its host has not answered for")
        comes_back(up, lambda: os.kill(up.holder().host.pid, signal.SIGSTOP), "its host has not answered for")

        def hang(kind: str) -> None:
            before = up.counts().get("restarts_hung", 0)
            (tmp_path / kind).touch()
            wait_for(f"the {kind} is seen", lambda: up.counts().get("restarts_hung", 0) > before, BACK_SECONDS)
            (tmp_path / kind).unlink()

        comes_back(up, lambda: hang("deadlock"), "is stuck")
        comes_back(up, lambda: hang("task"), "is stuck")

        # The code server is what would tell Dagster that a run's process died.
        def blind_and_kill() -> None:
            dying = up.worker()
            os.kill(up.service(CODE_SERVER), signal.SIGKILL)
            time.sleep(0.5)
            os.kill(dying, signal.SIGKILL)

        comes_back(up, blind_and_kill, "the process of its run is gone")

        # The daemon is what looks; `up` starts it again.
        def kill_daemon_and_host() -> None:
            os.kill(up.service(DAEMON), signal.SIGKILL)
            os.killpg(up.holder().host.pid, signal.SIGKILL)

        comes_back(up, kill_daemon_and_host, "was killed by signal 9")

    audit = up.audit(ledger)
    assert audit["clean"] and audit["acknowledged"] > 10_000, audit
    for hub in INPUT_HUBS:
        runs = [run for table, run, _ in up.commits() if table == f"bronze/{hub}"]
        changes = 1 + sum(1 for before, after in itertools.pairwise(runs) if before != after)
        assert changes == len(set(runs)), "a run committed after its successor had"
    assert up.counts()["restarts_hung"] == 4 and up.counts()["restarts_lost"] >= 1


@pytest.mark.timeout(900)
def test_a_code_server_that_was_asked_to_end_is_replaced(tmp_path: Path) -> None:
    """It lives on with its runs, and launches no more: a stream that fails then would never come back."""
    with Rig(tmp_path / "home", TIDEWATCH_SUPERVISOR_STREAMS='["bronze", "heartbeat"]') as up:
        up.wait_for_rows()
        up.wait_for_rows("heartbeat")
        asked, other = up.service(CODE_SERVER), up.holder("heartbeat")
        os.kill(asked, signal.SIGTERM)
        comes_back(up, lambda: os.killpg(up.holder().host.pid, signal.SIGKILL), "was killed by signal 9")
        assert up.has_new_code_server(asked)
        assert up.holder("heartbeat") == other and other.host.is_alive(), "the other stream was not hurt"
        up.terminate()
        wait_for("it is stopped", lambda: up.status()["state"] == "stopped by you", 60)
        assert any("bronze stopped" in line for line in logs(up, up.runs()[0]["runId"]))


@pytest.mark.timeout(900)
def test_new_code_is_taken_up_and_what_stands_still_is_replaced(tmp_path: Path) -> None:
    with Rig(tmp_path / "home") as up:
        up.wait_for_rows()
        first, code_server = up.holder(), up.service(CODE_SERVER)
        up.launch("restart")
        wait_for("another run took over", lambda: up.took_over(first), 2 * BACK_SECONDS)
        assert up.has_new_code_server(code_server), "what supervises keeps the old code"
        assert up.statuses() == ["STARTED", "SUCCESS"]
        wait_for("the job has ended", lambda: up.statuses("restart") == ["SUCCESS"], 30)

        # Both stand still: nobody would look after the stream any more.
        held, code_server, daemon = up.holder(), up.service(CODE_SERVER), up.service(DAEMON)
        for stopped in (code_server, daemon):
            os.kill(stopped, signal.SIGSTOP)
        wait_for("another code server answers", lambda: up.has_new_code_server(code_server), 180)
        wait_for("the daemon is replaced", lambda: not psutil.pid_exists(daemon), 180)
        replaced_at = datetime.now(UTC).isoformat()

        def looks_again() -> bool:
            health = up.health()
            return health is not None and health.looked_at > replaced_at

        wait_for("the supervisor looks again", looks_again, 120)
        assert up.holder() == held and held.host.is_alive(), "the stream was hurt"


CHECK = """{ assetNodes { assetKey { path } assetChecksOrError { ... on AssetChecks { checks { name
    executionForLatestMaterialization { evaluation { success severity description } } } } } } }"""


def evaluations(up: Rig) -> dict[str, dict[str, Any]]:
    """The latest evaluation of each table's health check, as the Dagster UI shows it."""
    found = {}
    for node in up.graphql(CHECK)["assetNodes"]:
        for check in node["assetChecksOrError"].get("checks", ()):
            execution = check["executionForLatestMaterialization"]
            if check["name"] == "stream_health" and execution and execution["evaluation"]:
                found["/".join(node["assetKey"]["path"])] = execution["evaluation"]
    return found


@pytest.mark.timeout(900)
def test_persons_decide_and_failures_that_no_restart_cures_wait_for_them(up: Rig, webhook: Webhook) -> None:
    up.wait_for_rows()
    first = up.holder()

    # Launched twice: the second run ends by itself and hurts nothing.
    up.launch()
    wait_for("the second run is refused", lambda: up.statuses() == ["FAILURE", "STARTED"], 60)
    reasons = {tag["key"]: tag["value"] for tag in up.runs()[0]["tags"]}
    assert reasons["tidewatch/failure"] == "LEASE_HELD"
    assert f"is held by process {first.host.pid} of run {first.run_id}" in " ".join(logs(up, up.runs()[0]["runId"]))
    assert up.holder() == first and first.host.is_alive()

    # New code is taken up without a person having to stop anything.
    up.launch("restart")
    wait_for("another run took over", lambda: up.took_over(first), 2 * BACK_SECONDS)
    assert next(run for run in up.runs() if run["runId"] == first.run_id)["status"] == "SUCCESS"
    up.wait_for_rows()

    # Launched while it is stopping (here: stuck while it stops), it waits for that and runs.
    stopping = up.holder()
    os.killpg(stopping.host.pid, signal.SIGSTOP)
    up.terminate()
    up.launch()
    wait_for("the launched run took over", lambda: up.took_over(stopping), BACK_SECONDS)
    assert up.statuses()[:2] == ["STARTED", "CANCELED"]
    up.wait_for_rows()

    # A new code server knows nothing of the runs of the last one: terminated, they stop in order all the same.
    code_server = up.service(CODE_SERVER)
    os.kill(code_server, signal.SIGKILL)
    wait_for("there is another code server", lambda: up.has_new_code_server(code_server), 60)

    # A checkpoint that is gone is for a person: held at once, shown with its cure, and released by a launch.
    up.terminate()
    wait_for("it is stopped", lambda: up.status()["state"] == "stopped by you", 60)
    assert up.statuses()[0] == "CANCELED"
    assert any("bronze stopped" in line for line in logs(up, up.runs()[0]["runId"]))
    checkpoint = Path(up.settings.checkpoint_root, "bronze", "clicks")
    checkpoint.rename(checkpoint.with_name("moved"))
    runs = len(up.runs())
    up.launch()
    wait_for("it is blocked", lambda: up.status()["state"] == "blocked", BACK_SECONDS)
    assert "has no checkpoint" in up.status()["note"] and "Restore the checkpoint" in up.status()["note"]
    wait_for("the check fails", lambda: evaluations(up)["bronze/clicks"]["success"] is False, 30)
    assert "Restore the checkpoint" in evaluations(up)["bronze/clicks"]["description"]
    time.sleep(15)
    assert len(up.runs()) == runs + 1
    wait_for("a pager hears of it", lambda: any("has no checkpoint" in each["text"] for each in webhook.messages), 60)
    assert not any(each["class"] == "LEASE_HELD" for each in webhook.messages)
    checkpoint.with_name("moved").rename(checkpoint)
    up.launch()
    up.wait_for_rows()
    wait_for("the check passes", lambda: evaluations(up)["bronze/clicks"]["success"] is True, 30)

    def metrics() -> str:
        url = f"http://127.0.0.1:{up.environment['TIDEWATCH_METRICS_PORT']}/metrics"
        answer: bytes = urllib.request.urlopen(url, timeout=10).read()
        return answer.decode()

    figure = 'tidewatch_query_retention_left_seconds{query="clicks",stream="bronze"}'
    wait_for("the lag is known", lambda: figure in metrics(), 30)
    assert 'tidewatch_stream_state{state="running",stream="bronze"} 1.0' in metrics()
    assert 'tidewatch_supervisor_actions_total{action="holds",stream="bronze"} 1.0' in metrics()


LOGS = """{ logsForRun(runId: "%s") { ... on EventConnection { events { ... on MessageEvent { message } } } } }"""


def logs(up: Rig, run_id: str) -> list[str]:
    events = up.graphql(LOGS % run_id)["logsForRun"]["events"]
    return [event["message"] for event in events if "message" in event]

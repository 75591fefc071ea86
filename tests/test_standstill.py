"""A service that is stopped, not dead, is ended; one that answers, or of which nobody knows, is not."""

import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from dagster import DagsterInstance
from dagster._daemon.types import DaemonHeartbeat

from bench.rig import wait_for
from orchestration.command import standstill
from orchestration.command.services import Service
from orchestration.command.standstill import Listener, daemon_beats
from processes.identity import ProcessIdentity

# Touches a file all the time, which is its sign.
BUSY = "import pathlib, sys, time\nwhile True: pathlib.Path(sys.argv[1]).touch(); time.sleep(0.05)"
PATIENCE = 1.0


@pytest.fixture
def service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(standstill, "ASK_SECONDS", 0.1)
    made = Service("daemon", [sys.executable, "-c", BUSY, str(tmp_path / "sign")], tmp_path / "log", {})
    made.start()
    yield made
    made.stop()


@pytest.fixture
def listener(service: Service, tmp_path: Path) -> Iterator[Listener]:
    def signs() -> bool:
        sign = tmp_path / "sign"
        return sign.exists() and time.time() - sign.stat().st_mtime < 0.5

    made = Listener(service, signs, PATIENCE)
    made.start()
    yield made
    made.stop()


def looks(listener: Listener, service: Service, seconds: float) -> set[int]:
    seen = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        listener.look_after()
        service.look_after()
        seen.add(service.pid)
        time.sleep(0.05)
    return seen


def test_a_service_that_was_stopped_is_replaced(
    listener: Listener, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    first = service.pid
    assert looks(listener, service, 3) == {first}, "it was replaced although it answers"
    stopped = ProcessIdentity.of(first)
    assert stopped is not None
    os.kill(first, signal.SIGSTOP)
    assert len(looks(listener, service, 7)) == 2
    assert not stopped.is_alive() and service.is_running
    assert "The daemon has not answered for" in capsys.readouterr().out


def test_a_process_that_is_new_has_its_time_to_start(
    service: Service, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    listener = Listener(service, lambda: False, PATIENCE)
    assert len(looks(listener, service, 2)) == 1
    monkeypatch.setattr(standstill, "START_SECONDS", 1)
    listener.look_after()
    wait_for("it ends", lambda: not service.is_running, 5)


def test_after_all_of_it_stood_still_a_service_has_its_time_anew(listener: Listener, service: Service) -> None:
    first = service.pid
    looks(listener, service, 1)
    listener.stop()
    time.sleep(2 * PATIENCE)  # nobody looked
    listener.look_after()
    assert service.is_running and service.pid == first


def test_what_can_not_be_asked_is_not_called_still_but_told_once(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails() -> bool:
        raise OSError("database is locked")

    listener = Listener(service, fails, PATIENCE)
    listener.start()
    assert len(looks(listener, service, 3)) == 1
    listener.stop()
    assert capsys.readouterr().out.count("Whether the daemon answers can't be told: database is locked") == 1


def test_a_heartbeat_is_a_sign_once(tmp_path: Path) -> None:
    (tmp_path / "dagster.yaml").write_text("telemetry: {enabled: false}")
    with DagsterInstance.from_config(str(tmp_path)) as instance:

        def beat(at: float, kind: str = "SENSOR") -> None:
            instance.add_daemon_heartbeat(DaemonHeartbeat(float(at), kind, "one", []))

        beat(100)
        beats = daemon_beats(tmp_path)
        assert not beats(), "it was left by a daemon of earlier"
        beat(101, "SCHEDULER")
        assert not beats(), "others of its threads do not look after streams"
        beat(130)
        assert beats() and not beats()

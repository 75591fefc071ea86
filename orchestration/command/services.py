"""The processes that `tidewatch up` keeps running."""

import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from processes.child import end_group, kill, spawn
from processes.identity import ProcessIdentity

STOP_SECONDS = 15
START_SECONDS = 120
STABLE_SECONDS = 30
FIRST_WAIT_SECONDS = 1.0
LONGEST_WAIT_SECONDS = 60.0


class ServiceError(Exception):
    """A service does not come up; the message says where to look."""


def say(text: str) -> None:
    click.echo(f"{time.strftime('%H:%M:%S')} {text}")


@dataclass
class Service:
    """A child process that is started again when it ends, later each time it ends soon after its start."""

    name: str
    command: list[str]
    log: Path
    environment: dict[str, str]
    process: "subprocess.Popen[str] | None" = None
    started_at: float = 0.0
    ended_at: float | None = None
    wait_seconds: float = FIRST_WAIT_SECONDS

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = spawn(self.command, environment=self.environment, output=log)
        self.started_at, self.ended_at = time.monotonic(), None

    def wait_until(self, ready: Callable[[], bool], give_up: Callable[[float], bool]) -> None:
        """Returns when it is ready, or when `give_up`, which waits the given seconds, says so."""
        deadline = time.monotonic() + START_SECONDS
        while not ready():
            assert self.process is not None
            if (code := self.process.poll()) is not None:
                raise ServiceError(f"The {self.name} ended with code {code} while it started: see {self.log}.")
            if time.monotonic() > deadline:
                raise ServiceError(f"The {self.name} did not answer in {START_SECONDS} s: see {self.log}.")
            if give_up(0.2):
                return

    @property
    def pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    @property
    def is_running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def replace(self) -> None:
        """Ends this one process, which is in nobody's use any more; what it started goes on."""
        if identity := ProcessIdentity.of(self.pid):
            kill(identity)

    def look_after(self) -> None:
        assert self.process is not None
        if (code := self.process.poll()) is None:
            return
        now = time.monotonic()
        if self.ended_at is None:
            self.ended_at = now
            stable = now - self.started_at > STABLE_SECONDS
            self.wait_seconds = FIRST_WAIT_SECONDS if stable else min(self.wait_seconds * 2, LONGEST_WAIT_SECONDS)
            say(f"The {self.name} ended with code {code}; again in {self.wait_seconds:.0f} s ({self.log.name})")
        if now - self.ended_at >= self.wait_seconds:
            self.start()

    def stop(self) -> None:
        if self.process is not None:
            if identity := ProcessIdentity.of(self.process.pid):
                end_group(identity, grace_seconds=STOP_SECONDS)
            self.process.wait()

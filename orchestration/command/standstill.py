"""Services that live but do nothing, stopped or in a deadlock: `tidewatch up` ends them, and starts them again."""

import functools
import threading
import time
from collections.abc import Callable
from pathlib import Path

from orchestration.command.services import START_SECONDS, Service, say

ASK_SECONDS = 5.0
ANSWER_SECONDS = 5
CODE_SERVER_SECONDS = 60.0
# The daemon gives a sign every 30 s.
DAEMON_SECONDS = 90.0
SUPERVISING_DAEMON = "SENSOR"


class Listener:
    """Asks a service again and again, in a thread of its own because one that stands still lets a question wait."""

    def __init__(self, service: Service, gives_a_sign: Callable[[], bool], patience_seconds: float) -> None:
        self._service = service
        self._gives_a_sign = gives_a_sign
        self._patience_seconds = patience_seconds
        self._sign_of: int | None = None
        self._sign_at = self._looked_at = time.monotonic()
        self._told = ""
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._listen, name=f"{service.name}-listener", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._over.set()

    def look_after(self) -> None:
        """Ends the service when it gave no sign for too long; a process that is new may take longer for its first."""
        now = time.monotonic()
        if now - self._looked_at > self._patience_seconds / 2:
            self._sign_at = now  # nobody looked, so that nobody knows whether it stood still or all of this did
        self._looked_at = now
        if not self._service.is_running:
            return
        known = self._sign_of == self._service.pid
        silent = now - max(self._sign_at if known else 0.0, self._service.started_at)
        if silent > (self._patience_seconds if known else START_SECONDS):
            say(f"The {self._service.name} has not answered for {silent:.0f} s; it is replaced")
            self._service.replace()

    def _listen(self) -> None:
        while not self._over.wait(ASK_SECONDS):
            asked = self._service.pid
            if self._sign():
                self._sign_of, self._sign_at = asked, time.monotonic()

    def _sign(self) -> bool:
        """What can't be asked is not called still, but it is told."""
        try:
            return self._gives_a_sign()
        except Exception as error:
            if str(error) != self._told:
                say(f"Whether the {self._service.name} answers can't be told: {error}")
            self._told = str(error)
            return True


def code_server_answers(port: int) -> Callable[[], bool]:
    """That its port takes a connection says nothing: the system does that for a process that is stopped."""
    from dagster._core.errors import DagsterUserCodeUnreachableError
    from dagster._grpc.client import DagsterGrpcClient

    client = DagsterGrpcClient(port=port, host="127.0.0.1")

    def ask() -> bool:
        try:
            client.get_server_id(timeout=ANSWER_SECONDS)
            return True
        except DagsterUserCodeUnreachableError:
            return False

    return ask


def daemon_beats(dagster_home: Path) -> Callable[[], bool]:
    """Whether the thread that looks after the streams has left another heartbeat since it was last asked for."""
    from dagster import DagsterInstance

    @functools.cache
    def instance() -> DagsterInstance:
        return DagsterInstance.from_config(str(dagster_home))

    seen: list[float | None] = []

    def ask() -> bool:
        beat = instance().get_daemon_heartbeats().get(SUPERVISING_DAEMON)
        seen.append(beat.timestamp if beat is not None else None)
        return len(seen) > 1 and seen.pop(0) != seen[0]  # the first may be of a daemon of earlier

    return ask

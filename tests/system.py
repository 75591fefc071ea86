"""A whole Tidewatch in a folder of its own, driven from outside as a user or an operator would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, cast

from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Outcome, Receipt, Record
from processes.child import end_group
from processes.identity import ProcessIdentity
from processes.ports import free_port
from settings import Settings
from streaming.files import StreamFiles
from streaming.lease import is_held
from streaming.progress import StreamProgress

START_SECONDS = 120


def wait_for(what: str, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen in {seconds} s")
        time.sleep(0.1)


class System:
    def __init__(self, home: Path, **environment: str) -> None:
        self.home = home
        self.environment = {
            "TIDEWATCH_HOME": str(home),
            "TIDEWATCH_HUB_PORT": str(free_port()),
            "TIDEWATCH_HUB_CONTROLLER_PORT": str(free_port()),
            "TIDEWATCH_DAGSTER_PORT": str(free_port()),
            "TIDEWATCH_BRONZE_TRIGGER_SECONDS": "1",
            **environment,
        }
        self.settings = Settings(home=home)
        self.files = StreamFiles(self.settings.run_folder, "bronze")
        self.connection = HubConnection(f"127.0.0.1:{self.environment['TIDEWATCH_HUB_PORT']}")
        self.broker = EmbeddedBroker(
            self.settings.hub_folder,
            self.settings.jars,
            port=int(self.environment["TIDEWATCH_HUB_PORT"]),
            controller_port=int(self.environment["TIDEWATCH_HUB_CONTROLLER_PORT"]),
        )
        self._hosts: list[Host] = []

    def __enter__(self) -> Self:
        self.broker.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            for host in reversed(self._hosts):  # only the last may hold the lease that each of them waits for
                host.kill()
        finally:
            self.broker.stop()

    def start_host(self, wrapper: Sequence[str] = (), **environment: str) -> "Host":
        host = Host(self, wrapper, environment)
        self._hosts.append(host)
        return host

    def command(self, *arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command_line(*arguments),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start_command(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(self.command_line(*arguments), env=environment, text=True, **options)

    @staticmethod
    def command_line(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "orchestration.command", *arguments]

    def audit(self, ledger: Path, wait: float = 120) -> dict[str, Any]:
        done = self.command("audit", str(ledger), "--json", "--wait", str(wait))
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == result["clean"]
        return result

    def publish(self, records: Sequence[Record]) -> list[Receipt]:
        """The receipts, in the order of the records."""
        outcomes: dict[int, Outcome] = {}
        with KafkaPublisher(self.connection) as publisher:
            for number, record in enumerate(records):
                publisher.publish(record, partial(outcomes.__setitem__, number))
        receipts = [outcomes[number] for number in range(len(records))]
        assert all(isinstance(receipt, Receipt) for receipt in receipts), receipts
        return cast("list[Receipt]", receipts)

    def total_rows(self) -> int:
        progress = StreamProgress.read(self.files.progress)
        return sum(query.total_rows for query in progress.queries.values()) if progress else 0


class Host:
    """A stream host, started as the Dagster op starts it but without Dagster."""

    def __init__(self, system: System, wrapper: Sequence[str], environment: dict[str, str]) -> None:
        self._system = system
        self.log = system.home / f"host-{time.monotonic_ns()}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "streaming", "bronze"],
                env={**os.environ, **system.environment, **environment},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.identity = ProcessIdentity.of(self.process.pid)

    def wait_until_running(self) -> None:
        def runs() -> bool:
            assert self.process.poll() is None, self.log.read_text()
            return " runs " in self.log.read_text()

        wait_for("the host runs", runs)

    def wait_for_exit(self, seconds: float = START_SECONDS) -> int:
        code = self.process.wait(seconds)
        self.kill()
        return code

    def stop(self) -> int:
        os.kill(self.process.pid, signal.SIGTERM)
        return self.wait_for_exit(60)

    def kill(self) -> None:
        """The whole process group at once, as a machine's death would; returns when its lease is free."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        if self.identity is not None:
            end_group(self.identity, grace_seconds=0)
        self.process.wait()
        wait_for("the lease is free", lambda: not is_held(self._system.files.lease), 10)

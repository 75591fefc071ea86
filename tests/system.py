"""A broker and stream hosts in a folder of their own, driven from outside."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self, cast

from bench.rig import START_SECONDS, STREAM, Home, wait_for
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, Outcome, Receipt, Record
from processes.child import end_group
from processes.identity import ProcessIdentity
from streaming.lease import is_held


class System(Home):
    """With a broker of its own, and hosts without Dagster."""

    def __init__(self, home: Path, **environment: str) -> None:
        super().__init__(home, **{"TIDEWATCH_BRONZE_TRIGGER_SECONDS": "1", **environment})
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

    def start_host(
        self,
        wrapper: Sequence[str] = (),
        arguments: Sequence[str] = (),
        stream: str = STREAM,
        **environment: str,
    ) -> "Host":
        host = Host(self, stream, wrapper, arguments, environment)
        self._hosts.append(host)
        return host

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
        progress = self.progress()
        return sum(query.total_rows for query in progress.queries.values()) if progress else 0


class Host:
    """A stream host, started as the Dagster op starts it but without Dagster."""

    def __init__(
        self,
        system: System,
        stream: str,
        wrapper: Sequence[str],
        arguments: Sequence[str],
        environment: dict[str, str],
    ) -> None:
        self._system = system
        self.stream = stream
        self.log = system.home / f"host-{time.monotonic_ns()}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*wrapper, sys.executable, "-m", "streaming", stream, *arguments],
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
        wait_for("the lease is free", lambda: not is_held(self._system.files(self.stream).lease), 10)

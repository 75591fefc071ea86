"""The ledger: a line for every record that the hub acknowledged, to hold the tables against later.

A JSON object a line. The first names the run; each next is a record's outcome; the last closes the ledger. A line is
with the operating system before anyone is told of it, so a killed writer loses no line it spoke of; a line cut short
at the end is no line. Every record of a run carries the header `tidewatch-trace`, RUN/NUMBER, so that a record which
reached the hub without reaching the ledger can be explained.
"""

import hashlib
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hub.publisher import NotDelivered, Outcome, Receipt

TRACE_HEADER = "tidewatch-trace"
VERSION = 1


class LedgerError(Exception):
    """A file that can't be written or read as a ledger."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One acknowledged record. `kind` is what the generator meant it to be, `about` what it knows beyond that."""

    number: int
    hub: str
    partition: int
    sequence_number: int
    enqueued_ms: int
    digest: str
    kind: str
    about: dict[str, Any]


@dataclass(frozen=True)
class LedgerContents:
    run: str
    entries: list[Entry]
    unconfirmed: Mapping[int, dict[str, Any]]
    """By their numbers what is known about records that were sent without an acknowledgement."""
    closed: bool
    """False when the writer was killed: records beyond the last line may have reached the hub."""


def digest(body: bytes | None) -> str:
    """Tells bodies apart, null from empty too."""
    return "null" if body is None else hashlib.blake2b(body, digest_size=12).hexdigest()


class LedgerWriter:
    def __init__(self, file: Path, started_at: datetime) -> None:
        self.run = secrets.token_hex(6)
        self.acknowledged = 0
        self.failed = 0
        self._waiting: list[str] = []
        self._waiting_failed = 0
        self._broken = False
        try:
            self._descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600)
        except FileExistsError:
            raise LedgerError(f"{file} exists already: name a new file, each run of traffic has its own.") from None
        except OSError as error:
            raise LedgerError(f"The ledger {file} can't be created: {error.strerror}.") from None
        self._write({"ledger": VERSION, "run": self.run, "started_at": started_at.isoformat()})

    def trace(self, number: int) -> tuple[str, bytes]:
        """The header that ties a record to this ledger."""
        return TRACE_HEADER, f"{self.run}/{number}".encode()

    def add(self, number: int, outcome: Outcome, body: bytes | None, kind: str, about: dict[str, Any]) -> None:
        """Takes an outcome; it counts only after the next `commit`."""
        line: dict[str, Any] = {"n": number, "hub": outcome.hub}
        match outcome:
            case Receipt(partition=partition, sequence_number=sequence_number, enqueued_ms=enqueued_ms):
                line |= {"partition": partition, "sequence_number": sequence_number, "enqueued_ms": enqueued_ms}
                line |= {"digest": digest(body), "kind": kind, "about": about}
            case NotDelivered(reason=reason):
                line |= {"error": reason, "about": about}
                self._waiting_failed += 1
        self._waiting.append(json.dumps(line, separators=(",", ":")))

    def commit(self) -> None:
        """Hands all lines taken so far to the operating system, then counts them."""
        if not self._waiting:
            return
        self._write_whole("".join(f"{line}\n" for line in self._waiting).encode())
        self.failed += self._waiting_failed
        self.acknowledged += len(self._waiting) - self._waiting_failed
        self._waiting, self._waiting_failed = [], 0

    def close(self) -> None:
        if self._broken:
            os.close(self._descriptor)
            return
        self.commit()
        self._write({"closed": True, "acknowledged": self.acknowledged, "failed": self.failed})
        os.fsync(self._descriptor)
        os.close(self._descriptor)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._write_whole(json.dumps(line, separators=(",", ":")).encode() + b"\n")

    def _write_whole(self, lines: bytes) -> None:
        """All of it or nothing: what a full disk cut short is taken back."""
        length = os.fstat(self._descriptor).st_size
        try:
            while lines:
                lines = lines[os.write(self._descriptor, lines) :]
        except OSError as error:
            self._broken = True
            os.ftruncate(self._descriptor, length)
            raise LedgerError(f"The ledger can't be written any more: {error.strerror}.") from None


def read_ledger(file: Path) -> LedgerContents:
    lines = _lines(file)
    try:
        head = next(lines)
        if head.get("ledger") != VERSION:
            raise LedgerError(f"{file} is no ledger of version {VERSION}.")
    except StopIteration:
        raise LedgerError(f"{file} is empty, so it is no ledger.") from None
    entries, unconfirmed, closed = [], {}, False
    for line in lines:
        if line.get("closed"):
            closed = True
        elif "error" in line:
            unconfirmed[line["n"]] = line.get("about", {})
        else:
            entries.append(
                Entry(
                    number=line["n"],
                    hub=line["hub"],
                    partition=line["partition"],
                    sequence_number=line["sequence_number"],
                    enqueued_ms=line["enqueued_ms"],
                    digest=line["digest"],
                    kind=line["kind"],
                    about=line["about"],
                )
            )
    return LedgerContents(head["run"], entries, unconfirmed, closed)


def _lines(file: Path) -> Iterator[dict[str, Any]]:
    try:
        with file.open("rb") as opened:
            for number, raw in enumerate(opened, 1):
                if not raw.endswith(b"\n"):
                    return
                try:
                    line = json.loads(raw)
                except ValueError:
                    line = None
                if not isinstance(line, dict):
                    raise LedgerError(f"Line {number} of {file} is no line of a ledger.")
                yield line
    except OSError as error:
        raise LedgerError(f"The ledger {file} can't be read: {error.strerror}.") from None

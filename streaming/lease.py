"""The lease: who may write for a stream. The JVM holds it, because the JVM is what writes.

A Python process may die, or be stopped, while its JVM goes on to commit; a lock in Python would be free by then.
"""

import fcntl
import json
import struct
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from processes.identity import ProcessIdentity

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TRIES = 10
BETWEEN_TRIES = 0.1


class LeaseHeld(Exception):
    """Another host runs this stream."""


class LeaseLost(Exception):
    """The lease's file was deleted or replaced, so that another host could take it: this one must write no more."""


@dataclass(frozen=True)
class Holder:
    """The processes of the host that took the lease last; whether it still has it, `is_held` tells."""

    host: ProcessIdentity
    jvm: ProcessIdentity | None
    run_id: str | None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None when nobody ever took the lease, or it is being taken right now."""
        try:
            fields = json.loads(file.read_text())
            jvm = ProcessIdentity(**fields["jvm"]) if fields["jvm"] else None
            return cls(ProcessIdentity(**fields["host"]), jvm, fields["run_id"])
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None


class Lease:
    """Held from `take` until the JVM ends. The JVM must not open the file again: closing it would free the lock."""

    def __init__(self, file: Path, opened: Any, lock: Any, holder: Holder) -> None:
        self._file = file
        self._kept_open = (opened, lock)
        self._inode = file.stat().st_ino
        if Holder.read(file) != holder:
            raise LeaseLost(f"the lease {file} was replaced while it was taken")

    @classmethod
    def take(cls, spark: "SparkSession", file: Path, run_id: str | None) -> Self:
        jvm = spark._jvm
        assert jvm is not None
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = jvm.java.io.RandomAccessFile(str(file), "rw")
        channel = opened.getChannel()
        lock = channel.tryLock()
        for _ in range(TRIES):
            if lock is not None:
                break
            time.sleep(BETWEEN_TRIES)
            lock = channel.tryLock()
        if lock is None:
            opened.close()
            raise LeaseHeld(describe_holder(file))
        pid = jvm.java.lang.ProcessHandle.current().pid()
        holder = Holder(ProcessIdentity.current(), ProcessIdentity.of(pid), run_id)
        opened.setLength(0)
        opened.write(holder.to_json().encode())
        channel.force(True)
        return cls(file, channel, lock, holder)

    def check(self) -> None:
        """Raises when the file that is locked is no longer the one that others would lock."""
        try:
            same = self._file.stat().st_ino == self._inode
        except FileNotFoundError:
            same = False
        if not same:
            raise LeaseLost(f"the lease {self._file} is gone or was replaced")


def is_held(file: Path) -> bool:
    """Asks the kernel, without touching the lock."""
    try:
        with file.open("r+") as opened:
            # struct flock: type, whence, start, length, pid; macOS has the offsets first.
            if sys.platform == "darwin":
                form, kind = "qqihh", -2
                question = struct.pack(form, 0, 0, 0, fcntl.F_WRLCK, 0)
            else:
                form, kind = "hhqqi", 0
                question = struct.pack(form, fcntl.F_WRLCK, 0, 0, 0, 0)
            answer = struct.unpack(form, fcntl.fcntl(opened, fcntl.F_GETLK, question))
            return bool(answer[kind] != fcntl.F_UNLCK)
    except FileNotFoundError:
        return False


def describe_holder(file: Path) -> str:
    holder = Holder.read(file)
    if holder is None:
        return f"the lease {file} is held"
    run = f" of run {holder.run_id}" if holder.run_id else ""
    return f"the lease {file} is held by process {holder.host.pid}{run}"

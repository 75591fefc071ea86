"""A process named so that a reused pid is never mistaken for it."""

import functools
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ProcessIdentity:
    pid: int
    started: str
    boot: str

    @classmethod
    def of(cls, pid: int) -> Self | None:
        """The process that has this pid now, or None."""
        started = _started(pid)
        return None if started is None else cls(pid, started, boot_id())

    @classmethod
    def current(cls) -> Self:
        identity = cls.of(os.getpid())
        assert identity is not None
        return identity

    @classmethod
    def from_json(cls, text: str) -> Self | None:
        """None for text that is no identity, such as a file that was cut short."""
        try:
            fields = json.loads(text)
            return cls(int(fields["pid"]), str(fields["started"]), str(fields["boot"]))
        except (ValueError, KeyError, TypeError):
            return None

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    def is_alive(self) -> bool:
        """True while this very process runs; a zombie counts as dead."""
        return self.boot == boot_id() and _started(self.pid) == self.started


@functools.cache
def boot_id() -> str:
    """Another one after each start of the machine."""
    return BOOT_ID.read_text().strip() if BOOT_ID.exists() else str(psutil.boot_time())


def _started(pid: int) -> str | None:
    """When the process started, in a form that later changes of the clock leave alone."""
    if BOOT_ID.exists():
        try:
            # The name, in parentheses, may hold spaces; the state follows it and the start, in ticks, comes 19 later.
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            return None
        return None if fields[0] in "ZX" else fields[19]
    try:
        process = psutil.Process(pid)
        return None if process.status() == psutil.STATUS_ZOMBIE else str(process.create_time())
    except psutil.NoSuchProcess:
        return None

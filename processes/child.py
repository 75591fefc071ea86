"""Children that lead their own process group, end with their parent, and are ended as a whole."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import psutil

from processes.identity import ProcessIdentity

TIED = Path(__file__).with_name("tied.py")


def spawn(
    command: Sequence[str],
    *,
    environment: Mapping[str, str] | None = None,
    output: IO[Any] | int | None = None,
    parent_death_signal: signal.Signals = signal.SIGTERM,
) -> subprocess.Popen[str]:
    """Starts a command as the leader of its own session. On Linux it gets the signal when the calling thread ends,
    so call this from a thread that lives as long as the child should."""
    tied = [sys.executable, "-I", str(TIED), str(os.getpid()), str(int(parent_death_signal)), *command]
    return subprocess.Popen(
        tied,
        env=None if environment is None else {**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=output,
        stderr=subprocess.STDOUT if output is not None else None,
        text=True,
        errors="replace",
        start_new_session=True,
    )


def end_group(leader: ProcessIdentity, *members: ProcessIdentity, grace_seconds: float) -> None:
    """Asks the leader of a process group to end, waits, then kills the group.

    A group is only killed while a member that is known by identity still lives: its number can't mean another then.
    """
    known = (leader, *members, *_members(leader))
    if leader.is_alive() and grace_seconds > 0:
        _tolerating_the_dead(os.kill, leader.pid, signal.SIGTERM)
        wait_until_dead(leader, grace_seconds)
    if any(member.is_alive() for member in known):
        _tolerating_the_dead(os.killpg, leader.pid, signal.SIGKILL)


def groups_below(ancestor: ProcessIdentity) -> list[ProcessIdentity]:
    """The descendants that lead process groups of their own."""
    if not ancestor.is_alive():
        return []
    try:
        below = [ProcessIdentity.of(process.pid) for process in psutil.Process(ancestor.pid).children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
    return [process for process in below if process is not None and _group(process.pid) == process.pid]


def kill(process: ProcessIdentity) -> None:
    """Kills this very process, never one that got its number."""
    if not hasattr(os, "pidfd_open"):
        if process.is_alive():
            _tolerating_the_dead(os.kill, process.pid, signal.SIGKILL)
        return
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(process.pid)
        try:
            if process.is_alive():  # the handle is of the process that has the number now: this one, if it lives
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def end_children() -> None:
    """Kills every descendant of this process and returns when they are gone."""
    children = psutil.Process().children(recursive=True)
    for child in children:
        with contextlib.suppress(psutil.NoSuchProcess):
            child.kill()
    psutil.wait_procs(children, timeout=10)


def wait_until_dead(process: ProcessIdentity, seconds: float) -> bool:
    """True when the process is gone in time."""
    return wait_until(lambda: not process.is_alive(), seconds)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """True when the condition came to hold in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.05)
    return True


def _members(leader: ProcessIdentity) -> list[ProcessIdentity]:
    if not leader.is_alive():
        return []
    found = [ProcessIdentity.of(pid) for pid in psutil.pids() if _group(pid) == leader.pid]
    return [member for member in found if member is not None]


def _group(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return None


def _tolerating_the_dead(send: Callable[[int, int], None], pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        send(pid, number)

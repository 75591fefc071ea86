"""Stops the streams of this machine after their running batches, so that they go on there later."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator

import psutil

from orchestration.sight import CLOSING_SECONDS
from processes.child import end_group
from processes.identity import ProcessIdentity
from settings import Settings
from streaming.catalog import STREAMS
from streaming.files import StreamFiles
from streaming.lease import Holder, is_held


def drain_streams(settings: Settings, launcher: int, say: Callable[[str], None]) -> None:
    """Tells every host to stop and waits for the runs that the launcher (the code server's pid) started to end.

    A run whose host stopped in order ends as a success, which is how the next start tells it from a failure.
    """
    deadline = time.monotonic() + settings.stream.stop_seconds + CLOSING_SECONDS
    told: set[ProcessIdentity] = set()
    workers: set[ProcessIdentity] = set()
    while time.monotonic() < deadline:
        # Looked for again and again: a run may be about to start its host.
        found = (*_lease_holders(settings), *_hosts_below(launcher))
        hosts = {host for host in found if host.is_alive()}
        new = hosts - told
        for host in new:
            with contextlib.suppress(ProcessLookupError):
                os.kill(host.pid, signal.SIGTERM)
        told |= new
        # A host's run may be a child of an earlier launcher, which ended while the run went on.
        workers |= {worker for host in new if (worker := _parent(host)) is not None}
        if not any(process.is_alive() for process in told | workers) and not _run_workers(launcher):
            return
        time.sleep(0.1)
    for host in told:
        if host.is_alive():
            say(f"Process {host.pid} of a stream did not stop in time and is killed")
            end_group(host, grace_seconds=0)


def _parent(host: ProcessIdentity) -> ProcessIdentity | None:
    """The process of the run that the host belongs to; none for a host that was started by hand."""
    try:
        process = psutil.Process(host.pid)
        return ProcessIdentity.of(process.ppid()) if "--run-id" in process.cmdline() else None
    except psutil.Error:
        return None


def _lease_holders(settings: Settings) -> Iterator[ProcessIdentity]:
    for stream in STREAMS:
        lease = StreamFiles(settings.run_folder, stream).lease
        if is_held(lease) and (holder := Holder.read(lease)) and holder.run_id is not None:
            yield holder.host


def _hosts_below(launcher: int) -> Iterator[ProcessIdentity]:
    """Hosts that may not have their lease yet."""
    for process in _descendants(launcher):
        if "-m streaming" in _command_line(process) and (identity := ProcessIdentity.of(process.pid)):
            yield identity


def _run_workers(launcher: int) -> list[psutil.Process]:
    # Python's own tracker of shared memory stays for as long as the launcher does.
    return [process for process in _descendants(launcher) if "resource_tracker" not in _command_line(process)]


def _descendants(launcher: int) -> list[psutil.Process]:
    try:
        return psutil.Process(launcher).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""

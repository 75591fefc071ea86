"""The host's last line of defence: it ends itself when it may not run any more, whatever its other threads do."""

import logging
import os
import signal
import threading
from pathlib import Path
from typing import NoReturn

from processes.child import end_children
from streaming.failures import FailureClass
from streaming.lease import Lease, LeaseLost

log = logging.getLogger("tidewatch")

LOOK_SECONDS = 1.0
UNSURE_LOOKS = 10


def guard(lease: Lease, revoked: Path, run_id: str | None) -> threading.Thread:
    """Watches the lease, the supervisor's word on the run, and the process whose child the host of a run is."""
    parent = os.getppid() if run_id else None
    thread = threading.Thread(target=_watch, args=(lease, revoked, run_id, parent), name="guard", daemon=True)
    thread.start()
    return thread


def check_or_end(lease: Lease) -> None:
    """For what must not go on without the lease: ends this host at once when it is gone."""
    try:
        lease.check()
    except LeaseLost as lost:
        end_own_group(str(lost))


def end_own_group(reason: str) -> NoReturn:
    """At once and without a word to the JVM, which may be stuck: whatever was running is done again by the next."""
    log.error("This host ends itself: %s", reason)
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    end_children()  # started by hand, it may share its group with others
    os._exit(int(FailureClass.LEASE_HELD))


def _watch(lease: Lease, revoked: Path, run_id: str | None, parent: int | None) -> None:
    pause, unsure = threading.Event(), 0
    while not pause.wait(LOOK_SECONDS):
        try:
            reason = _why_not(lease, revoked, run_id, parent)
            unsure = 0
        except OSError as error:
            unsure += 1
            log.warning("The lease can't be looked at: %s", error)
            reason = "the lease could not be looked at" if unsure >= UNSURE_LOOKS else None
        if reason is not None:
            end_own_group(reason)


def _why_not(lease: Lease, revoked: Path, run_id: str | None, parent: int | None) -> str | None:
    """Why this host may not run any more, None while it may."""
    if parent is not None and os.getppid() != parent:
        return "the process that started it has ended"
    if run_id is not None and revoked.exists() and revoked.read_text() == run_id:
        return "its run has ended"
    try:
        lease.check()
    except LeaseLost as lost:
        return str(lost)
    return None

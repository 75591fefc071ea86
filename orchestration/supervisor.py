"""Decides what to do with a stream, from what is seen of it. Pure: no Dagster, no Spark, no clock."""

import enum
from dataclasses import dataclass
from datetime import datetime, timedelta

FIRST_WAIT = timedelta(seconds=5)
LONGEST_WAIT = timedelta(minutes=5)


class RunState(enum.Enum):
    ACTIVE = "active"
    """Queued, starting, running or stopping."""
    ENDED = "ended"
    """Stopped in order, though no person terminated it."""
    CANCELED = "canceled"
    """Terminated by a person."""
    FAILED = "failed"


@dataclass(frozen=True)
class SeenRun:
    run_id: str
    state: RunState
    ended_at: datetime | None
    failures_in_a_row: int = 0
    """How many runs failed one after the other, this one included."""


@dataclass(frozen=True)
class Start:
    reason: str


@dataclass(frozen=True)
class Wait:
    until: datetime | None
    reason: str


@dataclass(frozen=True)
class LeaveAlone:
    reason: str


Decision = Start | Wait | LeaveAlone


def decide(latest: SeenRun | None, lease_held: bool, now: datetime) -> Decision:
    """What to do with one stream now."""
    if latest is not None and latest.state is RunState.ACTIVE:
        return LeaveAlone(f"run {latest.run_id[:8]} is active")
    if latest is not None and latest.state is RunState.CANCELED:
        return LeaveAlone("a person terminated it; it stays stopped until a person launches it")
    if lease_held:
        return Wait(None, "an earlier host still holds the lease")
    if latest is None:
        return Start("it was never started")
    if latest.state is RunState.ENDED:
        return Start("it was stopped with the system")
    until = (latest.ended_at or now) + wait_after(latest.failures_in_a_row)
    if now < until:
        return Wait(until, f"failure {latest.failures_in_a_row} in a row")
    return Start(f"run {latest.run_id[:8]} failed")


def wait_after(failures: int) -> timedelta:
    """Doubles with each failure in a row, up to a limit."""
    doublings = min(max(failures - 1, 0), 16)
    return min(LONGEST_WAIT, FIRST_WAIT * (1 << doublings))

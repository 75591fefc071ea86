"""Decides what to do with a stream, from what is seen of it. Pure: no Dagster, no Spark, no clock."""

import enum
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta


class RunState(enum.Enum):
    LAUNCHING = "launching"
    """Queued or starting."""
    STARTED = "started"
    CANCELING = "canceling"
    """A person terminated it, and it is stopping."""
    ENDED = "ended"
    """Stopped in order, though no person terminated it."""
    CANCELED = "canceled"
    """Terminated by a person."""
    FAILED = "failed"


FINISHED = {RunState.ENDED, RunState.CANCELED, RunState.FAILED}


class Cause(enum.Enum):
    """Why a run failed, as far as it decides what comes next."""

    CURABLE = "curable"
    """A restart may help."""
    SURROUNDINGS = "surroundings"
    """The hub or the lake can't be used: a restart helps once it can, however long that takes."""
    FOR_A_PERSON = "for a person"
    """No restart helps before a person did something."""


class Life(enum.Enum):
    UNKNOWN = "unknown"
    ALIVE = "alive"
    DEAD = "dead"


@dataclass(frozen=True)
class SeenRun:
    run_id: str
    state: RunState
    since: datetime
    """When it came into this state."""
    worker: Life = Life.UNKNOWN
    """The process that executes the run."""
    attempt: int = 1
    """The how-manieth try in a row it is."""
    fruitless_before: int = 0
    """How many runs right before it failed without any progress."""
    seconds: float = 0.0
    """How long a finished run ran."""
    progressed: bool = False
    """Whether what failed had done a batch, or had found nothing to do, in this run."""
    cause: Cause = Cause.CURABLE
    reason: str = ""
    """Why it failed, and what to do, in sentences."""


@dataclass(frozen=True)
class SeenLease:
    """A lease that some process holds now."""

    run_id: str | None
    """The run of the host that holds it; None for one that was started by hand."""
    run_active: bool = False
    pid: int | None = None
    """None where the holder has not said yet who it is."""

    @property
    def by_hand(self) -> bool:
        return self.run_id is None and self.pid is not None


@dataclass(frozen=True)
class SeenHost:
    """The host of the run, as its progress file tells it."""

    running: bool
    """Its queries were started, and it was not told to stop."""
    silent_seconds: float
    """Since its Python and its JVM last answered together."""
    hub_away: bool = False
    """The hub does not answer it, so that its queries can do nothing but wait."""
    quiet_seconds: Mapping[str, float] = field(default_factory=dict)
    """For each query, since it last did or found anything, beyond its trigger's interval."""


@dataclass(frozen=True)
class Seen:
    run: SeenRun | None
    lease: SeenLease | None = None
    host: SeenHost | None = None
    """None until the run's host wrote its first progress."""
    wanted: bool = True
    """Whether the settings have it run here."""


@dataclass(frozen=True)
class Limits:
    first_wait: timedelta = timedelta(seconds=5)
    longest_wait: timedelta = timedelta(minutes=5)
    healthy: timedelta = timedelta(minutes=10)
    """A run that lasted this long starts the count of attempts anew when it fails."""
    fruitless_runs: int = 10
    """So many failures in a row without any progress are a crash loop."""
    start: timedelta = timedelta(minutes=2)
    silence: timedelta = timedelta(seconds=30)
    quiet: timedelta = timedelta(minutes=2)
    stop: timedelta = timedelta(seconds=45)
    """How long the end of a run may take."""
    lead: timedelta = timedelta(seconds=7)
    """A run is asked for this long before its host may start: about what a next look and the launch would take."""


@dataclass(frozen=True)
class Start:
    reason: str
    attempt: int = 1
    fruitless: int = 0
    """How many runs right before it failed without any progress."""
    not_before: datetime | None = None
    """When its host may start at the earliest."""


@dataclass(frozen=True)
class Wait:
    until: datetime
    reason: str
    attempt: int


@dataclass(frozen=True)
class Restart:
    """Ends the processes of an active run and the run itself, as failed; the start follows once the lease is free."""

    reason: str
    hung: bool = False
    query: str | None = None
    """The query that hangs, if it is one."""


@dataclass(frozen=True)
class CleanUp:
    """Ends processes that outlived their run or its cancellation; nothing is started for it."""

    reason: str


@dataclass(frozen=True)
class Hold:
    """Nothing is started until a person launches it."""

    reason: str
    crash_loop: bool = False


@dataclass(frozen=True)
class LeaveAlone:
    reason: str


Decision = Start | Wait | Restart | CleanUp | Hold | LeaveAlone


def decide(seen: Seen, limits: Limits, now: datetime) -> Decision:
    """What to do with one stream now."""
    run = seen.run
    if run is not None and run.state not in FINISHED:
        return _of_active(run, seen, limits, now)
    if seen.lease is not None:
        return _of_leftover(run, seen.lease, limits, now)
    if not seen.wanted:
        return LeaveAlone("TIDEWATCH_SUPERVISOR_STREAMS does not name it")
    if run is None:
        return Start("it was never started")
    if run.state is RunState.CANCELED:
        return LeaveAlone("a person terminated it; it stays stopped until a person launches it")
    if run.state is RunState.ENDED:
        return Start("it was stopped in order, and not by a person")
    return _of_failed(run, limits, now)


def is_lost(run: SeenRun, limits: Limits, now: datetime) -> bool:
    """Whether an active run that is not the one to decide about has no process any more, or never got one."""
    if run.worker is Life.UNKNOWN:
        return now - run.since > max(limits.start, limits.stop)
    return run.worker is Life.DEAD


def failures_in_a_row(run: SeenRun, limits: Limits) -> int:
    """Counted anew after a run that was well for long."""
    well = run.progressed and run.seconds >= limits.healthy.total_seconds()
    return 1 if well else run.attempt


def wait_after(failures: int, limits: Limits, run_id: str) -> timedelta:
    """Doubles with each failure in a row up to a limit, and is longer by up to a fifth, so that streams that failed
    together do not come back together."""
    doublings = min(max(failures - 1, 0), 32)
    wait = min(limits.longest_wait, limits.first_wait * (1 << doublings))
    return wait * (1 + random.Random(run_id).random() / 5)


def _of_active(run: SeenRun, seen: Seen, limits: Limits, now: datetime) -> Decision:
    name, age = f"run {run.run_id[:8]}", now - run.since
    if run.worker is Life.DEAD:
        if run.state is RunState.CANCELING:
            return CleanUp(f"{name} was being terminated when its process ended")
        return Restart("the process of its run is gone")
    if run.state is RunState.LAUNCHING:
        if age > limits.start:
            return Restart(f"{name} was not launched in {_seconds(limits.start)}")
        return LeaveAlone(f"{name} is being launched")
    if run.state is RunState.CANCELING:
        if age > limits.stop:
            return CleanUp(f"{name} did not end in {_seconds(limits.stop)} after it was terminated")
        return LeaveAlone(f"{name} is stopping")
    lease = seen.lease
    if lease is not None and lease.run_id != run.run_id:
        if lease.run_active or lease.by_hand:
            return LeaveAlone(f"{name} finds the lease held by another and will end")
        if lease.run_id is not None and age <= limits.start:
            return CleanUp(f"the host of run {lease.run_id[:8]} lives on although that run has ended")
        # Else its own host may have the lease, and hangs before it could say so.
    if seen.host is None:
        if age > limits.start:
            return Restart(f"its host did not come up in {_seconds(limits.start)}", hung=True)
        return LeaveAlone(f"{name} is starting")
    # Until its queries run, and while they stop, a host is busy with single calls that may take long.
    patience = limits.silence if seen.host.running else limits.start
    if seen.host.silent_seconds > patience.total_seconds():
        return Restart(f"its host has not answered for {seen.host.silent_seconds:.0f} s", hung=True)
    if seen.host.running and not seen.host.hub_away:
        for query, quiet in seen.host.quiet_seconds.items():
            if quiet > limits.quiet.total_seconds():
                stuck = f"its query {query} is stuck: {quiet:.0f} s over its trigger it has done nothing"
                return Restart(stuck, hung=True, query=query)
    return LeaveAlone(f"{name} is active")


def _of_leftover(run: SeenRun | None, lease: SeenLease, limits: Limits, now: datetime) -> Decision:
    if lease.run_id is None:
        return LeaveAlone(f"process {lease.pid or 'unknown'}, which was started by hand, runs it")
    same = run is not None and run.run_id == lease.run_id
    if run is not None and same and run.state is not RunState.FAILED and now - run.since <= limits.stop:
        return LeaveAlone(f"run {run.run_id[:8]} has ended, and its host is about to")
    return CleanUp(f"the host of run {lease.run_id[:8]} lives on although that run has ended")


def _of_failed(run: SeenRun, limits: Limits, now: datetime) -> Decision:
    if run.cause is Cause.FOR_A_PERSON:
        return Hold(run.reason)
    fruitless = _fruitless_runs(run)
    if run.cause is Cause.CURABLE and fruitless >= limits.fruitless_runs:
        return Hold(f"{fruitless} runs in a row failed without any progress. The last: {run.reason}", crash_loop=True)
    failures = failures_in_a_row(run, limits)
    until = run.since + wait_after(failures, limits, run.run_id)
    if now < until - limits.lead:
        return Wait(until, run.reason, failures + 1)
    return Start(run.reason, failures + 1, fruitless, until)


def _fruitless_runs(run: SeenRun) -> int:
    """A hub or a lake that can't be used says nothing about the stream, so such a run counts for nothing."""
    if run.progressed:
        return 0
    return run.fruitless_before + (run.cause is Cause.CURABLE)


def _seconds(limit: timedelta) -> str:
    return f"{limit.total_seconds():.0f} s"

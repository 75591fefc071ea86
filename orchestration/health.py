"""Says how a stream is, in the words that people see. Pure: no Dagster, no Spark, no clock."""

from dataclasses import dataclass
from datetime import datetime

from orchestration.supervisor import FINISHED, CleanUp, Decision, Hold, Restart, RunState, Seen, Start, Wait
from streaming.health import HealthState
from streaming.progress import QueryProgress, StreamProgress

# A stream that is this far behind is catching up, unless its trigger alone explains it.
BEHIND_SECONDS = 60.0
BEHIND_TRIGGERS = 3.0


@dataclass(frozen=True)
class Health:
    state: HealthState
    sentence: str
    next_attempt_at: datetime | None = None
    attempt: int = 1


def health_of(
    seen: Seen, decision: Decision, progress: StreamProgress | None, before: HealthState | None = None
) -> Health:
    """`before` is the state that was told last: a stream is called caught up only when it really is."""
    attempt = seen.run.attempt if seen.run else 1
    match decision:
        case Hold(reason, crash_loop=True):
            cure = "Look into its log, mend the cause and launch it again."
            return Health(HealthState.CRASH_LOOPING, f"{reason} {cure}", attempt=attempt)
        case Hold(reason):
            return Health(HealthState.BLOCKED, f"{reason} Then launch it again.", attempt=attempt)
        case Wait(until, reason, next_attempt):
            said = f"until {until:%H:%M:%S} UTC (attempt {next_attempt}): {reason}"
            return Health(HealthState.BACKING_OFF, said, until, next_attempt)
        case Start(reason, next_attempt):
            return Health(HealthState.STARTING, reason, decision.not_before, next_attempt)
        case Restart(reason, hung):
            return Health(HealthState.HUNG if hung else HealthState.STARTING, reason, attempt=attempt)
        case CleanUp(reason):
            return Health(HealthState.STOPPING, reason, attempt=attempt)
    return _of_what_is_left_alone(seen, decision.reason, progress, attempt, before)


def _of_what_is_left_alone(
    seen: Seen, reason: str, progress: StreamProgress | None, attempt: int, before: HealthState | None
) -> Health:
    run = seen.run
    if seen.lease is not None and seen.lease.run_id is None and (run is None or run.state in FINISHED):
        return Health(HealthState.RUNNING, reason)
    if not seen.wanted and (run is None or run.state in FINISHED):
        return Health(HealthState.STOPPING if seen.lease else HealthState.STOPPED, reason)
    if run is None or run.state in (RunState.ENDED, RunState.FAILED):
        return Health(HealthState.STOPPING if seen.lease else HealthState.STARTING, reason)
    if run.state is RunState.CANCELED:
        return Health(HealthState.STOPPING if seen.lease else HealthState.STOPPED, reason)
    if run.state is RunState.CANCELING:
        return Health(HealthState.STOPPING, reason)
    if run.state is RunState.LAUNCHING or seen.host is None or not seen.host.running or progress is None:
        waits = progress.note if progress is not None and progress.note else reason
        return Health(HealthState.STARTING, waits, attempt=attempt)
    if seen.host.hub_away:
        return Health(HealthState.RUNNING, "it waits for the hub, which does not answer", attempt=attempt)
    share = 0.5 if before is HealthState.CATCHING_UP else 1.0
    behind = {name: query for name, query in progress.queries.items() if _is_behind(query, share)}
    if behind:
        return Health(HealthState.CATCHING_UP, "; ".join(_estimate(*each) for each in behind.items()), attempt=attempt)
    return Health(HealthState.RUNNING, "", attempt=attempt)


def _is_behind(query: QueryProgress, share: float) -> bool:
    return (query.lag_seconds or 0) > share * max(BEHIND_SECONDS, BEHIND_TRIGGERS * query.trigger_seconds)


def _estimate(name: str, query: QueryProgress) -> str:
    left = query.seconds_until_caught_up()
    when = f"about {_duration(left)} to go" if left is not None else "it does not gain on what comes in"
    return f"{name} is {query.lag_records or 0:,} records ({_duration(query.lag_seconds or 0)}) behind, {when}"


def _duration(seconds: float) -> str:
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"

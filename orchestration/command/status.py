"""`tidewatch status`: every stream as the supervisor and its own files tell."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from lake.machines import last_change, machines_by_status
from settings import Settings
from streaming.catalog import HEARTBEAT, STREAMS
from streaming.failures import Failure
from streaming.files import StreamFiles
from streaming.health import HealthState, StreamHealth
from streaming.lease import is_held
from streaming.progress import QueryProgress, StreamProgress

UNSUPERVISED = "unsupervised"
"""Nobody looked for a while: the daemon does not run."""
ENDED = "ended"
"""No process runs, and nobody has looked since."""
LOOK_AGE_SECONDS = 60.0
JUDGING = "machine_health"
"""The query by which it is known how far machines have been judged."""


@dataclass(frozen=True)
class QueryState:
    name: str
    batch: int | None
    batch_age_seconds: float | None
    rows_per_second: float
    lag_records: int | None
    lag_seconds: float | None
    retention_left_seconds: float | None
    state_rows: int
    state_bytes: int
    total_rows: int


@dataclass(frozen=True)
class StreamState:
    stream: str
    state: str
    note: str | None = None
    run_id: str | None = None
    attempt: int = 1
    next_attempt_at: str | None = None
    unread_kept_until: str | None = None
    queries: list[QueryState] = field(default_factory=list)


@dataclass(frozen=True)
class MachineCounts:
    by_status: dict[str, int]
    as_of: str
    """In the hub's time: a stream that does not run tells of nothing since."""


def stream_states(settings: Settings) -> list[StreamState]:
    now = datetime.now(UTC)
    return [_state(StreamFiles(settings.run_folder, name), now) for name in STREAMS]


def to_json(states: list[StreamState], machines: MachineCounts | None = None) -> str:
    told = {state.stream: asdict(state) for state in states}
    if machines is not None:
        told[HEARTBEAT.name]["machines"] = asdict(machines)
    return json.dumps(told, indent=2)


def as_table(states: list[StreamState]) -> str:
    lines = [f"{'stream':<12} {'query':<20} {'is':<20} {'batch age':>10} {'rows/s':>9} {'lag':>16} {'keeps':>10}"]
    for state in states:
        lines.append(f"{state.stream:<12} {'':<20} {state.state}")
        for query in state.queries:
            age = "-" if query.batch_age_seconds is None else f"{query.batch_age_seconds:.0f} s"
            lag = "-" if query.lag_records is None else f"{query.lag_records:,} ({query.lag_seconds or 0:.0f} s)"
            size = f"{query.state_bytes / 2**20:.1f} MB" if query.state_bytes else "-"
            lines.append(
                f"{'':<12} {query.name:<20} {'':<20} {age:>10} {query.rows_per_second:>9,.1f} {lag:>16} {size:>10}"
            )
        if state.note:
            lines.append(f"  {state.note}")
        if state.attempt > 1:
            lines.append(f"  attempt {state.attempt} in a row")
        if state.unread_kept_until:
            lines.append(f"  the hub keeps what is not read yet at least until {state.unread_kept_until[:19]} UTC")
    return "\n".join(lines)


def machines_line(settings: Settings) -> str | None:
    """How many machines are how, None where nobody knows of any."""
    machines = machine_counts(settings)
    if machines is None:
        return None
    told = ", ".join(f"{count:,} {status}" for status, count in machines.by_status.items())
    return f"machines: {told}, as of {machines.as_of[:19]} UTC"


def machine_counts(settings: Settings) -> MachineCounts | None:
    """As silver has them; None where nobody knows of any."""
    counts = machines_by_status(settings.lake_root) if "://" not in settings.lake_root else {}
    changed = last_change(settings.lake_root) if counts else None
    if changed is None:
        return None
    progress = StreamProgress.read(StreamFiles(settings.run_folder, HEARTBEAT.name).progress)
    judging = progress.queries.get(JUDGING) if progress else None
    read = [datetime.fromisoformat(at) for at in judging.read_up_to.values()] if judging else []
    return MachineCounts(counts, max(changed, min(read, default=changed)).astimezone(UTC).isoformat())


def _state(files: StreamFiles, now: datetime) -> StreamState:
    held = is_held(files.lease)
    progress = StreamProgress.read(files.progress) if held else None
    queries = [_query_state(name, query, now) for name, query in progress.queries.items()] if progress else []
    health = StreamHealth.read(files.health)
    if health is not None and health.state is HealthState.STOPPED and not held:
        kept = health.unread_kept_until
        return StreamState(files.stream, health.state, health.sentence or None, health.run_id, unread_kept_until=kept)
    if health is None or health.age_seconds(now) > LOOK_AGE_SECONDS:
        return _unsupervised(files, held, progress, queries)
    if not held and health.state in (HealthState.RUNNING, HealthState.CATCHING_UP):
        return StreamState(files.stream, ENDED, "its host has just ended", health.run_id, health.attempt)
    return StreamState(
        files.stream,
        str(health.state),
        health.sentence or None,
        health.run_id,
        health.attempt,
        health.next_attempt_at,
        health.unread_kept_until,
        queries,
    )


def _unsupervised(
    files: StreamFiles, held: bool, progress: StreamProgress | None, queries: list[QueryState]
) -> StreamState:
    if held:
        note = f"its host is {progress.phase if progress else 'starting'}, but no supervisor looks after it"
        return StreamState(files.stream, UNSUPERVISED, note, progress.run_id if progress else None, queries=queries)
    failure = Failure.read(files.failure)
    note = "it does not run, and no supervisor looks after it: start `tidewatch up`"
    return StreamState(files.stream, UNSUPERVISED, f"{note}. It last failed: {failure}" if failure else note)


def _query_state(name: str, query: QueryProgress, now: datetime) -> QueryState:
    age = (now - datetime.fromisoformat(query.batch_at)).total_seconds() if query.batch_at else None
    return QueryState(
        name=name,
        batch=query.batch,
        batch_age_seconds=age,
        rows_per_second=query.input_rows_per_second,
        lag_records=query.lag_records,
        lag_seconds=query.lag_seconds,
        retention_left_seconds=query.retention_left_seconds(),
        state_rows=query.state_rows,
        state_bytes=query.state_bytes,
        total_rows=query.total_rows,
    )

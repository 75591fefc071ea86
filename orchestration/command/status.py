"""`tidewatch status`: every stream as its lease, progress and failure files tell."""

import json
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime

from settings import Settings
from streaming.catalog import STREAMS
from streaming.failures import Failure
from streaming.files import StreamFiles
from streaming.lease import is_held
from streaming.progress import QueryProgress, StreamProgress

STOPPED = "stopped"
FAILED = "failed"


@dataclass(frozen=True)
class QueryState:
    name: str
    batch: int | None
    batch_age_seconds: float | None
    rows_per_second: float
    lag_records: int
    lag_seconds: float
    state_rows: int
    state_bytes: int
    total_rows: int


@dataclass(frozen=True)
class StreamState:
    stream: str
    state: str
    note: str | None = None
    run_id: str | None = None
    queries: list[QueryState] = field(default_factory=list)


def stream_states(settings: Settings) -> list[StreamState]:
    now = datetime.now(UTC)
    return [_state(StreamFiles(settings.run_folder, name), now) for name in STREAMS]


def to_json(states: list[StreamState]) -> str:
    return json.dumps({state.stream: asdict(state) for state in states}, indent=2)


def as_table(states: list[StreamState]) -> str:
    lines = [f"{'stream':<12} {'query':<12} {'state':<20} {'batch age':>10} {'rows/s':>9} {'lag':>16} {'state':>10}"]
    for state in states:
        lines.append(f"{state.stream:<12} {'':<12} {state.state:<20}")
        for query in state.queries:
            age = "-" if query.batch_age_seconds is None else f"{query.batch_age_seconds:.0f} s"
            lag = f"{query.lag_records:,} ({query.lag_seconds:.0f} s)"
            size = f"{query.state_bytes / 2**20:.1f} MB" if query.state_bytes else "-"
            lines.append(
                f"{'':<12} {query.name:<12} {'':<20} {age:>10} {query.rows_per_second:>9,.1f} {lag:>16} {size:>10}"
            )
        if state.note:
            lines.append(f"  {state.note}")
    return "\n".join(lines)


def _state(files: StreamFiles, now: datetime) -> StreamState:
    progress = StreamProgress.read(files.progress)
    if not is_held(files.lease):
        failure = Failure.read(files.failure)
        if failure is not None:
            return StreamState(files.stream, FAILED, note=str(failure))
        return StreamState(files.stream, STOPPED)
    if progress is None:
        return StreamState(files.stream, "starting")
    queries = [_query_state(name, query, now) for name, query in progress.queries.items()]
    return StreamState(files.stream, progress.phase, progress.note, progress.run_id, queries)


def _query_state(name: str, query: QueryProgress, now: datetime) -> QueryState:
    age = (now - datetime.fromisoformat(query.batch_at)).total_seconds() if query.batch_at else None
    return QueryState(
        name=name,
        batch=query.batch,
        batch_age_seconds=age,
        rows_per_second=query.input_rows_per_second,
        lag_records=query.lag_records,
        lag_seconds=query.lag_seconds,
        state_rows=query.state_rows,
        state_bytes=query.state_bytes,
        total_rows=query.total_rows,
    )

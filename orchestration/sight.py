"""What there is to see of a stream: its runs in Dagster, its lease, and the progress of its host."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus, RunRecord, RunsFilter

from orchestration import tags
from orchestration.supervisor import (
    FINISHED,
    Cause,
    Life,
    Limits,
    RunState,
    Seen,
    SeenHost,
    SeenLease,
    SeenRun,
    is_lost,
)
from processes.identity import ProcessIdentity, boot_id
from settings import Settings
from streaming.catalog import StreamSpec
from streaming.failures import Failure, FailureClass
from streaming.files import StreamFiles
from streaming.lease import Holder, is_held
from streaming.progress import RUNNING, StreamProgress, seconds_since_written

PAGE = 20
# Beyond what the host itself allows its last batch, for the session and the run to close.
CLOSING_SECONDS = 15

STATES = {
    DagsterRunStatus.NOT_STARTED: RunState.LAUNCHING,
    DagsterRunStatus.MANAGED: RunState.LAUNCHING,
    DagsterRunStatus.QUEUED: RunState.LAUNCHING,
    DagsterRunStatus.STARTING: RunState.LAUNCHING,
    DagsterRunStatus.STARTED: RunState.STARTED,
    DagsterRunStatus.CANCELING: RunState.CANCELING,
    DagsterRunStatus.SUCCESS: RunState.ENDED,
    DagsterRunStatus.CANCELED: RunState.CANCELED,
    DagsterRunStatus.FAILURE: RunState.FAILED,
}
OVER = {status for status, state in STATES.items() if state in FINISHED}
ACTIVE = [status for status in DagsterRunStatus if status not in OVER]
FOR_A_PERSON = {kind.name for kind in (FailureClass.SETTINGS, FailureClass.CHECKPOINT, FailureClass.SOURCE_DATA_LOST)}
REFUSED = "after telling it to shut down"
"""What a code server says that was asked to end: it lives on until all its runs have ended, and launches no more."""
UNEXPLAINED = "The process of its run was killed, or its machine went down."


@dataclass(frozen=True)
class Sight:
    seen: Seen
    run: DagsterRun | None
    """The run that `seen` tells of."""
    worker: ProcessIdentity | None
    holder: Holder | None
    """Who holds the lease now."""
    progress: StreamProgress | None
    """Of the run's own host only."""
    lost: Sequence[DagsterRun] = ()
    """Other active runs, which have no process any more."""


def limits_of(settings: Settings) -> Limits:
    chosen = settings.supervisor
    return Limits(
        first_wait=timedelta(seconds=chosen.first_wait_seconds),
        longest_wait=timedelta(seconds=chosen.longest_wait_seconds),
        healthy=timedelta(seconds=chosen.healthy_seconds),
        fruitless_runs=chosen.fruitless_runs,
        start=timedelta(seconds=chosen.start_seconds),
        silence=timedelta(seconds=chosen.silence_seconds),
        quiet=timedelta(seconds=chosen.quiet_seconds),
        stop=timedelta(seconds=settings.stream.stop_seconds + 2 * CLOSING_SECONDS),
    )


def look(instance: DagsterInstance, settings: Settings, stream: StreamSpec, now: datetime) -> Sight:
    files = StreamFiles(settings.run_folder, stream.name)
    held = is_held(files.lease)
    holder = Holder.read(files.lease) if held else None
    active = instance.get_run_records(RunsFilter(job_name=stream.name, statuses=ACTIVE))
    record = choose(active, holder) or _last_that_could_run(instance, stream.name)
    run = record.dagster_run if record else None
    told = StreamProgress.read(files.progress)
    progress = told if run is not None and told is not None and told.run_id == run.run_id else None
    worker = _worker(run) if run else None
    lease = None
    if held:
        lease = SeenLease(
            holder.run_id if holder else None,
            run_active=holder is not None and any(each.dagster_run.run_id == holder.run_id for each in active),
            pid=holder.host.pid if holder else None,
        )
    seen_run = None
    if record is not None:
        seen_run = _seen_run(instance, record, worker, progress, Failure.read(files.failure), now)
        if seen_run.state in (RunState.FAILED, RunState.ENDED) and _was_terminated(instance, seen_run.run_id):
            seen_run = replace(seen_run, state=RunState.CANCELED)
    host = _seen_host(progress)
    if told is None and seen_run is not None:
        host = _host_that_can_not_be_read(files.progress, seen_run, now)
    return Sight(
        seen=Seen(seen_run, lease, host, stream.name in settings.supervisor.streams),
        run=run,
        worker=worker,
        holder=holder,
        progress=progress,
        lost=[
            each.dagster_run
            for each in active
            if each is not record and is_lost(_seen_active(each, now), limits_of(settings), now)
        ],
    )


def run_status(instance: DagsterInstance, run_id: str) -> DagsterRunStatus:
    """A run that somebody deleted counts as canceled."""
    run = instance.get_run_by_id(run_id)
    return run.status if run is not None else DagsterRunStatus.CANCELED


def choose(active_newest_first: Sequence[RunRecord], holder: Holder | None) -> RunRecord | None:
    """Of the active runs the one that has the lease, else the one that came first."""
    for record in active_newest_first:
        if holder is not None and record.dagster_run.run_id == holder.run_id:
            return record
    return active_newest_first[-1] if active_newest_first else None


def _last_that_could_run(instance: DagsterInstance, job: str) -> RunRecord | None:
    """The one that ended last, which need not be the one that was launched last. A run that ended because another had
    the lease, or was lost beside it, changed nothing, and says nothing about what a person wants."""
    finished = RunsFilter(job_name=job, statuses=sorted(OVER, key=str))
    limit = PAGE
    while True:
        records = instance.get_run_records(finished, limit=limit, order_by="end_time")
        for record in records:
            if tags.noted(record.dagster_run).get(tags.FAILURE) != FailureClass.LEASE_HELD.name:
                return record
        if len(records) < limit:
            return None
        limit *= 4


def _was_terminated(instance: DagsterInstance, run_id: str) -> bool:
    """Whether a person terminated the run, though it failed while it was stopping."""
    canceling = instance.get_records_for_run(run_id, of_type=DagsterEventType.RUN_CANCELING, limit=1)
    return bool(canceling.records)


def _seen_run(
    instance: DagsterInstance,
    record: RunRecord,
    worker: ProcessIdentity | None,
    progress: StreamProgress | None,
    failure: Failure | None,
    now: datetime,
) -> SeenRun:
    run = record.dagster_run
    noted, planned = tags.noted(run), tags.planned(run)
    ended = record.end_time or now.timestamp()
    state = STATES.get(run.status, RunState.LAUNCHING)
    return SeenRun(
        run.run_id,
        state,
        since=min(now, _since(record, now)),
        worker=_life(worker),
        attempt=int(planned.get(tags.ATTEMPT, 1)),
        fruitless_before=int(planned.get(tags.FRUITLESS, 0)),
        seconds=ended - (record.start_time or ended),
        progressed=_progressed(progress, noted.get(tags.QUERY) or (failure.query if failure else None)),
        cause=_cause(record, noted.get(tags.FAILURE)),
        reason=noted.get(tags.REASON) or (told_by_dagster(instance, run.run_id) if state is RunState.FAILED else ""),
    )


def _seen_active(record: RunRecord, now: datetime) -> SeenRun:
    run = record.dagster_run
    state = STATES.get(run.status, RunState.LAUNCHING)
    return SeenRun(run.run_id, state, min(now, _since(record, now)), _life(_worker(run)))


def _worker(run: DagsterRun) -> ProcessIdentity | None:
    return ProcessIdentity.from_json(tags.noted(run).get(tags.WORKER, ""))


def _life(worker: ProcessIdentity | None) -> Life:
    if worker is None:
        return Life.UNKNOWN
    return Life.ALIVE if worker.is_alive() else Life.DEAD


def _since(record: RunRecord, now: datetime) -> datetime:
    status = record.dagster_run.status
    if status is DagsterRunStatus.QUEUED:
        return now  # it may stand in the queue for as long as the queue wants
    if status is DagsterRunStatus.STARTED and record.start_time:
        return datetime.fromtimestamp(record.start_time, UTC)
    if record.dagster_run.is_finished and record.end_time:
        return datetime.fromtimestamp(record.end_time, UTC)
    at = record.create_timestamp if status is DagsterRunStatus.NOT_STARTED else record.update_timestamp
    return at if at.tzinfo else at.replace(tzinfo=UTC)


def _cause(record: RunRecord, kind: str | None) -> Cause:
    if kind in FOR_A_PERSON:
        return Cause.FOR_A_PERSON
    launched = record.start_time is not None
    return Cause.SURROUNDINGS if kind == FailureClass.SURROUNDINGS.name or not launched else Cause.CURABLE


def told_by_dagster(instance: DagsterInstance, run_id: str) -> str:
    """Why a run failed that could not say it itself: it was not launched, or its process was killed."""
    kinds = {DagsterEventType.RUN_FAILURE, DagsterEventType.ENGINE_EVENT}
    records = instance.get_records_for_run(run_id, of_type=kinds).records
    events = [event for record in records if (event := record.event_log_entry.dagster_event) is not None]
    errors = [event.engine_event_data.error for event in events if event.is_engine_event]
    said = [error.message.strip() for error in errors if error is not None]
    said += [event.message for event in events if not event.is_engine_event and event.message]
    return said[0] if said else UNEXPLAINED


def _progressed(progress: StreamProgress | None, failed: str | None) -> bool:
    """Of the query that failed where one did, else of all: some that go on well do not make up for the others."""
    if progress is None or not progress.queries:
        return False
    queries = [progress.queries[failed]] if failed in progress.queries else list(progress.queries.values())
    return all(query.total_batches or query.idle_at for query in queries)


def _seen_host(progress: StreamProgress | None) -> SeenHost | None:
    if progress is None or progress.boot != boot_id():
        return None
    now = time.monotonic()
    return SeenHost(
        running=progress.phase == RUNNING,
        hub_away=progress.hub_away,
        silent_seconds=now - progress.alive_clock,
        quiet_seconds={
            name: max(0.0, now - query.sign_clock - query.trigger_seconds) for name, query in progress.queries.items()
        },
    )


def _host_that_can_not_be_read(file: Path, run: SeenRun, now: datetime) -> SeenHost | None:
    """A host of another version may write what this one does not understand: that it writes is a sign of life."""
    try:
        silent = seconds_since_written(file)
    except FileNotFoundError:
        return None
    of_this_run = silent < (now - run.since).total_seconds()
    return SeenHost(running=False, silent_seconds=silent) if of_this_run else None

"""The sensors that supervise the streams: they look, let `supervisor` decide, launch, and report the figures."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from dagster import (
    DagsterInstance,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRecord,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from assets.streams import observations
from orchestration.supervisor import LONGEST_WAIT, RunState, SeenRun, Start, Wait, decide
from settings import load_settings
from streaming.catalog import StreamSpec
from streaming.files import StreamFiles
from streaming.lease import is_held
from streaming.progress import StreamProgress

LOOK_SECONDS = 5
REMEMBERED_RUNS = 12

ENDED_STATES = {
    DagsterRunStatus.SUCCESS: RunState.ENDED,
    DagsterRunStatus.CANCELED: RunState.CANCELED,
    DagsterRunStatus.FAILURE: RunState.FAILED,
}


def utc_now() -> datetime:
    return datetime.now(UTC)


def stream_sensor(stream: StreamSpec, clock: Callable[[], datetime] = utc_now) -> SensorDefinition:
    @sensor(
        name=f"{stream.name}_supervisor",
        job_name=stream.name,
        description=f"Starts the stream {stream.name}, starts it again after a failure, and reports its figures.",
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        settings = load_settings()
        now = clock()
        files = StreamFiles(settings.run_folder, stream.name)
        latest = seen_run(_newest_runs(context.instance, stream.name))
        decision = decide(latest, is_held(files.lease), now)
        reported_at, events = _report_at(context.cursor), []
        progress = StreamProgress.read(files.progress)
        due = reported_at is None or (now - reported_at).total_seconds() >= settings.stream.report_seconds
        if progress is not None and due and _is_of_active_run(progress, latest):
            events = list(observations(stream, progress))
            reported_at = now
        cursor = json.dumps({"reported_at": reported_at.isoformat()}) if reported_at else None
        if isinstance(decision, Start):
            request = RunRequest(run_key=f"{stream.name}:{latest.run_id if latest else 'first'}")
            return SensorResult(run_requests=[request], asset_events=events, cursor=cursor)
        return SensorResult(skip_reason=SkipReason(_sentence(decision)), asset_events=events, cursor=cursor)

    return supervise


def _is_of_active_run(progress: StreamProgress, latest: SeenRun | None) -> bool:
    return latest is not None and latest.state is RunState.ACTIVE and progress.run_id == latest.run_id


def seen_run(newest_first: Sequence[RunRecord]) -> SeenRun | None:
    """What the supervisor needs to know of the runs."""
    if not newest_first:
        return None
    latest = newest_first[0]
    active = next((record for record in newest_first if not record.dagster_run.is_finished), None)
    if active is not None:
        return SeenRun(active.dagster_run.run_id, RunState.ACTIVE, None)
    failures = 0
    for record in newest_first:
        if record.dagster_run.status is not DagsterRunStatus.FAILURE:
            break
        failures += 1
        if (record.end_time or 0) - (record.start_time or record.end_time or 0) > LONGEST_WAIT.total_seconds():
            break  # it ran well for long, so that what failed before it does not count
    return SeenRun(
        latest.dagster_run.run_id,
        ENDED_STATES[latest.dagster_run.status],
        datetime.fromtimestamp(latest.end_time, UTC) if latest.end_time else latest.update_timestamp,
        failures,
    )


def _newest_runs(instance: DagsterInstance, job: str) -> Sequence[RunRecord]:
    return instance.get_run_records(RunsFilter(job_name=job), limit=REMEMBERED_RUNS)


def _report_at(cursor: str | None) -> datetime | None:
    return datetime.fromisoformat(json.loads(cursor)["reported_at"]) if cursor else None


def _sentence(decision: object) -> str:
    match decision:
        case Wait(until=until, reason=reason) if until is not None:
            return f"waits until {until:%H:%M:%S} UTC: {reason}"
        case Wait(reason=reason):
            return f"waits: {reason}"
        case _:
            return str(getattr(decision, "reason", decision))

"""A sensor for runs whose process is gone without a word: Dagster would hold them for active for ever, and others of
their kind would wait for them. Those of streams are the supervisors' own."""

from datetime import UTC, datetime

import psutil
from dagster import (
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    DefaultSensorStatus,
    RunRecord,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    sensor,
)

from orchestration import tags

LOOK_SECONDS = 30
GONE = "Its process was killed, or its machine went down. Launch it again: what it had begun is completed then."


def lost_run_sensor() -> SensorDefinition:
    @sensor(
        name="lost_runs",
        description="Ends runs of batch jobs whose process is gone without a word.",
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def end_lost_runs(context: SensorEvaluationContext) -> SkipReason:
        ended = end_lost(context.instance)
        return SkipReason(f"Ended {', '.join(run.run_id for run in ended)}" if ended else "No run is lost")

    return end_lost_runs


def end_lost(instance: DagsterInstance) -> list[DagsterRun]:
    active = RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
    lost = [
        record.dagster_run
        for record in instance.get_run_records(active)
        if record.dagster_run.tags.get(tags.KIND) != tags.STREAM_KIND and _is_lost(instance, record)
    ]
    for run in lost:
        if run.status is DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, GONE)
        else:
            instance.report_run_failed(run, GONE)
    return lost


def _is_lost(instance: DagsterInstance, record: RunRecord) -> bool:
    """Where Dagster noted which process executes the run, and that very process is no more."""
    events = instance.get_records_for_run(record.dagster_run.run_id, of_type=DagsterEventType.ENGINE_EVENT).records
    for event in events:
        told = event.event_log_entry.dagster_event
        pid = told.engine_event_data.metadata.get("pid") if told else None
        if pid is not None and str(pid.value).isdigit():
            noted_at = datetime.fromtimestamp(event.event_log_entry.timestamp, UTC)
            return not _lived_at(int(str(pid.value)), noted_at)
    return False


def _lived_at(pid: int, at: datetime) -> bool:
    """Whether the process that has this number had it at that time already."""
    try:
        return datetime.fromtimestamp(psutil.Process(pid).create_time(), UTC) <= at
    except psutil.Error:
        return False

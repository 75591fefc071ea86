"""A sensor for runs of batch jobs: those whose process is gone without a word, which Dagster would hold for active for
ever while others of their kind wait for them, and those that the code server refused to launch. Those of streams are
the supervisors' own."""

from datetime import UTC, datetime, timedelta

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
from orchestration.refusals import Refusal, note_refusal
from orchestration.sight import OVER, REFUSED, run_status, told_by_dagster
from processes.identity import ProcessIdentity
from settings import load_settings

LOOK_SECONDS = 30
GONE = "Its process was killed, or its machine went down. Launch it again: what it had begun is completed then."
# Longer than from one look to the next, whatever holds a look up.
REFUSED_WITHIN = timedelta(minutes=10)


def lost_run_sensor() -> SensorDefinition:
    @sensor(
        name="lost_runs",
        description="Ends runs of batch jobs whose process is gone without a word, and notes refused launches.",
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def end_lost_runs(context: SensorEvaluationContext) -> SkipReason:
        now = datetime.now(UTC)
        for refusal in refused(context.instance, now):
            note_refusal(load_settings().run_folder, refusal, now)
        ended = end_lost(context.instance)
        return SkipReason(f"Ended {', '.join(run.run_id for run in ended)}" if ended else "No run is lost")

    return end_lost_runs


def end_lost(instance: DagsterInstance) -> list[DagsterRun]:
    active = RunsFilter(statuses=[DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING])
    lost = [
        record.dagster_run
        for record in instance.get_run_records(active)
        if _is_of_a_batch(record.dagster_run) and _is_lost(instance, record.dagster_run)
    ]
    # Looked at again: a process that has just ended in order said so before.
    lost = [run for run in lost if run_status(instance, run.run_id) not in OVER]
    for run in lost:
        if run.status is DagsterRunStatus.CANCELING:
            instance.report_run_canceled(run, GONE)
        else:
            instance.report_run_failed(run, GONE)
    return lost


def refused(instance: DagsterInstance, now: datetime) -> list[Refusal]:
    """Launches of the last minutes, of whatever job, that the code server refused because it is about to end."""
    failed = RunsFilter(statuses=[DagsterRunStatus.FAILURE], updated_after=now - REFUSED_WITHIN)
    return [
        Refusal(record.dagster_run.run_id, datetime.fromtimestamp(record.end_time, UTC))
        for record in instance.get_run_records(failed)
        if record.end_time is not None and _was_refused(instance, record)
    ]


def _is_of_a_batch(run: DagsterRun) -> bool:
    return run.tags.get(tags.KIND) != tags.STREAM_KIND


def _was_refused(instance: DagsterInstance, record: RunRecord) -> bool:
    return record.start_time is None and REFUSED in told_by_dagster(instance, record.dagster_run.run_id)


def _is_lost(instance: DagsterInstance, run: DagsterRun) -> bool:
    """Where the process that executes the run is known, and that very process is no more."""
    if worker := ProcessIdentity.from_json(tags.noted(run).get(tags.WORKER, "")):
        return not worker.is_alive()
    # It may have ended before it could note itself. Dagster knows its number, which is enough where nobody has it now.
    for event in instance.get_records_for_run(run.run_id, of_type=DagsterEventType.ENGINE_EVENT).records:
        told = event.event_log_entry.dagster_event
        pid = told.engine_event_data.metadata.get("pid") if told else None
        if pid is not None and str(pid.value).isdigit():
            return ProcessIdentity.of(int(str(pid.value))) is None
    return False

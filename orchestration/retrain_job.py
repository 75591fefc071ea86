"""The job that trains, judges and promotes a model, and what launches it: people, a schedule, and a sensor."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

from dagster import (
    AssetsDefinition,
    DagsterInstance,
    DefaultScheduleStatus,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    ScheduleDefinition,
    SensorDefinition,
    SensorEvaluationContext,
    SkipReason,
    define_asset_job,
    sensor,
)
from dagster._core.definitions.unresolved_asset_job_definition import UnresolvedAssetJobDefinition
from dagster._core.storage.asset_check_execution_record import COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES

from assets.anomaly_checks import DRIFT_CHECK, DRIFT_OF
from assets.model import DAYS, WHY
from lake.click_books import clicks_since
from ml.in_use import model_in_use
from ml.registry import Registry
from orchestration import tags
from orchestration.worker import noting_executor
from settings import Settings, load_settings

RETRAIN = "retrain"
LOOK_SECONDS = 60
# A first model that could not be made is tried for again after a while.
FIRST_AGAIN = timedelta(minutes=15)


def retrain_job(assets: Sequence[AssetsDefinition]) -> UnresolvedAssetJobDefinition:
    return define_asset_job(
        RETRAIN,
        selection=list(assets),
        description="Draws a sample of clicks, trains a model on it, and makes it current if it does no worse than the "
        "present one. The running stream takes it up with its next batch.",
        executor_def=noting_executor,
        tags={tags.KIND: tags.BATCH_KIND},
    )


def retrain_schedule(job: UnresolvedAssetJobDefinition) -> ScheduleDefinition:
    return ScheduleDefinition(
        name="retrain_daily",
        job=job,
        cron_schedule="30 3 * * *",
        tags={WHY: "the daily schedule"},
        default_status=DefaultScheduleStatus.RUNNING,
    )


def retrain_sensor(job: UnresolvedAssetJobDefinition) -> SensorDefinition:
    @sensor(
        name="retrain_when_needed",
        job=job,
        description="Asks for a first model once there are enough clicks, and for a new one when clicks have drifted.",
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def ask_for_training(context: SensorEvaluationContext) -> RunRequest | SkipReason:
        return training_needed(context.instance, load_settings(), datetime.now(UTC))

    return ask_for_training


def training_needed(instance: DagsterInstance, settings: Settings, now: datetime) -> RunRequest | SkipReason:
    """At most once in a set time, whatever the last training was launched by."""
    records = instance.get_run_records(RunsFilter(job_name=RETRAIN), limit=1)
    last = records[0] if records else None
    if last is not None and not last.dagster_run.is_finished:
        return SkipReason(f"Run {last.dagster_run.run_id[:8]} trains, or waits to")
    model = model_in_use(Registry(settings.model_folder)).model
    wait = FIRST_AGAIN if model is None else timedelta(hours=settings.anomaly.retrain_hours)
    if last is not None and now - _utc(last.create_timestamp) < wait:
        return SkipReason(f"The last training was asked for at {last.create_timestamp:%H:%M}, less than {wait} ago")
    after = last.dagster_run.run_id if last else "first"
    if model is None:
        since = (now - timedelta(days=DAYS)).date()
        clicks, least = clicks_since(settings.lake_root, since), settings.anomaly.first_clicks
        if clicks < least:
            return SkipReason(f"No model yet: there are {clicks:,} clicks since {since}, {least:,} are waited for")
        return RunRequest(run_key=f"{RETRAIN}:{after}", tags={WHY: f"there is no model yet, and {clicks:,} clicks"})
    drifted = _drift_of(instance, model.version)
    if drifted is None:
        return SkipReason("The last look at the clicks showed no drift from what the model was trained on")
    # What came before would hide what changed.
    recent = {"training_sample": {"config": {"days": settings.anomaly.retrain_hours / 24}}}
    tag = {WHY: f"drift: {drifted}"[: tags.LONGEST]}
    return RunRequest(run_key=f"{RETRAIN}:{after}", tags=tag, run_config={"ops": recent})


def _drift_of(instance: DagsterInstance, version: str) -> str | None:
    """What the last look found of this very model, None where that was no drift."""
    looks = instance.event_log_storage.get_asset_check_execution_history(
        DRIFT_CHECK, limit=1, status=COMPLETED_ASSET_CHECK_EXECUTION_RECORD_STATUSES
    )
    event = looks[0].event.dagster_event if looks and looks[0].event else None
    evaluation = event.asset_check_evaluation_data if event else None
    if evaluation is None or evaluation.passed:
        return None
    told = evaluation.metadata.get(DRIFT_OF)
    return evaluation.description if told is not None and told.value == version else None


def _utc(at: datetime) -> datetime:
    return at if at.tzinfo else at.replace(tzinfo=UTC)

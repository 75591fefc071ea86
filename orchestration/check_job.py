"""A job that runs the checks of silver, and its schedule."""

from dagster import (
    AssetChecksDefinition,
    AssetSelection,
    DefaultScheduleStatus,
    ScheduleDefinition,
    define_asset_job,
    in_process_executor,
)

from orchestration import tags


def check_schedule(checks: list[AssetChecksDefinition]) -> ScheduleDefinition:
    job = define_asset_job(
        "check_silver",
        selection=AssetSelection.checks(*checks),
        description="Books, freshness, shares and unknown fields of silver, and whether alerts agree with it",
        executor_def=in_process_executor,
        tags={tags.KIND: tags.CHECK_KIND},
    )
    return ScheduleDefinition(
        name="check_silver", job=job, cron_schedule="*/15 * * * *", default_status=DefaultScheduleStatus.RUNNING
    )

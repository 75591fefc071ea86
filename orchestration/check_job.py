"""Jobs that run checks of tables, and their schedules."""

from dagster import (
    AssetChecksDefinition,
    AssetSelection,
    DefaultScheduleStatus,
    ScheduleDefinition,
    define_asset_job,
)

from orchestration import tags
from orchestration.worker import noting_executor


def check_schedule(name: str, description: str, checks: list[AssetChecksDefinition]) -> ScheduleDefinition:
    job = define_asset_job(
        name,
        selection=AssetSelection.checks(*checks),
        description=description,
        executor_def=noting_executor,
        tags={tags.KIND: tags.CHECK_KIND},
    )
    return ScheduleDefinition(
        name=name, job=job, cron_schedule="*/15 * * * *", default_status=DefaultScheduleStatus.RUNNING
    )

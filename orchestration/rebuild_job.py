"""A job that makes silver's tables of clicks anew from bronze."""

from dagster import (
    AssetObservation,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    job,
    op,
)
from pydantic import Field

from assets.batch_spark import BatchSpark
from assets.days_config import DaysConfig
from assets.streams import table_key
from orchestration import tags
from orchestration.worker import noting_executor
from settings import load_settings
from streaming.click_rebuild import RebuildRefused, Rebuilt, rebuild_clicks
from streaming.click_tables import CLICKS, REFUSALS


class RebuildConfig(DaysConfig):
    dry_run: bool = Field(False, description="Only make and compare the shadow tables, and leave them for a look")


def rebuild_job() -> JobDefinition:
    @op(description="Makes shadow tables from bronze, compares them with silver, and swaps them in.")
    def rebuild(context: OpExecutionContext, config: RebuildConfig, spark: BatchSpark) -> None:
        days = config.days()
        try:
            done = rebuild_clicks(spark.spark_session, load_settings(), days, dry_run=config.dry_run)
        except (*REFUSALS, RebuildRefused) as error:
            raise Failure(str(error)) from error
        context.log.info(_told(done, config.dry_run))
        if not config.dry_run:
            context.log_event(AssetObservation(table_key(CLICKS.name), metadata=_metadata(done)))

    @job(
        name="rebuild_silver",
        description="Makes the tables of clicks anew from bronze, by today's schema and rules, for some days or for "
        "all: into shadow tables, which are compared and swapped in while the stream goes on.",
        executor_def=noting_executor,
        resource_defs={"spark": BatchSpark()},
        tags={tags.KIND: tags.BATCH_KIND},
    )
    def rebuild_silver() -> None:
        rebuild()

    return rebuild_silver


def _told(done: Rebuilt, dry_run: bool) -> str:
    if done.same:
        return f"The clicks of {done.days} are what bronze gives: only their windows are counted anew"
    verb = "would change" if dry_run else "changed"
    changes = (f"{name} by {table.gone:,} rows gone, {table.new:,} new" for name, table in done.tables.items())
    return f"Silver of {done.days} {verb}: {'; '.join(changes)}"


def _metadata(done: Rebuilt) -> dict[str, MetadataValue]:
    rows = [
        f"| `{name}` | {table.before:,} | {table.after:,} | {table.gone:,} | {table.new:,} |"
        for name, table in done.tables.items()
    ]
    return {
        "days": MetadataValue.text(str(done.days)),
        "changed": MetadataValue.bool(not done.same),
        "tables": MetadataValue.md(
            "\n".join(["| table | rows before | rows after | gone | new |", "|---|---|---|---|---|", *rows])
        ),
    }

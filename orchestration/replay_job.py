"""A job that takes records out of quarantine which pass by today's schema and rules."""

from dagster import (
    AssetObservation,
    Config,
    Failure,
    JobDefinition,
    MetadataValue,
    OpExecutionContext,
    job,
    op,
)
from pydantic import Field

from assets.batch_spark import BatchSpark
from assets.days_config import time_of
from assets.streams import table_key
from lake.silver import CLICK_QUARANTINE
from orchestration import tags
from orchestration.worker import noting_executor
from settings import load_settings
from streaming.click_replay import Choice, Replayed, replay_clicks
from streaming.click_tables import REFUSALS
from streaming.clicks import reasons


class ReplayConfig(Config):
    reasons: list[str] = Field([], description="Only records that are in quarantine for these reasons; all if left out")
    since: str | None = Field(None, description="Only records from this time on, like 2026-03-01 or 2026-03-01T12:00Z")
    until: str | None = Field(None, description="Only records before this time")
    dry_run: bool = Field(False, description="Only tell what would be moved")

    def choice(self) -> Choice:
        if unknown := sorted(set(self.reasons) - set(reasons())):
            raise Failure(f"There is no reason {', '.join(unknown)}: there are {', '.join(reasons())}.")
        return Choice(self.reasons, time_of("since", self.since), time_of("until", self.until))


def replay_job() -> JobDefinition:
    @op(description="Reads records of quarantine again and moves those that pass into silver.")
    def replay(context: OpExecutionContext, config: ReplayConfig, spark: BatchSpark) -> None:
        choice = config.choice()
        try:
            done = replay_clicks(spark.spark_session, load_settings(), choice, dry_run=config.dry_run)
        except REFUSALS as error:
            raise Failure(str(error)) from error
        context.log.info(_told(done, config.dry_run))
        if not config.dry_run:
            context.log_event(AssetObservation(table_key(CLICK_QUARANTINE.name), metadata=_metadata(done)))

    @job(
        name="replay_quarantine",
        description="Reads clicks in quarantine again, by today's schema and rules, and moves those that pass into "
        "silver. Safe beside the running stream; one that was cut off is completed by the next.",
        executor_def=noting_executor,
        resource_defs={"spark": BatchSpark()},
        tags={tags.KIND: tags.BATCH_KIND},
    )
    def replay_quarantine() -> None:
        replay()

    return replay_quarantine


def _told(done: Replayed, dry_run: bool) -> str:
    looked_at, passed = sum(done.looked_at.values()), sum(done.passed.values())
    verb = "would become" if dry_run else "became"
    return (
        f"{passed:,} of {looked_at:,} records pass: {done.clicks:,} {verb} clicks, {passed - done.clicks:,} repeat one"
    )


def _metadata(done: Replayed) -> dict[str, MetadataValue]:
    rows = [f"| `{reason}` | {count:,} | {done.passed.get(reason, 0):,} |" for reason, count in done.looked_at.items()]
    passed = sum(done.passed.values())
    return {
        "looked at": MetadataValue.int(sum(done.looked_at.values())),
        "became clicks": MetadataValue.int(done.clicks),
        "repeat a click": MetadataValue.int(passed - done.clicks),
        "reasons": MetadataValue.md("\n".join(["| reason | looked at | passed |", "|---|---|---|", *rows])),
    }

"""Starts the queries of a stream: generation, plan, trigger and checkpoint put together."""

from collections.abc import Mapping

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from lake.commit import committed_version, has_rows
from streaming.activity_query import activity_plan
from streaming.bronze import bronze_plan
from streaming.catalog import BRONZE, SILVER, QuerySpec, StreamSpec
from streaming.checkpoints import CheckpointError, Generation, QueryCheckpoints
from streaming.clicks_query import clicks_plan
from streaming.query_plan import Planner, QueryContext

PLANNERS: Mapping[tuple[str, str], Planner] = {
    **{(BRONZE.name, query.name): bronze_plan for query in BRONZE.queries},
    (SILVER.name, "clicks"): clicks_plan,
    (SILVER.name, "click_activity"): activity_plan,
}


class StopRequested(Exception):
    """Raised in place of a new batch once the stream is to stop; the batch is done after the next start."""


def start_query(
    context: QueryContext,
    stream: StreamSpec,
    query: QuerySpec,
    planner: Planner | None = None,
    *,
    until_done: bool = False,
) -> StreamingQuery:
    """Starts it in a FAIR pool of its own. With `until_done` it ends by itself when it has done what was there."""
    spark, settings = context.spark, context.settings
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, stream.name, query.name)
    generation = current_generation(context, checkpoints, stream, query)
    plan = (planner or PLANNERS[stream.name, query.name])(context, query, generation)

    def commit(batch: DataFrame, number: int) -> None:
        if context.stopping():
            raise StopRequested
        context.check_lease()
        plan.commit(batch, number)

    spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{stream.name}.{query.name}")
    writer = (
        plan.rows.writeStream.queryName(query.name)
        .foreachBatch(commit)
        .option("checkpointLocation", checkpoints.location(generation))
    )
    if until_done:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{round(query.trigger_seconds(settings) * 1000)} milliseconds").start()


def current_generation(
    context: QueryContext, checkpoints: QueryCheckpoints, stream: StreamSpec, query: QuerySpec
) -> Generation:
    """The generation to run: the latest, or the next where the plan changed or none was there yet."""
    spark, root = context.spark, context.settings.lake_root
    latest = checkpoints.latest()
    if latest is None:
        if not query.may_read_again and has_rows(spark, query.table, root):
            raise CheckpointError(
                f"{stream.name}/{query.name} has no checkpoint, but its table {query.table.name} has rows: reading the "
                "hub from its start would write them twice. Restore the checkpoint from a backup, or move the table "
                "away to begin anew."
            )
        return checkpoints.begin(query.plan, None, context.now)
    version = committed_version(spark, query.table, root, latest.writer)
    if version is None and checkpoints.has_commits(latest) and query.may_read_again:
        return checkpoints.begin(query.plan, None, context.now)
    if version is None and checkpoints.has_commits(latest):
        raise CheckpointError(
            f"{stream.name}/{query.name} has a checkpoint, but {query.table.path(root)} does not have what it wrote: "
            "going on would leave out all records before. Point TIDEWATCH_LAKE at the lake that it belongs to, or "
            "restore the table; to fill a new lake from the source's start, set TIDEWATCH_CHECKPOINTS to a new place "
            "too."
        )
    if latest.plan == query.plan:
        return latest
    return checkpoints.begin(query.plan, checkpoints.end_offsets(latest, version, query.source_name), context.now)

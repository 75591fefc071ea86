"""Starts the queries of a stream: generation, plan, trigger and checkpoint put together."""

from collections.abc import Mapping
from functools import partial

from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from lake.commit import committed_version, has_rows
from lake.tables import Table
from streaming.activity_query import activity_plan
from streaming.anomaly_query import anomalies_plan
from streaming.bronze import bronze_plan
from streaming.catalog import BRONZE, HEARTBEAT, SENSORS, SILVER, QuerySpec, StreamSpec
from streaming.checkpoints import CheckpointError, Generation, Offsets, QueryCheckpoints
from streaming.clicks_query import clicks_plan
from streaming.compilation import SMALL_BATCH, compiled, interpret
from streaming.machine_queries import health_plan, malformed_plan, status_plan
from streaming.query_plan import Planner, QueryContext, QueryPlan
from streaming.sensor_alerts import alerts_plan
from streaming.sensor_samples import samples_plan

PLANNERS: Mapping[tuple[str, str], Planner] = {
    **{(BRONZE.name, query.name): bronze_plan for query in BRONZE.queries},
    (SILVER.name, "clicks"): clicks_plan,
    (SILVER.name, "click_activity"): activity_plan,
    (SILVER.name, "page_load_anomalies"): anomalies_plan,
    (HEARTBEAT.name, "machine_health"): health_plan,
    (HEARTBEAT.name, "machine_status"): status_plan,
    (HEARTBEAT.name, "malformed_heartbeats"): malformed_plan,
    (SENSORS.name, "alerts"): alerts_plan,
    (SENSORS.name, "samples"): samples_plan,
}


TASKS = "spark.sql.shuffle.partitions"


class StopRequested(Exception):
    """Raised in place of a new batch once the stream is to stop; the batch is done after the next start."""


def start_query(
    context: QueryContext,
    stream: StreamSpec,
    query: QuerySpec,
    planner: Planner | None = None,
    *,
    until_done: bool = False,
    begins_at: Offsets | None = None,
) -> StreamingQuery:
    """Starts it in a FAIR pool of its own. With `until_done` it ends by itself when it has done what was there.
    `begins_at` counts for a query without any checkpoint, which begins at the source's start otherwise."""
    spark, settings = context.spark, context.settings
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, stream.name, query.name)
    if begins_at is not None and checkpoints.latest() is None:
        buckets = query.buckets(settings)
        checkpoints.begin(query.plan, begins_at, context.now, buckets)
    generation = current_generation(context, checkpoints, stream, query)
    plan = (planner or PLANNERS[stream.name, query.name])(context, query, generation)

    spark.sparkContext.setLocalProperty("spark.scheduler.pool", f"{stream.name}.{query.name}")
    tasks = spark.conf.get(TASKS) or settings.spark.shuffle_partitions
    spark.conf.set(TASKS, plan.tasks or tasks)  # the query takes it over when it starts
    writer = plan.rows.writeStream.queryName(query.name)
    writer = _into_hub(writer, context) if plan.commit is None else _in_batches(writer, context, query, plan)
    if until_done:
        writer = writer.trigger(availableNow=True)
    elif plan.real_time_seconds is not None:
        interval = f"{round(plan.real_time_seconds * 1000)} milliseconds"
        writer = writer.trigger(realTime=interval)  # type: ignore[call-overload]
    else:
        writer = writer.trigger(processingTime=f"{round(query.trigger_seconds(settings) * 1000)} milliseconds")
    begun = writer.option("checkpointLocation", checkpoints.location(generation))
    try:
        if plan.commit is None:
            with compiled(spark):
                return begun.start()
        return begun.start()
    finally:
        spark.conf.set(TASKS, tasks)


def _in_batches(writer: DataStreamWriter, context: QueryContext, query: QuerySpec, plan: QueryPlan) -> DataStreamWriter:
    write = plan.commit
    assert write is not None

    def commit(batch: DataFrame, number: int) -> None:
        if context.stopping():
            raise StopRequested
        context.check_lease()
        small = _is_small(context, query)
        if small is not None:
            for session in (context.spark, batch.sparkSession):
                interpret(session, small)
        # Beginning a task and a file for each partition takes longer than reading few records with one.
        write(batch.coalesce(1) if small and plan.straight_from_hub else batch, number)

    return writer.foreachBatch(commit)


def _is_small(context: QueryContext, query: QuerySpec) -> bool | None:
    """Whether its next batch has few rows, going by the last; so is the first. None where nobody watches."""
    if context.rows_of_last_batch is None:
        return None
    before = context.rows_of_last_batch(query.name)
    return before is None or before <= SMALL_BATCH


def _into_hub(writer: DataStreamWriter, context: QueryContext) -> DataStreamWriter:
    """Rows tell their topic. Nobody looks at the lease before each, but its holder's guard does all the time."""
    return writer.format("kafka").options(**context.connection.spark_options()).outputMode("update")


def current_generation(
    context: QueryContext, checkpoints: QueryCheckpoints, stream: StreamSpec, query: QuerySpec
) -> Generation:
    """The generation to run: the latest, or the next where the plan changed or none was there yet."""
    spark, root = context.spark, context.settings.lake_root
    begin = partial(checkpoints.begin, query.plan, now=context.now, buckets=query.buckets(context.settings))
    latest = checkpoints.latest()
    outcome = query.target if isinstance(query.target, Table) else query.ends_up_in
    if latest is None:
        if not query.may_read_again and outcome is not None and has_rows(spark, outcome, root):
            raise CheckpointError(
                f"{stream.name}/{query.name} has no checkpoint, but its table {outcome.name} has rows: reading the "
                "hub from its start would write them twice. Restore the checkpoint from a backup, or move the table "
                "away to begin anew."
            )
        return begin(None)
    if isinstance(query.target, str):
        if latest.plan == query.plan:
            return latest
        return begin(checkpoints.end_offsets(latest, None, query.source_name))
    version = committed_version(spark, query.table, root, latest.writer)
    if version is None and checkpoints.has_commits(latest) and query.may_read_again:
        return begin(None)
    if version is None and checkpoints.has_commits(latest):
        raise CheckpointError(
            f"{stream.name}/{query.name} has a checkpoint, but {query.table.path(root)} does not have what it wrote: "
            "going on would leave out all records before. Point TIDEWATCH_LAKE at the lake that it belongs to, or "
            "restore the table; to fill a new lake from the source's start, set TIDEWATCH_CHECKPOINTS to a new place "
            "too."
        )
    if latest.plan == query.plan:
        return latest
    return begin(checkpoints.end_offsets(latest, version, query.source_name))

"""The queries of the heartbeat stream: heartbeats to changes of machines' health, on the hub and in silver.

Changes are told on the hub first, so that nobody waits for a table: at least once, a repeat with the same id. Silver
reads them from there, and takes each id once.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from hub import MACHINE_STATUS
from lake import machines as tables
from lake.commit import append_once, bring_up_to_date, committed_version, has_rows, replace_all
from lake.silver import BY_RECORD
from lake.tables import Table
from settings import HeartbeatSettings
from streaming.catalog import HEARTBEAT, QuerySpec
from streaming.checkpoints import Generation, QueryCheckpoints
from streaming.heartbeats import beats, malformed
from streaming.machine_changes import as_records, each_once, from_records, latest_of_each, unreadable
from streaming.machine_health import Patience
from streaming.machine_processor import CHANGES, MachineProcessor
from streaming.machine_state import bucket_of_machine, carried_over
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import observe_newest, planned_records

MICROS = 1_000_000
# Every so many heartbeats of a partition one tells its time to all buckets, which pulses alone would do less often.
CLOCK_EVERY = 16
STATUS_RECORDS = 200_000


def health_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings.heartbeat
    records = planned_records(context, query.hub, generation, settings.max_records)
    read = observe_newest(beats(records), context.partitions[query.hub])
    keys = bucket_keys(context.spark, generation.buckets or settings.buckets)
    checkpoints = QueryCheckpoints(context.spark, context.settings.checkpoint_root, HEARTBEAT.name, query.name)
    changes = machine_changes(read, settings, keys, carried_over(context.spark, checkpoints, generation, keys))
    options = context.connection.spark_options()

    def commit(batch: DataFrame, number: int) -> None:
        batch.write.format("kafka").options(**options).option("topic", MACHINE_STATUS).save()

    return QueryPlan(as_records(changes), commit, tasks=len(keys))


def machine_changes(
    read: DataFrame, settings: HeartbeatSettings, keys: list[int], begin_with: Mapping[int, bytes]
) -> DataFrame:
    """Each heartbeat goes to its machine's bucket, and what only tells the time of its partition to all of them."""
    to_own = f"array(named_struct('bucket', {bucket_of_machine(keys)}, 'machine', machine))"
    to_all = ", ".join(f"named_struct('bucket', {key}, 'machine', cast(NULL AS STRING))" for key in keys)
    rows = read.selectExpr(
        f"""inline(concat(
            CASE WHEN machine IS NOT NULL THEN {to_own} ELSE array() END,
            CASE WHEN machine IS NULL OR sequence_number % {CLOCK_EVERY} = 0 THEN array({to_all}) ELSE array() END))""",
        "partition",
        "at",
    )
    patience = Patience(round(settings.silence_seconds * MICROS), round(settings.retirement_hours * 3600 * MICROS))
    return rows.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=MachineProcessor(patience, one_clock=settings.pulse_seconds > 0, carried_over=begin_with),
        outputStructType=CHANGES,
        outputMode="Append",
        timeMode="None",
    )


def bucket_keys(spark: SparkSession, buckets: int) -> list[int]:
    """A key for each bucket, such that Spark gives each bucket a task of its own."""
    task = F.pmod(F.hash(F.col("id").cast("int")), F.lit(buckets)).alias("task")
    rows = spark.range(100 * buckets).select(F.col("id").cast("int"), task).collect()
    keys = {row["task"]: row["id"] for row in reversed(rows)}
    return [keys[task] for task in range(buckets)]


def status_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    spark, root = context.spark, context.settings.lake_root
    bring_up_to_date(spark, tables.MACHINES, root)
    changes = _Appended(context, query.table, generation)
    quarantined = _Appended(context, tables.quarantine_table(query.hub), generation, may_read_again=True)
    if not has_rows(spark, tables.MACHINES, root) and has_rows(spark, query.table, root):
        every = _rows(spark, query.table, root).select(*(column.name for column in tables.MACHINES.columns))
        replace_all(latest_of_each(every).coalesce(1), tables.MACHINES, root)

    def commit(batch: DataFrame, number: int) -> None:
        """The table of all changes last: until it has the batch, the same changes are new when it is done again."""
        with kept(from_records(batch)) as read, kept(each_once(read)) as told, kept(_new_changes(told, root)) as new:
            quarantined.append(unreadable(read), number)
            if not new.isEmpty():
                there = _rows(spark, tables.MACHINES, root)
                now = latest_of_each(there.unionByName(new.select(*there.columns)))
                replace_all(now.coalesce(1), tables.MACHINES, root, (generation.writer, number))
            changes.append(new, number)

    records = planned_records(context, query.hub, generation, STATUS_RECORDS)
    rows = records.selectExpr("value AS body", "partition", "offset AS sequence_number", "timestamp AS enqueued_time")
    return QueryPlan(observe_newest(rows, context.partitions[query.hub]), commit)


def _new_changes(told: DataFrame, root: str) -> DataFrame:
    """Without those that the table has."""
    ends = told.agg(F.min("since"), F.max("since")).first()
    if ends is None or ends[0] is None:
        return told
    first, last = (end.astimezone(UTC) for end in ends)
    there = _rows(told.sparkSession, tables.MACHINE_STATUS, root)
    same_time = there.where(F.col("date").between(first.date(), last.date()))
    same_time = same_time.where(F.col("since").between(F.lit(first), F.lit(last)))
    return told.join(same_time.select("id"), "id", "left_anti")


def malformed_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    quarantined = _Appended(context, query.table, generation)
    # It looks at all heartbeats, but seldom: so at many at a time.
    chosen = context.settings.heartbeat
    most = chosen.max_records * max(1, math.ceil(chosen.table_trigger_seconds))
    records = planned_records(context, query.hub, generation, most)
    read = observe_newest(records, context.partitions[query.hub], "timestamp")
    return QueryPlan(malformed(read), quarantined.append)


class _Appended:
    """A table that few batches have rows for: the others make no commit, but for a generation's first, by which it is
    known later that the table belongs to the checkpoint."""

    def __init__(
        self, context: QueryContext, table: Table, generation: Generation, *, may_read_again: bool = False
    ) -> None:
        """With `may_read_again` records that are there already are left out."""
        self._table, self._root, self._writer = table, context.settings.lake_root, generation.writer
        self._may_read_again = may_read_again
        bring_up_to_date(context.spark, table, self._root)
        self._known = committed_version(context.spark, table, self._root, self._writer) is not None

    def append(self, batch: DataFrame, number: int) -> None:
        if self._may_read_again:
            there = _rows(batch.sparkSession, self._table, self._root)
            batch = batch.join(there.select(*BY_RECORD), list(BY_RECORD), "left_anti").select(*batch.columns)
        with kept(batch) as rows:
            if not self._known or not rows.isEmpty():
                append_once(rows.coalesce(1), self._table, self._root, self._writer, number)
                self._known = True


def _rows(spark: SparkSession, table: Table, root: str) -> DataFrame:
    return spark.read.format("delta").load(table.path(root))


@contextmanager
def kept(rows: DataFrame) -> Iterator[DataFrame]:
    """In memory or on disk, so that they are computed once."""
    if rows.is_cached:
        yield rows
        return
    rows = rows.persist(StorageLevel.MEMORY_AND_DISK)
    try:
        yield rows
    finally:
        rows.unpersist()

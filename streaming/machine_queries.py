"""The queries of the heartbeat stream: heartbeats to changes of machines' health, on the hub and in silver.

Changes are told on the hub first, so that nobody waits for a table: at least once, a repeat with the same id. Silver
reads them from there, and takes each id once.
"""

import logging
import math
from collections.abc import Mapping
from datetime import UTC

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from hub import MACHINE_STATUS
from hub.connection import HubConnection
from hub.topics import HUBS_TIME, TIMESTAMP_TYPE, stamped_by_senders
from lake import machines as tables
from lake.commit import bring_up_to_date, has_rows, replace_all
from lake.silver import quarantine_table
from settings import HeartbeatSettings
from streaming.appended import Appended, kept, onto_hub, rows_now
from streaming.catalog import HEARTBEAT, QuerySpec
from streaming.checkpoints import Generation, QueryCheckpoints
from streaming.heartbeats import beats, malformed
from streaming.machine_changes import as_records, each_once, from_records, latest_of_each, unreadable
from streaming.machine_health import Patience
from streaming.machine_processor import CHANGES, MachineProcessor
from streaming.machine_state import bucket_keys, bucket_of_machine, carried_over
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import observe_newest, planned_records

log = logging.getLogger("tidewatch")

MICROS = 1_000_000
# Every so many heartbeats of a partition one tells its time to all buckets, which pulses alone would do less often.
CLOCK_EVERY = 16
STATUS_RECORDS = 200_000


def health_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings.heartbeat
    warn_of_senders_clocks(context.connection, query.hub)
    records = planned_records(context, query.hub, generation, settings.max_records)
    read = observe_newest(beats(records), context.partitions[query.hub])
    keys = bucket_keys(context.spark, generation.buckets or settings.buckets)
    checkpoints = QueryCheckpoints(context.spark, context.settings.checkpoint_root, HEARTBEAT.name, query.name)
    begin_with = carried_over(context.spark, checkpoints, generation, keys, context.partitions[query.hub])
    changes = machine_changes(read, settings, keys, begin_with)
    return QueryPlan(as_records(changes), onto_hub(context, MACHINE_STATUS), tasks=len(keys))


def warn_of_senders_clocks(connection: HubConnection, hub: str) -> None:
    """A machine whose clock is wrong then stops or rushes the clock of its whole partition."""
    if stamped_by_senders(connection, [hub]):
        log.warning(
            "%s has the times of its senders' clocks, so that silence is judged by clocks that may be wrong: set %s=%s "
            "on it.",
            hub,
            TIMESTAMP_TYPE,
            HUBS_TIME,
        )


def machine_changes(
    read: DataFrame, settings: HeartbeatSettings, keys: list[int], begin_with: Mapping[int, bytes]
) -> DataFrame:
    """Changes of machines' health, each told by its machine's bucket."""
    pulses = settings.pulse_seconds > 0
    rows = to_buckets(read, keys, pulses=pulses)
    patience = Patience(round(settings.silence_seconds * MICROS), round(settings.retirement_hours * 3600 * MICROS))
    return rows.groupBy("bucket").transformWithStateInPandas(
        statefulProcessor=MachineProcessor(patience, one_clock=pulses, carried_over=begin_with),
        outputStructType=CHANGES,
        outputMode="Append",
        timeMode="None",
    )


def to_buckets(read: DataFrame, keys: list[int], *, pulses: bool) -> DataFrame:
    """Each heartbeat goes to its machine's bucket, and what only tells the time of its partition to all of them.

    Without pulses that is every one: nothing else tells the other buckets that time goes on."""
    every = CLOCK_EVERY if pulses else 1
    to_own = f"array(named_struct('bucket', {bucket_of_machine(keys)}, 'machine', machine))"
    to_all = ", ".join(f"named_struct('bucket', {key}, 'machine', cast(NULL AS STRING))" for key in keys)
    return read.selectExpr(
        f"""inline(concat(
            CASE WHEN machine IS NOT NULL THEN {to_own} ELSE array() END,
            CASE WHEN machine IS NULL OR sequence_number % {every} = 0 THEN array({to_all}) ELSE array() END))""",
        "partition",
        "at",
    )


def status_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    spark, root = context.spark, context.settings.lake_root
    bring_up_to_date(spark, tables.MACHINES, root)
    changes = Appended(context, query.table, generation)
    quarantined = Appended(context, quarantine_table(query.hub), generation, may_read_again=True)
    if not has_rows(spark, tables.MACHINES, root) and has_rows(spark, query.table, root):
        every = rows_now(spark, query.table, root).select(*(column.name for column in tables.MACHINES.columns))
        replace_all(latest_of_each(every).coalesce(1), tables.MACHINES, root)

    def commit(batch: DataFrame, number: int) -> None:
        """The table of all changes last: until it has the batch, the same changes are new when it is done again."""
        with kept(from_records(batch)) as read, kept(each_once(read)) as told, kept(_new_changes(told, root)) as new:
            quarantined.append(unreadable(read), number)
            if not new.isEmpty():
                there = rows_now(spark, tables.MACHINES, root)
                now = latest_of_each(there.unionByName(new.select(*there.columns)))
                replace_all(now.coalesce(1), tables.MACHINES, root, (generation.writer, number))
            changes.append(new, number)

    records = planned_records(context, query.hub, generation, STATUS_RECORDS)
    rows = records.selectExpr("value AS body", "partition", "offset AS sequence_number", "timestamp AS enqueued_time")
    return QueryPlan(observe_newest(rows, context.partitions[query.hub]), commit, straight_from_hub=True)


def _new_changes(told: DataFrame, root: str) -> DataFrame:
    """Without those that the table has."""
    ends = told.agg(F.min("since"), F.max("since")).first()
    if ends is None or ends[0] is None:
        return told
    first, last = (end.astimezone(UTC) for end in ends)
    there = rows_now(told.sparkSession, tables.MACHINE_STATUS, root)
    same_time = there.where(F.col("date").between(first.date(), last.date()))
    same_time = same_time.where(F.col("since").between(F.lit(first), F.lit(last)))
    return told.join(same_time.select("id"), "id", "left_anti")


def malformed_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    quarantined = Appended(context, query.table, generation)
    # It looks at all heartbeats, but seldom: so at many at a time.
    chosen = context.settings.heartbeat
    most = chosen.max_records * max(1, math.ceil(chosen.table_trigger_seconds))
    records = planned_records(context, query.hub, generation, most)
    read = observe_newest(records, context.partitions[query.hub], "timestamp")
    return QueryPlan(malformed(read), quarantined.append, straight_from_hub=True)

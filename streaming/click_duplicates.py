"""Which records of a batch repeat a click: exact, without state, from the batch and the clicks that were kept before.

A record repeats a click when one with the same eventID was kept whose time is at most the horizon away. In a batch the
earliest record is kept. There is no state to keep, to bound or to lose: what was kept is in silver/clicks.
"""

from dataclasses import dataclass
from datetime import timedelta

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

KEY = ("eventID", "processing_time", "partition", "sequence_number")
HASH = "xxhash64(eventID) AS hash"
PLACED = "struct(processing_time, partition, sequence_number)"
# Beyond this many, hashes are not sent to every executor, but shuffled.
BROADCAST_ROWS = 2_000_000


@dataclass(frozen=True)
class Suspects:
    """Hashes of the eventIDs that a batch may repeat: few, so that only their records need to be compared."""

    hashes: DataFrame
    count: int

    def of(self, records: DataFrame) -> DataFrame:
        """The records with such a hash."""
        hashes = F.broadcast(self.hashes) if self.count <= BROADCAST_ROWS else self.hashes
        return records.selectExpr(*KEY, HASH).join(hashes, "hash", "left_semi")


def suspect_hashes(new: DataFrame, kept: DataFrame) -> DataFrame:
    """Those that `new` has more than once, or that both have: two eventIDs of one hash are told apart later."""
    both = new.selectExpr(HASH, "1 AS new").unionAll(kept.selectExpr(HASH, "0 AS new"))
    return (
        both.groupBy("hash")
        .agg(F.sum("new").alias("new"), F.count("*").alias("all"))
        .where("new > 0 AND all > 1")
        .select("hash")
    )


def repeats(new: DataFrame, kept: DataFrame, suspects: Suspects, horizon: timedelta) -> DataFrame:
    """Of `new`, the records that repeat a click, each with the place of the one that was kept.

    Both need the columns of `KEY`. A new record that is itself among the kept ones comes out with its own place.
    """
    both = (
        suspects.of(new)
        .selectExpr("eventID", f"{PLACED} AS new", "NULL AS kept")
        .unionAll(suspects.of(kept).selectExpr("eventID", "NULL AS new", f"{PLACED} AS kept"))
    )
    return (
        both.groupBy("eventID")
        .agg(F.expr("sort_array(collect_list(new)) AS new"), F.expr("sort_array(collect_list(kept)) AS before"))
        .selectExpr("*", f"{_all_kept(horizon)} AS kept")
        .selectExpr("eventID", f"inline({_repeated(horizon)})")
        .selectExpr(
            "eventID",
            "kept.partition AS kept_partition",
            "kept.sequence_number AS kept_sequence_number",
            "record.*",
            "to_date(record.processing_time) AS date",
        )
    )


SAME = "one = record"


def _near(horizon: timedelta) -> str:
    micros = round(horizon.total_seconds() * 1_000_000)
    return f"abs(unix_micros(one.processing_time) - unix_micros(record.processing_time)) <= {micros}"


def _all_kept(horizon: timedelta) -> str:
    """Those kept before and, in their order, the new ones that none of them is near to."""
    return f"""aggregate(new, before, (done, record) -> CASE
        WHEN exists(done, one -> {SAME} OR {_near(horizon)}) THEN done ELSE concat(done, array(record)) END)"""


def _repeated(horizon: timedelta) -> str:
    """The new ones that were not kept just now, each with the first that was kept near it."""
    others = f"filter(new, record -> NOT exists(kept, one -> {SAME}) OR exists(before, one -> {SAME}))"
    first = f"coalesce(get(filter(before, one -> {SAME}), 0), get(filter(kept, one -> {_near(horizon)}), 0))"
    return f"transform({others}, record -> named_struct('record', record, 'kept', {first}))"

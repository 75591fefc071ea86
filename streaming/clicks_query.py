"""The query `clicks` of the silver stream: from bronze to clicks, clickpath, duplicates and quarantine, exactly once.

All four tables of a batch are written under one lock, silver/clicks last: once it has the batch, the batch is done.
Until then a repeated batch finds what was kept before as it was, and is judged by the rules that were noted when it was
first begun, so that it comes to the same result; each table takes it only once.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lake.commit import (
    SWAP,
    append_once,
    bring_up_to_date,
    committed_version,
    committed_versions,
    note_done,
    other_writers,
    take_back,
)
from lake.silver import CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table
from settings import Settings
from streaming import clicks as silver
from streaming.catalog import SILVER, QuerySpec
from streaming.checkpoints import Generation, QueryCheckpoints
from streaming.click_duplicates import BROADCAST_ROWS, HASH, KEY, Suspects, repeats, suspect_hashes
from streaming.click_schema import ClickSchema
from streaming.click_tables import CLICKS, ENTERED, RECORD, RULES, click_tables_locked
from streaming.hadoop_files import HadoopFiles
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import table_rows

# Below this many rows a batch becomes one file a table and day: reading many small files costs more than writing one.
ROWS_OF_ONE_FILE = 50_000
VERDICT = ("unknown_fields", "reason", "sentence")


@dataclass(frozen=True)
class BatchRules:
    """By what a batch is judged."""

    promoted: dict[str, str]
    rules: silver.ClickRules
    horizon_minutes: float

    @classmethod
    def of(cls, settings: Settings) -> Self:
        chosen = settings.silver
        rules = silver.ClickRules(chosen.longest_page_seconds, chosen.most_related)
        return cls(dict(chosen.promoted_fields), rules, chosen.watermark_minutes)

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        return cls(fields["promoted"], silver.ClickRules(**fields["rules"]), fields["horizon_minutes"])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def schema(self) -> ClickSchema:
        return ClickSchema(self.promoted)

    @property
    def horizon(self) -> timedelta:
        return timedelta(minutes=self.horizon_minutes)


def clicks_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    settings, spark, root = context.settings, context.spark, context.settings.lake_root
    assert isinstance(query.source, Table)
    tables = (clicks_table(settings.silver.promoted_fields), *query.also_writes)
    for table in tables:
        bring_up_to_date(spark, table, root)
    # A swap that was cut off is completed now: the next batch may be long in coming.
    with click_tables_locked(spark, settings, context.check_lease):
        _take_back_half_batches(context, generation)
    read_before = any(other_writers(spark, table, root, generation.writer) for table in tables)
    notes = BatchNotes(context, query, generation)

    def commit(batch: DataFrame, number: int) -> None:
        with click_tables_locked(spark, settings, context.check_lease):
            done = committed_version(batch.sparkSession, CLICKS, root, generation.writer)
            if done is None or done < number:
                to = Destination(root, generation.writer, number, context.check_lease)
                ClickBatch(batch, notes.rules_of(number), to, read_before=read_before).write()

    rows = table_rows(spark, query.source, root, starts_at=generation.starts_at, max_mb=settings.silver.max_mb)
    return QueryPlan(rows.select(*silver.OF_BRONZE), commit)


def _take_back_half_batches(context: QueryContext, generation: Generation) -> None:
    """Those that earlier generations could not complete: their records are read again, in other batches, and may come
    out otherwise."""
    spark, root = context.spark, context.settings.lake_root
    done = committed_versions(spark, CLICKS, root)
    half: dict[str, int] = {}
    for table in (CLICK_QUARANTINE, CLICK_DUPLICATES, CLICKPATH):
        for writer, version in committed_versions(spark, table, root).items():
            if version > done.get(writer, -1) and writer != generation.writer and not writer.startswith(SWAP):
                context.check_lease()
                take_back(spark, table, root, writer, version)
                half[writer] = max(version, half.get(writer, version))
    for writer, version in half.items():
        note_done(spark, CLICKS, root, writer, version)


class BatchNotes:
    """The rules of the batch in work, in a file beside the checkpoint, so that settings which change while a batch is
    half written do not put its records into two tables or none."""

    def __init__(self, context: QueryContext, query: QuerySpec, generation: Generation) -> None:
        self._rules = BatchRules.of(context.settings)
        checkpoints = QueryCheckpoints(context.spark, context.settings.checkpoint_root, SILVER.name, query.name)
        self._folder = f"{checkpoints.folder(generation)}/{RULES}"
        self._files = HadoopFiles(context.spark, self._folder)

    def rules_of(self, number: int) -> BatchRules:
        """Those noted for the batch; today's for one that begins now."""
        noted = self._files.read(f"{self._folder}/{number}")
        if noted is not None:
            return BatchRules.from_json(noted)
        self._files.write(f"{self._folder}/{number}", self._rules.to_json())
        for name in self._files.names(self._folder):
            if name.isdigit() and int(name) < number:
                self._files.delete(f"{self._folder}/{name}")
        return self._rules


@dataclass(frozen=True)
class Destination:
    """Where the tables of a batch are, and as whose batch they take it, once."""

    root: str
    writer: str
    number: int
    check: Callable[[], None] = lambda: None
    """Called before each table is written; does not return when it may not be."""


class ClickBatch:
    """One batch on its way into the tables. What is needed more than once is cached until the end."""

    def __init__(
        self,
        batch: DataFrame,
        rules: BatchRules,
        to: Destination,
        *,
        read_before: bool = False,
        kept_elsewhere: DataFrame | None = None,
    ) -> None:
        """`read_before` says that others wrote to these tables, so that records of the batch may be there already;
        `kept_elsewhere` has clicks that count as kept and are not in these tables."""
        self._batch, self._rules, self._to = batch, rules, to
        self._spark, self._schema = batch.sparkSession, rules.schema
        self._read_before, self._kept_elsewhere = read_before, kept_elsewhere
        self._clicks = clicks_table(rules.promoted)
        self._cached: list[DataFrame] = []

    def write(self) -> None:
        try:
            self._write()
        finally:
            for frame in self._cached:
                frame.unpersist()

    def _write(self) -> None:
        judged, seen = self._judged()
        failed, good = judged.where("reason IS NOT NULL"), judged.where("reason IS NULL")
        if seen.failed:
            self._append(silver.quarantined(failed, self._schema), CLICK_QUARANTINE)
        repeated, count = self._repeats(good, seen)
        if repeated is not None:
            records = repeated.select(*RECORD)
            good = good.join(F.broadcast(records) if count <= BROADCAST_ROWS else records, RECORD, "left_anti")
            self._append(repeated, CLICK_DUPLICATES)
        path = silver.clickpath(good)
        if self._read_before:
            path = path.join(self._of_days(CLICKPATH, seen.days).select(*RECORD), RECORD, "left_anti")
        self._append(path, CLICKPATH)
        self._append(silver.clicks(good, self._schema), self._clicks)

    def _judged(self) -> tuple[DataFrame, "_Seen"]:
        """All records with their verdict."""
        read = self._cache(silver.plain_clicks(self._new_records(), self._schema, self._rules.rules))
        plain = read.where("plain").drop("ingest_time", "plain")
        judged = plain.selectExpr("*", *(f"cast(NULL AS STRING) AS {name}" for name in VERDICT))
        seen = _Seen.of(read.selectExpr("processing_time", "date", "plain AS passes"))
        self._rows = seen.passed + seen.failed
        if not seen.failed:
            return judged, seen
        odd = self._cache(silver.judged_clicks(read.where("NOT plain"), self._schema, self._rules.rules))
        after_a_closer_look = _Seen.of(odd.selectExpr("processing_time", "date", "reason IS NULL AS passes"))
        return judged.unionByName(odd), replace(seen, failed=0).with_others(after_a_closer_look)

    def _new_records(self) -> DataFrame:
        """Those of the batch that are in none of the tables yet."""
        if not self._read_before:
            return self._batch
        days = {row["date"] for row in self._batch.select("date").distinct().collect()}
        there = [self._of_days(table, days).select(*RECORD) for table in ENTERED]
        known = there[0].union(there[1]).union(there[2])
        same = [F.col("enqueued_time").eqNullSafe(known["processing_time"])]
        same += [self._batch[name] == known[name] for name in ("partition", "sequence_number")]
        return self._batch.join(known, same, "left_anti")

    def _repeats(self, good: DataFrame, seen: "_Seen") -> tuple[DataFrame | None, int]:
        """Those of the good records that repeat a click, and how many; None where there are none."""
        if seen.first is None or seen.last is None:
            return None, 0
        horizon = self._rules.horizon
        around = {day + timedelta(days=more) for day in seen.days if day for more in (-1, 0, 1)}
        near = F.col("processing_time").between(F.lit(seen.first - horizon), F.lit(seen.last + horizon))
        kept = self._of_days(self._clicks, around).select(*KEY)
        if self._kept_elsewhere is not None:
            kept = kept.union(self._kept_elsewhere.select(*KEY))
        kept = kept.where(near)
        new = good.select(*KEY)
        suspects = self._suspects(new, kept, seen)
        if not suspects.count:
            return None, 0
        repeated = self._cache(repeats(new, kept, suspects, horizon))
        count = repeated.count()
        return (repeated, count) if count else (None, 0)

    def _suspects(self, new: DataFrame, kept: DataFrame, seen: "_Seen") -> Suspects:
        if seen.passed <= ROWS_OF_ONE_FILE:  # telling those that repeat nothing would take longer than to compare them
            return Suspects(new.selectExpr(HASH).distinct(), seen.passed)
        hashes = self._cache(suspect_hashes(new, kept))
        return Suspects(hashes, hashes.count())

    def _of_days(self, table: Table, days: Collection[date | None]) -> DataFrame:
        rows = self._spark.read.format("delta").load(table.path(self._to.root))
        wanted = F.col("date").isin(sorted(day for day in days if day))
        return rows.where(wanted | F.col("date").isNull() if None in days else wanted)

    def _append(self, rows: DataFrame, table: Table) -> None:
        self._to.check()
        if self._rows <= ROWS_OF_ONE_FILE:
            rows = rows.coalesce(1)
        append_once(rows, table, self._to.root, self._to.writer, self._to.number)

    def _cache(self, frame: DataFrame) -> DataFrame:
        cached = frame.persist(StorageLevel.MEMORY_AND_DISK)
        self._cached.append(cached)
        return cached


@dataclass(frozen=True)
class _Seen:
    """How many records pass and fail, and of which times and days the passing ones are."""

    passed: int
    failed: int
    first: datetime | None
    last: datetime | None
    days: frozenset[date]

    @classmethod
    def of(cls, records: DataFrame) -> Self:
        row = records.agg(
            F.expr("count_if(passes)"),
            F.expr("count_if(NOT passes)"),
            F.expr("min(CASE WHEN passes THEN processing_time END)"),
            F.expr("max(CASE WHEN passes THEN processing_time END)"),
            F.expr("collect_set(CASE WHEN passes THEN date END)"),
        ).first()
        assert row is not None
        passed, failed, first, last, days = row
        return cls(passed, failed, first and first.astimezone(UTC), last and last.astimezone(UTC), frozenset(days))

    def with_others(self, others: "_Seen") -> "_Seen":
        firsts, lasts = [self.first, others.first], [self.last, others.last]
        return _Seen(
            self.passed + others.passed,
            self.failed + others.failed,
            min((at for at in firsts if at), default=None),
            max((at for at in lasts if at), default=None),
            self.days | others.days,
        )

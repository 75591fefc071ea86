"""Makes the tables of clicks anew from bronze, for some days or for all, beside the running stream.

Everything is made in shadow tables first, by the same code as the stream's batches: the records that silver has read,
in the order of their times, then in rounds those that it took up meanwhile. With the lock of the clicks held, the last
few of these are added and the shadow's files take the place of the days' rows, table after table, in commits that write
no rows. What is to be swapped is noted before the first of these commits; from then on, whoever takes the lock next
completes it.
"""

import itertools
import math
import operator
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from functools import reduce
from typing import Self, TypeVar

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import SWAP, bring_up_to_date, newest_version, table_exists
from lake.days import MB, Day, any_of, bytes_by_day, slices
from lake.lock import LockTimeout, tables_locked
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.swap import files_of, path_of, paths_where
from lake.tables import Table, bronze_table
from settings import Settings
from streaming import clicks as silver
from streaming.activity_query import refuse_other_windows, restate_stale_days
from streaming.click_duplicates import KEY
from streaming.click_tables import (
    CLICK_TABLES,
    CLICKS,
    ENTERED,
    RECORD,
    BatchInWork,
    Swap,
    SwapNote,
    activity_lock,
    bronze_read,
    click_tables_locked,
    note_stale_days,
    noted_rules,
    refuse_half_a_batch,
    refuse_half_a_replay,
    refuse_missing_columns,
)
from streaming.clicks_query import BatchRules, ClickBatch, Destination
from streaming.hadoop_files import HadoopFiles

BRONZE = bronze_table("clicks")
SHADOW = "shadow"
MOVED_AT_ONCE = 8
ONE_DAY = timedelta(days=1)
FOR_OTHERS_SECONDS = 1.0
PATIENCE_SECONDS = 600.0
MOST_ROUNDS, FEW_RECORDS = 10, 100_000
"""Rounds in which the shadow catches up with the running stream, until what is left is little."""
MOST_PARTS = 96
FILE, FILE_NAME = "_metadata.file_name", "file_name"
PARTITION = re.compile(r"/date=([^/]+)/")
NO_DAY = "__HIVE_DEFAULT_PARTITION__"
T = TypeVar("T")


class RebuildRefused(Exception):
    """A rebuild that would lose something, or has nothing to begin with."""


@dataclass(frozen=True)
class Days:
    """From the first to the last, or without an end; all of them, and records without a time, when both are None."""

    first: date | None = None
    last: date | None = None

    @property
    def where(self) -> str | None:
        ends = [f"date {sign} date'{day}'" for sign, day in ((">=", self.first), ("<=", self.last)) if day]
        return " AND ".join(ends) or None

    @property
    def neighbours(self) -> list[date]:
        """The days before and after."""
        return [*([self.first - ONE_DAY] if self.first else []), *([self.last + ONE_DAY] if self.last else [])]

    def with_neighbours(self, days: set[date]) -> Self:
        return replace(
            self,
            first=self.first and min(self.first, *days),
            last=self.last and max(self.last, *days),
        )

    def near_ends(self, horizon: timedelta) -> Column:
        """That a row's time is so near the first moment, or the one after the last."""
        ends = [day for day in (self.first, self.last and self.last + ONE_DAY) if day]
        at = [datetime.combine(end, datetime.min.time(), UTC) for end in ends]
        near = [F.col("processing_time").between(F.lit(end - horizon), F.lit(end + horizon)) for end in at]
        return reduce(operator.or_, near)

    def of(self, rows: DataFrame) -> DataFrame:
        return rows if self.where is None else rows.where(self.where)

    def __str__(self) -> str:
        if self.where is None:
            return "all days"
        return f"{self.first or 'the first day'} to {self.last or 'the last day'}"


@dataclass(frozen=True)
class Compared:
    """Rows of a table before and after, those that only one of the two has."""

    before: int
    after: int
    gone: int
    new: int


@dataclass(frozen=True)
class Rebuilt:
    days: Days
    """At least those that were asked for."""
    tables: dict[str, Compared]

    @property
    def same(self) -> bool:
        return not any(table.gone or table.new for table in self.tables.values())


def rebuild_clicks(spark: SparkSession, settings: Settings, days: Days, *, dry_run: bool = False) -> Rebuilt:
    """A dry run only makes and compares the shadow tables, and leaves them for a look until the next rebuild."""
    rules, root = BatchRules.of(settings), settings.lake_root
    with _alone(spark, settings):
        if not all(table_exists(spark, table, root) for table in CLICK_TABLES):
            raise RebuildRefused("Silver has no clicks yet: let the stream silver run first.")
        refuse_missing_columns(spark, root, clicks_table(rules.promoted))
        bring_up_to_date(spark, CLICK_ACTIVITY, root)
        refuse_other_windows(spark, settings)
        remove_shadows(spark, settings)
        of_stream = noted_rules(spark, settings)
        try:
            while True:
                shadow = _Shadow(spark, settings, rules, days, of_stream)
                disputed = shadow.build()
                result = None if disputed else shadow.compared()
                if result is not None and dry_run:
                    return result
                if result is not None and result.same:
                    patiently(shadow.note_stale_days)
                    break
                disputed = disputed or shadow.swap()
                if not disputed:
                    break
                # What was judged by clicks that are to be judged anew themselves can't stay.
                days = days.with_neighbours(disputed)
                remove_shadows(spark, settings)
        finally:
            if not dry_run:
                remove_shadows(spark, settings)
        restate_all_stale_days(spark, settings)
        assert result is not None
        return result


@contextmanager
def _alone(spark: SparkSession, settings: Settings) -> Iterator[None]:
    held = False
    try:
        with tables_locked(spark, settings.run_folder / "silver" / "rebuild.lock", 1):
            held = True
            yield
    except LockTimeout as error:
        if held:
            raise
        raise RebuildRefused("Another rebuild runs: wait until it is done, or terminate its run.") from error


def remove_shadows(spark: SparkSession, settings: Settings) -> None:
    """Those of earlier rebuilds too."""
    folder = f"{settings.lake_root.rstrip('/')}/{SHADOW}"
    HadoopFiles(spark, folder).delete_folder(folder)


def restate_all_stale_days(spark: SparkSession, settings: Settings) -> None:
    """Some at a time, and the stream in between."""

    def some() -> bool:
        with tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds):
            return restate_stale_days(spark, settings, now=datetime.now(UTC))

    while patiently(some):
        time.sleep(FOR_OTHERS_SECONDS)


@dataclass(frozen=True)
class _Pinned:
    """What silver had at one moment, no batch being half done."""

    versions: dict[str, int]
    """Of its tables."""
    bronze: int | None
    """The last version of bronze that it had read to the end; None where that is not known."""


class _Shadow:
    """The tables of some days, made anew beside the real ones."""

    def __init__(
        self, spark: SparkSession, settings: Settings, rules: BatchRules, days: Days, of_stream: str | None
    ) -> None:
        """`of_stream` are the rules that the stream had when the rebuild began."""
        self._spark, self._settings, self._rules, self._days = spark, settings, rules, days
        self._of_stream = of_stream
        self._name = f"{SWAP}{secrets.token_hex(6)}"
        self._root = f"{settings.lake_root.rstrip('/')}/{SHADOW}/{self._name}"
        self._tables = (clicks_table(rules.promoted), CLICKPATH, CLICK_DUPLICATES, CLICK_QUARANTINE)
        self._built: set[Day] = set()
        self._batches = 0
        self._caught_up: _Pinned | None = None
        for table in self._tables:
            bring_up_to_date(spark, table, self._root)

    def build(self) -> set[date]:
        """Adds all that silver has. Returns days next to the range that have to be rebuilt with it; see `_disputed`."""
        with click_tables_locked(self._spark, self._settings):
            self._pin()
        if self._pinned.bronze is not None:
            read = self._days.of(self._bronze(self._pinned.bronze))
            for days, rows in self._slices(_days(read)):
                self._add(read.where(rows), days)
        self._catch_up()
        return self._disputed()

    def compared(self) -> Rebuilt:
        return Rebuilt(self._days, {table.name: self._compared(table) for table in self._tables})

    def swap(self) -> set[date]:
        """Returns nothing when it is done; or days that have to be rebuilt too because of what came in meanwhile."""
        for _ in range(MOST_ROUNDS):
            patiently(self._pin_again)
            if self._catch_up() <= FEW_RECORDS:
                break
        disputed = patiently(self._decide)
        if not disputed:
            patiently(self._complete)
        return disputed

    def _decide(self) -> set[date]:
        """Notes the swap. From then on it will be done, by whoever takes the lock first."""
        with click_tables_locked(self._spark, self._settings):
            self._refuse_newer_rules()
            self._pin()
            self._catch_up()
            if disputed := self._disputed():
                return disputed
            root, where = self._settings.lake_root, self._days.where
            old = {table.name: paths_where(self._spark, table, root, where) for table in CLICK_TABLES}
            new = {table.name: files_of(self._spark, table, self._root) for table in self._tables}
            self._move(new)
            swap = Swap(self._name, root, where, old, new, self._stale_days())
            SwapNote(self._spark, self._settings).write(swap)
            return set()

    def _refuse_newer_rules(self) -> None:
        """What the stream judged by them meanwhile would be judged again by older ones."""
        now = noted_rules(self._spark, self._settings)
        if now is not None and now != self._of_stream and BatchRules.from_json(now) != self._rules:
            raise RebuildRefused(
                "Silver was started with other rules or promoted fields while the rebuild ran, which did not know "
                "them: launch the rebuild again."
            )

    def _complete(self) -> None:
        with click_tables_locked(self._spark, self._settings):
            pass

    def note_stale_days(self) -> None:
        """For what swaps nothing."""
        note_stale_days(self._spark, self._settings, self._stale_days())

    def _stale_days(self) -> list[str]:
        """Also those of which there are windows, but no clicks any more."""
        of_windows = bytes_by_day(self._spark, CLICK_ACTIVITY, self._settings.lake_root, self._days.where)
        return sorted(day.isoformat() for day in {*self._built, *of_windows} if day is not None)

    def _pin_again(self) -> None:
        with click_tables_locked(self._spark, self._settings):
            self._pin()

    def _pin(self) -> None:
        """Call it with the lock held."""
        refuse_half_a_batch(self._spark, self._settings)
        refuse_half_a_replay(self._spark, self._settings)
        root = self._settings.lake_root
        versions = {table.name: newest_version(self._spark, table, root) for table in CLICK_TABLES}
        next_version = bronze_read(self._spark, self._settings, BRONZE.name)
        self._pinned = _Pinned(versions, next_version - 1 if next_version else None)

    def _catch_up(self) -> int:
        """Adds the records that silver's tables had when they were pinned and the shadow's do not have; returns how
        many those were."""
        missing = self._missing()
        if missing is None:
            return 0
        missing.persist()
        try:
            count, days_of_missing = missing.count(), _days(missing)
            few = [(days_of_missing, any_of(days_of_missing))]
            for days, rows in few if count <= FEW_RECORDS else self._slices(days_of_missing):
                wanted = missing.where(rows)
                bronze = _of_the_time_of(wanted, self._bronze().where(rows))
                self._refuse_lost(wanted, bronze)
                self._add(_joined(bronze, wanted.select(*RECORD), "left_semi"), days)
            self._caught_up = self._pinned
            return count
        finally:
            missing.unpersist()

    def _missing(self) -> DataFrame | None:
        """None where the tables are as they were when the shadow last caught up with them."""
        before, now = self._files(self._caught_up), self._files(self._pinned)
        new = now - before
        if not new and before <= now:
            return None
        days = {_day_of(file) for file in now ^ before}
        entered = _union(self._days.of(self._real(table)).select(*RECORD, "date", FILE) for table in ENTERED)
        entered = entered.where(any_of(days))
        if self._caught_up is not None and before <= now:  # only appended to since
            return entered.where(F.col(FILE_NAME).isin([_name_of(file) for file in new])).drop(FILE_NAME)
        here = _union(self._shadow(table).select(*RECORD, "date") for table in ENTERED)
        here = here.where(any_of(days)).select(*RECORD)
        return _joined(entered.drop(FILE_NAME), here, "left_anti").distinct()

    def _refuse_lost(self, wanted: DataFrame, bronze: DataFrame) -> None:
        lost = _joined(wanted, bronze.select(*RECORD), "left_anti").groupBy("date").count().orderBy("date").collect()
        if lost:
            told = ", ".join(f"{row['count']:,} records of {row['date']}" for row in lost)
            raise RebuildRefused(
                f"Silver has {told} that {BRONZE.name} does not have: a rebuild would lose them. Leave these days out, "
                "or bring bronze back from a backup."
            )

    def _files(self, pinned: _Pinned | None) -> set[str]:
        if pinned is None:
            return set()
        root, versions = self._settings.lake_root, pinned.versions
        frames = [self._days.of(self._read(table, root, versions[table.name])) for table in ENTERED]
        return {file for frame in frames for file in frame.inputFiles()}

    def _slices(self, days: set[Day]) -> Iterator[tuple[set[Day], Column]]:
        """Which rows to take at a time: of some days, or a part of one, about as much as the stream takes in one batch.
        In the order of their times, in which the earliest of the same event is kept."""
        most = self._settings.silver.max_mb
        sizes = bytes_by_day(self._spark, BRONZE, self._settings.lake_root, self._days.where)
        for together in slices({day: sizes.get(day, 0) for day in days}, most):
            parts = math.ceil(sum(sizes.get(day, 0) for day in together) / (most * MB))
            (day, *others) = together
            if parts <= 1 or others or day is None:
                yield together, any_of(together)
                continue
            at = F.col("processing_time")
            for first, end in parts_of(day, min(parts, MOST_PARTS)):
                yield together, any_of(together) & (at >= F.lit(first)) & (at < F.lit(end))

    def _add(self, records: DataFrame, days: set[Day]) -> None:
        to = Destination(self._root, self._name, self._batches)
        outside = self._outside(CLICKS, self._days.neighbours) if self._days.neighbours else None
        ClickBatch(records.select(*silver.OF_BRONZE), self._rules, to, kept_elsewhere=outside).write()
        self._batches += 1
        self._built |= days

    def _disputed(self) -> set[date]:
        """Days next to the range with records that repeat a click which the shadow does not have any more, or with
        clicks that repeat one of the shadow."""
        beside = self._days.neighbours
        if not beside:
            return set()
        horizon = self._rules.horizon
        around = {day + timedelta(days=more) for day in beside for more in (-1, 0, 1)}
        clicks = self._shadow(CLICKS).where(any_of(around))
        kept = self._outside(CLICKS, around).select(*KEY).union(clicks.select(*KEY))
        places = kept.toDF("eventID", "kept_time", "kept_partition", "kept_sequence_number").drop("kept_time")
        # They may be of a time when repeats could be further apart.
        repeats = self._outside(CLICK_DUPLICATES, beside)
        orphans = repeats.join(places, ["eventID", "kept_partition", "kept_sequence_number"], "left_anti")
        near_ends = self._days.near_ends(horizon)
        others = clicks.where(near_ends).select("eventID", F.col("processing_time").alias("other_time"))
        apart = "abs(unix_micros(processing_time) - unix_micros(other_time))"
        outside = self._outside(CLICKS, beside).where(near_ends)
        doubles = outside.join(others, "eventID").where(f"{apart} <= {_micros(horizon)}")
        return {row["date"] for row in orphans.select("date").union(doubles.select("date")).distinct().collect()}

    def _compared(self, table: Table) -> Compared:
        real, shadow = self._days.of(self._real(table)), self._shadow(table)
        columns = [f"`{name}`" for name in real.columns]
        of_shadow = [f"`{name}`" if name in shadow.columns else f"NULL AS `{name}`" for name in real.columns]
        both = real.selectExpr(*columns, "1 AS before", "0 AS after").union(
            shadow.selectExpr(*of_shadow, "0 AS before", "1 AS after")
        )
        rows = both.groupBy(*columns).agg(F.sum("before").alias("before"), F.sum("after").alias("after"))
        counts = ("before", "after", "greatest(before - after, 0)", "greatest(after - before, 0)")
        (found,) = rows.selectExpr(*(f"coalesce(sum({count}), 0)" for count in counts)).collect()
        return Compared(*found)

    def _move(self, files: dict[str, list[str]]) -> None:
        moved = HadoopFiles(self._spark, self._root)
        with ThreadPoolExecutor(MOVED_AT_ONCE) as threads:
            for table in self._tables:
                paths = [path_of(file) for file in files[table.name]]
                here, there = table.path(self._root), table.path(self._settings.lake_root)
                list(threads.map(lambda path, a=here, b=there: moved.move(f"{a}/{path}", f"{b}/{path}"), paths))

    def _bronze(self, version: int | None = None) -> DataFrame:
        rows = self._read(BRONZE, self._settings.lake_root, version)
        return rows.withColumn("processing_time", F.col("enqueued_time"))

    def _real(self, table: Table) -> DataFrame:
        """As it was when it was pinned."""
        return self._read(table, self._settings.lake_root, self._pinned.versions[table.name])

    def _outside(self, table: Table, days: Collection[date]) -> DataFrame:
        """What the real table has of days that are not rebuilt, as it was when it was pinned."""
        rows = self._real(table).where(F.col("date").isin(sorted(days)))
        return rows if self._days.where is None else rows.where(f"NOT ({self._days.where})")

    def _shadow(self, table: Table) -> DataFrame:
        return self._read(table, self._root)

    def _read(self, table: Table, root: str, version: int | None = None) -> DataFrame:
        reader = self._spark.read.format("delta")
        return (reader if version is None else reader.option("versionAsOf", version)).load(table.path(root))


def parts_of(day: date, count: int) -> list[tuple[datetime, datetime]]:
    """The day in so many parts, each from a moment up to, not including, the next."""
    begin = datetime.combine(day, datetime.min.time(), UTC)
    ends = [begin + ONE_DAY * part / count for part in range(count + 1)]
    return list(itertools.pairwise(ends))


def patiently(work: Callable[[], T]) -> T:
    """Tries again while the stream or a replay is in the way, so that the work of hours is not for nothing."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            return work()
        except (BatchInWork, LockTimeout):
            if time.monotonic() > deadline:
                raise
            time.sleep(FOR_OTHERS_SECONDS)


def _joined(records: DataFrame, others: DataFrame, how: str) -> DataFrame:
    """By the record, which may be one without a time."""
    named = others.toDF(*(f"other_{name}" for name in RECORD))
    return records.join(named, [F.col(name).eqNullSafe(F.col(f"other_{name}")) for name in RECORD], how)


def _of_the_time_of(records: DataFrame, rows: DataFrame) -> DataFrame:
    """Those of the rows among which the records can be: Delta passes over the files of other times."""
    found = records.agg(F.min("processing_time"), F.max("processing_time")).first()
    at = F.col("processing_time")
    if found is None or found[0] is None:
        return rows.where(at.isNull())
    first, last = (F.lit(each.astimezone(UTC)) for each in found)
    return rows.where(at.between(first, last) | at.isNull())


def _union(frames: Iterable[DataFrame]) -> DataFrame:
    return reduce(DataFrame.unionAll, frames)


def _name_of(file: str) -> str:
    return file.rpartition("/")[2]


def _day_of(file: str) -> Day:
    """From the name of the partition that it is in."""
    name = PARTITION.search(file)
    assert name is not None, file
    return date.fromisoformat(name[1]) if name[1] != NO_DAY else None


def _days(rows: DataFrame) -> set[Day]:
    return {row["date"] for row in rows.select("date").distinct().collect()}


def _micros(time: timedelta) -> int:
    return round(time.total_seconds() * 1_000_000)

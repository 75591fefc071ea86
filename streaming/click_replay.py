"""Takes clicks out of quarantine that pass by today's schema and rules, and puts them where they belong, once.

The clicks come first, all in one commit. Every later step is worked out from the tables: what is in silver/clicks has
its path and its windows brought up to date, what repeats it becomes a duplicate, and what is in either is taken from
quarantine last. What is replayed, and by which rules, is noted before the first commit: a replay that was cut off is
completed by the next one, whatever that was asked for.
"""

import json
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Self

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lake.commit import bring_up_to_date, table_exists
from lake.lock import tables_locked
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table, bronze_table
from settings import Settings
from streaming import clicks as silver
from streaming.activity_query import refuse_other_windows, restate_windows
from streaming.click_duplicates import HASH, KEY, Suspects, repeats, suspect_hashes
from streaming.click_tables import (
    RECORD,
    REPLAY_NOTE,
    BatchInWork,
    activity_lock,
    click_tables_locked,
    refuse_half_a_batch,
    refuse_missing_columns,
    silver_folder,
)
from streaming.clicks_query import BatchRules
from streaming.hadoop_files import HadoopFiles

BRONZE = bronze_table("clicks")
SAME_RECORD = " AND ".join(f"old.{name} = new.{name}" for name in ("date", *RECORD))


@dataclass(frozen=True)
class Choice:
    """Which records of quarantine to look at: all, or those of some reasons or of some time."""

    reasons: Collection[str] = ()
    since: datetime | None = None
    until: datetime | None = None

    @classmethod
    def from_json(cls, text: str) -> Self:
        fields = json.loads(text)
        since, until = (fields[name] and datetime.fromisoformat(fields[name]) for name in ("since", "until"))
        return cls(fields["reasons"], since, until)

    def to_json(self) -> str:
        since, until = (at.isoformat() if at else None for at in (self.since, self.until))
        return json.dumps({"reasons": list(self.reasons), "since": since, "until": until})

    def of(self, quarantine: DataFrame) -> DataFrame:
        day, at = F.col("date"), F.col("processing_time")
        if self.reasons:
            quarantine = quarantine.where(F.col("reason").isin(*self.reasons))
        if self.since:
            quarantine = quarantine.where((day >= F.lit(_day(self.since))) & (at >= F.lit(self.since)))
        if self.until:
            quarantine = quarantine.where((day <= F.lit(_day(self.until))) & (at < F.lit(self.until)))
        return quarantine


@dataclass(frozen=True)
class Replayed:
    looked_at: dict[str, int]
    """Records by the reason that they are in quarantine for."""
    passed: dict[str, int]
    """Those that pass now."""
    clicks: int
    """Records that became clicks; all others that passed repeat one."""


def replay_clicks(spark: SparkSession, settings: Settings, choice: Choice, *, dry_run: bool = False) -> Replayed:
    """A dry run writes nothing."""
    root, rules = settings.lake_root, BatchRules.of(settings)
    if not table_exists(spark, CLICK_QUARANTINE, root):
        return Replayed({}, {}, 0)
    note = _Note(spark, settings)
    if not dry_run:
        bring_up_to_date(spark, CLICK_ACTIVITY, root)
        refuse_other_windows(spark, settings)
        refuse_missing_columns(spark, root, clicks_table(rules.promoted))
        if (cut_off := note.read()) is not None:
            _replay(spark, settings, *cut_off, note, dry_run=False)
    return _replay(spark, settings, choice, rules, note, dry_run=dry_run)


def _replay(
    spark: SparkSession, settings: Settings, choice: Choice, rules: BatchRules, note: "_Note", *, dry_run: bool
) -> Replayed:
    replay = _Replay(spark, settings, choice, rules)
    try:
        # Reading quarantine again takes the longest: the stream need not wait for it.
        result = replay.result()
        # What was cut off may have been done but for its note.
        if not dry_run and (result.passed or note.read() == (choice, rules)):
            with (
                click_tables_locked(spark, settings),
                tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds),
            ):
                refuse_half_a_batch(spark, settings)
                noted = note.read()
                if noted not in (None, (choice, rules)):
                    raise BatchInWork("Another replay has been cut off meanwhile. Try again, which completes it.")
                if noted is None:
                    note.write(choice, rules)
                if result.passed:
                    replay.write()
                note.remove()
        return result
    finally:
        replay.close()


class _Note:
    """What is being replayed, in a file beside the stream's checkpoints."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        folder = silver_folder(settings)
        self._files = HadoopFiles(spark, folder)
        self._file = f"{folder}/{REPLAY_NOTE}"

    def read(self) -> tuple[Choice, BatchRules] | None:
        text = self._files.read(self._file)
        if text is None:
            return None
        noted = json.loads(text)
        return Choice.from_json(noted["choice"]), BatchRules.from_json(noted["rules"])

    def write(self, choice: Choice, rules: BatchRules) -> None:
        self._files.write(self._file, json.dumps({"choice": choice.to_json(), "rules": rules.to_json()}))

    def remove(self) -> None:
        self._files.delete(self._file)


class _Replay:
    """Call `write` with the locks of clicks and click_activity held."""

    def __init__(self, spark: SparkSession, settings: Settings, choice: Choice, rules: BatchRules) -> None:
        self._spark, self._settings, self._rules = spark, settings, rules
        self._clicks = clicks_table(rules.promoted)
        self._cached: list[DataFrame] = []
        self._chosen = choice.of(self._read(CLICK_QUARANTINE))
        self._days = {row["date"] for row in self._chosen.where("date IS NOT NULL").select("date").distinct().collect()}
        # When bronze took them says whether their time is possible; where it has them no more, what was found then
        # holds. A record without a time would not pass.
        bronze = self._of_days(BRONZE).withColumnRenamed("enqueued_time", "processing_time")
        taken = self._chosen.where("date IS NOT NULL").join(bronze.select(*RECORD, "ingest_time"), RECORD, "left")
        then = "CASE WHEN reason = 'impossible_time' THEN timestamp'1970-01-01 00:00:00Z' ELSE processing_time END"
        records = taken.withColumn("ingest_time", F.expr(f"coalesce(ingest_time, {then})"))
        judged = silver.judged_clicks(records, rules.schema, rules.rules)
        self._good = self._cache(judged.where("reason IS NULL"))
        """Cached, and until the last step it would come out the same again."""

    def result(self) -> Replayed:
        passed = self._chosen.join(self._good.select(*RECORD), RECORD, "left_semi")
        repeated = self._repeated(self._unsettled()).select(*RECORD).union(self._there(CLICK_DUPLICATES))
        clicks = self._good.join(repeated, RECORD, "left_anti").count()
        return Replayed(_by_reason(self._chosen), _by_reason(passed), clicks)

    def write(self) -> None:
        self._add_clicks()
        self._add_clickpath()
        self._add_duplicates()
        self._restate_windows()
        self._take_from_quarantine()

    def close(self) -> None:
        for frame in self._cached:
            frame.unpersist()

    def _add_clicks(self) -> None:
        new = self._unsettled()
        clicks = new.join(self._repeated(new), RECORD, "left_anti")
        self._append(silver.clicks(clicks, self._rules.schema), self._clicks)

    def _add_clickpath(self) -> None:
        path = silver.clickpath(self._settled())
        self._append(path.join(self._there(CLICKPATH), RECORD, "left_anti"), CLICKPATH)

    def _add_duplicates(self) -> None:
        self._append(self._repeated(self._unsettled()), CLICK_DUPLICATES)

    def _restate_windows(self) -> None:
        restate_windows(self._settled(), self._settings, now=datetime.now(UTC), closed_too=True)

    def _take_from_quarantine(self) -> None:
        moved = self._good.join(self._entered(), RECORD, "left_semi").select(*RECORD, "date").distinct()
        quarantine = DeltaTable.forPath(self._spark, CLICK_QUARANTINE.path(self._settings.lake_root))
        quarantine.alias("old").merge(moved.alias("new"), SAME_RECORD).whenMatchedDelete().execute()

    def _settled(self) -> DataFrame:
        """Records that are clicks now."""
        return self._good.join(self._there(self._clicks), RECORD, "left_semi")

    def _unsettled(self) -> DataFrame:
        """Records that are neither clicks nor duplicates yet."""
        return self._good.join(self._entered(), RECORD, "left_anti")

    def _entered(self) -> DataFrame:
        """The places of all clicks and duplicates of these days."""
        return self._there(self._clicks).union(self._there(CLICK_DUPLICATES))

    def _repeated(self, records: DataFrame) -> DataFrame:
        around = {day + timedelta(days=more) for day in self._days for more in (-1, 0, 1)}
        new, kept = records.select(*KEY), self._of_days(self._clicks, around).select(*KEY)
        wanted = F.broadcast(new.selectExpr(HASH).distinct())
        kept = kept.selectExpr("*", HASH).join(wanted, "hash", "left_semi")
        # Not cached: Spark would take what was cached before the lock for the same, whatever the tables got since.
        hashes = suspect_hashes(new, kept).localCheckpoint()
        return repeats(new, kept, Suspects(hashes, hashes.count()), self._rules.horizon)

    def _there(self, table: Table) -> DataFrame:
        """The places of all records of these days that are in the table."""
        return self._of_days(table).select(*RECORD)

    def _of_days(self, table: Table, days: Collection[date] | None = None) -> DataFrame:
        return self._read(table).where(F.col("date").isin(sorted(self._days if days is None else days)))

    def _read(self, table: Table) -> DataFrame:
        return self._spark.read.format("delta").load(table.path(self._settings.lake_root))

    def _append(self, rows: DataFrame, table: Table) -> None:
        rows.coalesce(1).write.format("delta").mode("append").save(table.path(self._settings.lake_root))

    def _cache(self, frame: DataFrame) -> DataFrame:
        self._cached.append(frame.persist())
        return self._cached[-1]


def _by_reason(records: DataFrame) -> dict[str, int]:
    return {row["reason"]: row["count"] for row in records.groupBy("reason").count().orderBy("reason").collect()}


def _day(at: datetime) -> date:
    return at.astimezone(UTC).date()

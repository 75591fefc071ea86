"""The tables that clicks go to, changed by one at a time: the stream, a replay or a rebuild."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

from pyspark.sql import SparkSession

from lake.commit import SchemaMismatch, committed_version, committed_versions, missing_columns
from lake.lock import LockTimeout, tables_locked
from lake.silver import BY_RECORD, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.swap import FilesRewritten, replace_files
from lake.tables import Table
from settings import Settings
from streaming.catalog import SILVER
from streaming.checkpoints import CheckpointError, QueryCheckpoints
from streaming.hadoop_files import HadoopFiles

CLICKS = clicks_table({})
"""For its name and place; it may have further columns."""
CLICK_TABLES = (CLICKS, CLICKPATH, CLICK_DUPLICATES, CLICK_QUARANTINE)
SWAP_NOTE, REPLAY_NOTE = "swap.json", "replay.json"
"""Beside the stream's checkpoints while a swap or a replay is being written, or was cut off."""
ENTERED = (CLICKS, CLICK_DUPLICATES, CLICK_QUARANTINE)
"""Every record of bronze is in one of these."""
RULES = "rules"
"""The folder, beside Spark's checkpoint, of what batches are judged by."""
RECORD = list(BY_RECORD)
"""Tells a record from all others, also where a hub was made anew and counts from 0 again."""


class BatchInWork(Exception):
    """What somebody else writes is in some of its tables only."""


REFUSALS = (BatchInWork, CheckpointError, FilesRewritten, LockTimeout, OSError, SchemaMismatch)
"""What a job that changes the tables may end with for a person to read."""


@contextmanager
def click_tables_locked(
    spark: SparkSession, settings: Settings, while_waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Held by whoever changes the tables. A swap that was cut off is completed first."""
    with tables_locked(spark, click_lock(settings), settings.silver.lock_seconds, while_waiting):
        complete_swap(spark, settings, while_waiting)
        yield


def click_lock(settings: Settings) -> Path:
    return settings.run_folder / "silver" / "clicks.lock"


def activity_lock(settings: Settings) -> Path:
    """Held by whoever changes click_activity. Who needs both takes that of the clicks first."""
    return settings.run_folder / "silver" / "click_activity.lock"


@contextmanager
def scores_locked(spark: SparkSession, settings: Settings, while_waiting: Callable[[], None]) -> Iterator[None]:
    """Held by whoever changes page_load_anomalies or notes stale days of it. Who needs the lock of the clicks too takes
    that first."""
    file = settings.run_folder / "silver" / "page_load_anomalies.lock"
    with tables_locked(spark, file, settings.silver.lock_seconds, while_waiting):
        yield


def refuse_half_a_batch(spark: SparkSession, settings: Settings) -> None:
    """The stream comes to the same rows when it repeats its batch only if nobody changes what it kept before."""
    latest = QueryCheckpoints(spark, settings.checkpoint_root, SILVER.name, "clicks").latest()
    if latest is None:
        return
    root = settings.lake_root
    done = committed_versions(spark, CLICKS, root).get(latest.writer, -1)
    for table in (CLICK_QUARANTINE, CLICK_DUPLICATES, CLICKPATH):
        if committed_versions(spark, table, root).get(latest.writer, -1) > done:
            raise BatchInWork(
                "The last batch of silver was cut off half-way. Let the stream silver run until it has done a "
                "batch, then try again."
            )


def refuse_missing_columns(spark: SparkSession, root: str, table: Table) -> None:
    """A table gets its promoted columns from the stream, which has to know them to go on with them."""
    if missing := missing_columns(spark, table, root):
        raise SchemaMismatch(
            f"{table.name} has no column {', '.join(column.name for column in missing)} yet: launch the job `restart` "
            "for the stream silver, which adds it, then try again."
        )


def noted_rules(spark: SparkSession, settings: Settings) -> str | None:
    """By what the stream judged its last batch, None where it has done none."""
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, SILVER.name, "clicks")
    latest = checkpoints.latest()
    if latest is None:
        return None
    folder = f"{checkpoints.folder(latest)}/{RULES}"
    files = HadoopFiles(spark, folder)
    newest = max((int(name) for name in files.names(folder) if name.isdigit()), default=None)
    return None if newest is None else files.read(f"{folder}/{newest}")


def bronze_read(spark: SparkSession, settings: Settings, source: str) -> int | None:
    """The version of bronze that silver reads next, all before being in its tables; None where it is not known."""
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, SILVER.name, "clicks")
    latest = checkpoints.latest()
    if latest is None:
        return None
    in_table = committed_version(spark, CLICKS, settings.lake_root, latest.writer)
    ended = checkpoints.end_offsets(latest, in_table, source)
    return None if ended is None else ended[source]["version"]


@dataclass(frozen=True)
class Swap:
    """Files that are in the tables' folders and take the place of the rows of some days."""

    name: str
    lake: str
    """Where the tables are."""
    where: str | None
    """Which rows; None for all."""
    old: dict[str, list[str]]
    """Of each table the paths of the files that these rows are in."""
    new: dict[str, list[str]]
    """Of each table the files that take their place, as Delta's log has them."""
    days: list[str]
    """Whose windows have to be counted anew."""


class SwapNote:
    """What is being swapped, in a file beside the stream's checkpoints. Once it is there, the swap will be done."""

    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        folder = silver_folder(settings)
        self._files, self.file = HadoopFiles(spark, folder), f"{folder}/{SWAP_NOTE}"

    def read(self) -> Swap | None:
        text = self._files.read(self.file)
        return None if text is None else Swap(**json.loads(text))

    def write(self, swap: Swap) -> None:
        self._files.write(self.file, json.dumps(asdict(swap)))

    def remove(self) -> None:
        self._files.delete(self.file)


WINDOWS, SCORES = "stale-days", "stale-scores"
"""What is made of clicks by days: the folders of their `StaleDays`."""


class StaleDays:
    """Days whose windows or scores do not follow from the clicks any more: an empty file for each, until they do again.

    Changed only with the lock of click_activity or page_load_anomalies held.
    """

    def __init__(self, spark: SparkSession, settings: Settings, what: str) -> None:
        self._folder = f"{silver_folder(settings)}/{what}"
        self._files = HadoopFiles(spark, self._folder)

    def all(self) -> list[date]:
        names = self._files.names(self._folder)
        return [date.fromisoformat(name) for name in names if re.fullmatch(r"\d{4}-\d\d-\d\d", name)]

    def add(self, *days: str) -> None:
        for day in days:
            self._files.touch(f"{self._folder}/{day}")

    def remove(self, day: str) -> None:
        self._files.delete(f"{self._folder}/{day}")


def complete_swap(spark: SparkSession, settings: Settings, check: Callable[[], None] = lambda: None) -> None:
    """Call it with the lock of the clicks held. `check` does not return when this process may write no more."""
    note = SwapNote(spark, settings)
    swap = note.read()
    if swap is None:
        return
    if swap.lake != settings.lake_root:
        raise CheckpointError(
            f"A rebuild of {swap.lake} was cut off while it was swapped in, but the lake is {settings.lake_root} now: "
            f"set TIDEWATCH_LAKE back until silver has run, or delete {note.file}, which leaves that lake as it is."
        )
    for table in CLICK_TABLES:
        check()
        old, new = swap.old[table.name], swap.new[table.name]
        replace_files(spark, table, settings.lake_root, swap.where, old, new, swap.name)
    note_stale_days(spark, settings, swap.days, check)
    note.remove()


def note_stale_days(
    spark: SparkSession, settings: Settings, days: list[str], check: Callable[[], None] = lambda: None
) -> None:
    with tables_locked(spark, activity_lock(settings), settings.silver.lock_seconds, check):
        StaleDays(spark, settings, WINDOWS).add(*days)
    with scores_locked(spark, settings, check):
        StaleDays(spark, settings, SCORES).add(*days)


def refuse_half_a_replay(spark: SparkSession, settings: Settings) -> None:
    """Its rest would be done by the rules of then."""
    folder = silver_folder(settings)
    if HadoopFiles(spark, folder).read(f"{folder}/{REPLAY_NOTE}") is not None:
        raise BatchInWork("A replay of quarantine was cut off. Launch `replay_quarantine`, which completes it first.")


def silver_folder(settings: Settings) -> str:
    """Where the stream's checkpoints are."""
    return f"{settings.checkpoint_root.rstrip('/')}/{SILVER.name}"

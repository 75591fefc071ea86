"""Creating tables, appending to them exactly once, and replacing whole days of them.

Commits go through Delta's transaction itself instead of `DataFrame.write` with `txnAppId` and `txnVersion`. That way
leaves the same in the log, but rebuilds the table's whole state for each commit, only to look up the writer's last
version; here it is read from the checksum that Delta keeps beside each commit. See docs/decisions.
"""

import json
import time
from collections.abc import Callable, Collection
from datetime import date
from typing import Any

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake.days import sql_any_of
from lake.delta_api import DELTA, delta_log, elements, files_where, none, overwrite, sequence, some, versions_of
from lake.java import java_class
from lake.tables import Column, Table

SWAP = "swap."
"""Begins the names by which swaps of files are told from writers of rows."""


class SchemaMismatch(Exception):
    """Rows that do not have the table's columns."""


def table_exists(spark: SparkSession, table: Table, lake_root: str) -> bool:
    """Asks anew, since another process may have made it."""
    return newest_version(spark, table, lake_root) >= 0


def create_if_missing(spark: SparkSession, table: Table, lake_root: str) -> None:
    """Creates the table empty, so that it has its schema before its first row. An existing one is left alone."""
    if table_exists(spark, table, lake_root):
        return
    builder = DeltaTable.createIfNotExists(spark).location(table.path(lake_root)).comment(table.description)
    for column in table.columns:
        builder = builder.addColumn(column.name, column.type, comment=column.description)
    for name, value in table.properties.items():
        builder = builder.property(name, value)
    builder.partitionedBy(*table.partitioned_by).execute()


def bring_up_to_date(spark: SparkSession, table: Table, lake_root: str) -> None:
    """Creates the table, or adds the columns that it does not have yet. Nothing is taken away."""
    create_if_missing(spark, table, lake_root)
    missing = missing_columns(spark, table, lake_root)
    if missing:
        added = ", ".join(f"`{column.name}` {column.type} COMMENT '{_escaped(column)}'" for column in missing)
        spark.sql(f"ALTER TABLE delta.`{table.path(lake_root)}` ADD COLUMNS ({added})")


def missing_columns(spark: SparkSession, table: Table, lake_root: str) -> list[Column]:
    """Those that an existing table does not have yet. Raises where one of it has another type."""
    there = {field.name.lower(): field for field in _schema(spark, table, lake_root)}
    for wanted in spark.createDataFrame([], table.ddl).schema:
        field = there.get(wanted.name.lower(), wanted)
        if (field.name, field.dataType.simpleString()) != (wanted.name, wanted.dataType.simpleString()):
            raise SchemaMismatch(
                f"{table.name} has a column {field.name} {field.dataType.simpleString()}, so that it can't have one "
                f"{wanted.name} {wanted.dataType.simpleString()}: what was written keeps its name and type."
            )
    return [column for column in table.columns if column.name.lower() not in there]


def _escaped(column: Column) -> str:
    return column.description.replace("\\", "\\\\").replace("'", "\\'")


def append_once(rows: DataFrame, table: Table, lake_root: str, writer: str, version: int) -> bool:
    """Appends the rows in one commit, and returns False without writing when this writer already committed this
    version or a later one. Columns that only the table has become null.

    `writer` must never be reused for another sequence of versions: its rows would be dropped without a word.
    """
    return append_files(rows, table, lake_root, writer, version) is not None


def append_files(
    rows: DataFrame,
    table: Table,
    lake_root: str,
    writer: str,
    version: int,
    wanted: Callable[[], bool] = lambda: True,
) -> list[Any] | None:
    """As `append_once`; returns Delta's actions of the files with the rows, None where the version is there already.

    `wanted` is asked when the files are written and not yet in the table; they never are where it says no.
    """
    spark = rows.sparkSession
    transaction = delta_log(spark, table, lake_root).startTransaction()
    fitted = _fitted(rows, table, StructType.fromJson(json.loads(transaction.metadata().schemaString())))
    if versions_of(transaction.snapshot()).get(writer, -1) >= version:
        return None
    # Makes Delta refuse this commit when another of the same writer comes in between.
    transaction.readTxn().addOne(writer)
    files = transaction.writeFiles(fitted._jdf)
    if not wanted():
        return []
    append = java_class(spark, "org.apache.spark.sql.streaming.OutputMode").Append()
    update = java_class(spark, f"{DELTA}.DeltaOperations$StreamingUpdate")
    operation = update(append, writer, version, none(spark))
    transaction.commit(files.appended(noted(spark, writer, version)), operation)
    return elements(files)


def replace_days(
    rows: DataFrame, table: Table, lake_root: str, days: Collection[date], as_batch: tuple[str, int] | None = None
) -> None:
    """Puts the rows in the place of all that the table has of these days; all rows have to be of them."""
    _replace(rows, table, lake_root, sql_any_of(days), as_batch)


def replace_where(rows: DataFrame, table: Table, lake_root: str, where: str) -> None:
    """Puts the rows in the place of all that the table has where a condition on its partitions holds, as it has to for
    all of them."""
    _replace(rows, table, lake_root, where, None)


def replace_all(rows: DataFrame, table: Table, lake_root: str, as_batch: tuple[str, int] | None = None) -> None:
    """Puts the rows in the place of all that the table has."""
    _replace(rows, table, lake_root, None, as_batch)


def _replace(
    rows: DataFrame, table: Table, lake_root: str, where: str | None, as_batch: tuple[str, int] | None
) -> None:
    """In one commit. As a batch it is done once: nothing happens when its writer already committed this version or a
    later one.

    Call it with the table's lock held, or as its only writer: Delta would let rows come in between that others append.
    """
    spark = rows.sparkSession
    transaction = delta_log(spark, table, lake_root).startTransaction()
    if as_batch and versions_of(transaction.snapshot()).get(as_batch[0], -1) >= as_batch[1]:
        return
    old = files_where(spark, transaction, where)
    schema = StructType.fromJson(json.loads(transaction.metadata().schemaString()))
    actions = transaction.writeFiles(_fitted(rows, table, schema)._jdf)
    for file in old:
        actions = actions.appended(file.remove())
    if as_batch:
        actions = actions.appended(noted(spark, *as_batch))
    transaction.commit(actions, overwrite(spark, where))


def take_back(spark: SparkSession, table: Table, lake_root: str, writer: str, version: int) -> None:
    """Takes away the rows that the writer's version brought, if they are still in the files that it wrote."""
    added = _files_of(spark, table, lake_root, writer, version)
    transaction = delta_log(spark, table, lake_root).startTransaction()
    files = [file for file in files_where(spark, transaction, None) if file.path() in added]
    if files:
        transaction.commit(sequence(spark, [file.remove() for file in files]), overwrite(spark, None))


def note_done(spark: SparkSession, table: Table, lake_root: str, writer: str, version: int) -> None:
    """Has the table tell that it has this version of the writer, without any row."""
    transaction = delta_log(spark, table, lake_root).startTransaction()
    transaction.commit(sequence(spark, [noted(spark, writer, version)]), overwrite(spark, None))


def _files_of(spark: SparkSession, table: Table, lake_root: str, writer: str, version: int) -> set[str]:
    """Paths of the files that a commit added, looked for from the newest on."""
    log = f"{table.path(lake_root)}/_delta_log"
    for number in range(newest_version(spark, table, lake_root), -1, -1):
        lines = (row["value"] for row in spark.read.text(f"{log}/{number:020}.json").collect())
        actions = [json.loads(line) for line in lines]
        if any((each.get("txn") or {}).items() >= {"appId": writer, "version": version}.items() for each in actions):
            return {each["add"]["path"] for each in actions if "add" in each}
    return set()


def noted(spark: SparkSession, writer: str, version: int) -> Any:
    """Put into a commit, tells that this version of the writer is in the table."""
    now = some(spark, round(time.time() * 1000))
    return java_class(spark, f"{DELTA}.actions.SetTransaction")(writer, version, now)


def other_writers(spark: SparkSession, table: Table, lake_root: str, writer: str) -> bool:
    """Whether another stream, or an earlier generation of this one, has appended to the table."""
    others = committed_versions(spark, table, lake_root).keys() - {writer}
    return any(not other.startswith(SWAP) for other in others)


def committed_version(spark: SparkSession, table: Table, lake_root: str, writer: str) -> int | None:
    """The newest version that this writer committed to the table, None also where there is no table."""
    return committed_versions(spark, table, lake_root).get(writer)


def committed_versions(spark: SparkSession, table: Table, lake_root: str) -> dict[str, int]:
    """The newest version of each writer that committed to the table, and of each swap."""
    if not table_exists(spark, table, lake_root):
        return {}
    return versions_of(delta_log(spark, table, lake_root).startTransaction().snapshot())


def has_rows(spark: SparkSession, table: Table, lake_root: str) -> bool:
    """Told from the log alone: a table with files counts."""
    if not table_exists(spark, table, lake_root):
        return False
    log = delta_log(spark, table, lake_root)
    snapshot = log.startTransaction().snapshot()
    checksum = snapshot.checksumOpt()
    files = checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()
    return int(files) > 0


def newest_version(spark: SparkSession, table: Table, lake_root: str) -> int:
    """-1 where there is no table."""
    return int(delta_log(spark, table, lake_root).update(False, none(spark), none(spark)).version())


def _fitted(rows: DataFrame, table: Table, schema: StructType) -> DataFrame:
    """Delta checks this above the transaction; below, files with other types would be written and break readers."""
    found = {field.name: field.dataType for field in rows.schema}
    wanted = {field.name: field.dataType for field in schema}
    wrong = [
        name for name, kind in found.items() if name not in wanted or wanted[name].simpleString() != kind.simpleString()
    ]
    if wrong:
        told = ", ".join(f"{name} {found[name].simpleString()}" for name in wrong)
        raise SchemaMismatch(f"{table.name} has no such columns: {told}.")
    if list(found) == list(wanted):
        return rows
    return rows.select(
        *(F.col(f"`{name}`") if name in found else F.lit(None).cast(kind).alias(name) for name, kind in wanted.items())
    )


def _schema(spark: SparkSession, table: Table, lake_root: str) -> StructType:
    text = delta_log(spark, table, lake_root).startTransaction().metadata().schemaString()
    return StructType.fromJson(json.loads(text))

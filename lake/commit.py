"""Creating tables, and appending to them exactly once.

The append talks to Delta's transaction itself instead of `DataFrame.write` with `txnAppId` and `txnVersion`. Both leave
the same transaction in the log, but that way rebuilds the table's whole state for each commit, only to look up the
writer's last version; here it is read from the checksum that Delta keeps beside each commit. See docs/decisions.
"""

import json
import time
from typing import Any

from delta import DeltaTable
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lake.tables import Column, Table


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
    there = {field.name.lower(): field for field in _schema(spark, table, lake_root)}
    for wanted in spark.createDataFrame([], table.ddl).schema:
        field = there.get(wanted.name.lower(), wanted)
        if (field.name, field.dataType.simpleString()) != (wanted.name, wanted.dataType.simpleString()):
            raise SchemaMismatch(
                f"{table.name} has a column {field.name} {field.dataType.simpleString()}, so that it can't have one "
                f"{wanted.name} {wanted.dataType.simpleString()}: what was written keeps its name and type."
            )
    missing = [column for column in table.columns if column.name.lower() not in there]
    if missing:
        added = ", ".join(f"`{column.name}` {column.type} COMMENT '{_escaped(column)}'" for column in missing)
        spark.sql(f"ALTER TABLE delta.`{table.path(lake_root)}` ADD COLUMNS ({added})")


def _escaped(column: Column) -> str:
    return column.description.replace("\\", "\\\\").replace("'", "\\'")


def append_once(rows: DataFrame, table: Table, lake_root: str, writer: str, version: int) -> bool:
    """Appends the rows in one commit, and returns False without writing when this writer already committed this
    version or a later one. Columns that only the table has become null.

    `writer` must never be reused for another sequence of versions: its rows would be dropped without a word.
    """
    spark = rows.sparkSession
    delta = _delta(spark)
    transaction = _log(spark, table, lake_root).startTransaction()
    fitted = _fitted(rows, table, StructType.fromJson(json.loads(transaction.metadata().schemaString())))
    if _versions(transaction.snapshot()).get(writer, -1) >= version:
        return False
    # Makes Delta refuse this commit when another of the same writer comes in between.
    transaction.readTxn().addOne(writer)
    files = transaction.writeFiles(fitted._jdf)
    jvm = _jvm(spark)
    committed_at = jvm.scala.Some(round(time.time() * 1000))
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    operation = delta.DeltaOperations.StreamingUpdate(append, writer, version, jvm.scala.Option.empty())
    transaction.commit(files.appended(delta.actions.SetTransaction(writer, version, committed_at)), operation)
    return True


def other_writers(spark: SparkSession, table: Table, lake_root: str, writer: str) -> bool:
    """Whether another stream, or an earlier generation of this one, has appended to the table."""
    return bool(committed_versions(spark, table, lake_root).keys() - {writer})


def committed_version(spark: SparkSession, table: Table, lake_root: str, writer: str) -> int | None:
    """The newest version that this writer committed to the table, None also where there is no table."""
    return committed_versions(spark, table, lake_root).get(writer)


def committed_versions(spark: SparkSession, table: Table, lake_root: str) -> dict[str, int]:
    """The newest version of each writer that `append_once` has appended for."""
    if not table_exists(spark, table, lake_root):
        return {}
    return _versions(_log(spark, table, lake_root).startTransaction().snapshot())


def has_rows(spark: SparkSession, table: Table, lake_root: str) -> bool:
    """Told from the log alone: a table with files counts."""
    if not table_exists(spark, table, lake_root):
        return False
    log = _log(spark, table, lake_root)
    snapshot = log.startTransaction().snapshot()
    checksum = snapshot.checksumOpt()
    files = checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()
    return int(files) > 0


def newest_version(spark: SparkSession, table: Table, lake_root: str) -> int:
    """-1 where there is no table."""
    return int(_log(spark, table, lake_root).update(False, _none(spark), _none(spark)).version())


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
    text = _log(spark, table, lake_root).startTransaction().metadata().schemaString()
    return StructType.fromJson(json.loads(text))


def _versions(snapshot: Any) -> dict[str, int]:
    """The last version of each writer. Rebuilds the state only where the checksum is missing."""
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    each = (known.get() if known.isDefined() else snapshot.setTransactions()).iterator()
    found = {}
    while each.hasNext():
        transaction = each.next()
        found[transaction.appId()] = int(transaction.version())
    return found


def _log(spark: SparkSession, table: Table, lake_root: str) -> Any:
    return _delta(spark).DeltaLog.forTable(spark._jsparkSession, table.path(lake_root))


def _delta(spark: SparkSession) -> Any:
    return _jvm(spark).org.apache.spark.sql.delta


def _jvm(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm


def _none(spark: SparkSession) -> Any:
    return _jvm(spark).scala.Option.empty()

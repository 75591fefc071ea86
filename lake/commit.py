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
from pyspark.sql.types import StructType

from lake.tables import Table


class SchemaMismatch(Exception):
    """Rows that do not have the table's columns."""


def create_if_missing(spark: SparkSession, table: Table, lake_root: str) -> None:
    """Creates the table empty, so that it has its schema before its first row. An existing one is left alone."""
    if _log(spark, table, lake_root).tableExists():
        return
    builder = DeltaTable.createIfNotExists(spark).location(table.path(lake_root)).comment(table.description)
    for column in table.columns:
        builder = builder.addColumn(column.name, column.type, comment=column.description)
    for name, value in table.properties.items():
        builder = builder.property(name, value)
    builder.partitionedBy(*table.partitioned_by).execute()


def append_once(rows: DataFrame, table: Table, lake_root: str, writer: str, version: int) -> bool:
    """Appends the rows in one commit, and returns False without writing when this writer already committed this
    version or a later one.

    `writer` must never be reused for another sequence of versions: its rows would be dropped without a word.
    """
    spark = rows.sparkSession
    delta = _delta(spark)
    transaction = _log(spark, table, lake_root).startTransaction()
    _refuse_other_columns(rows, table, transaction.metadata().schemaString())
    if _last_version(transaction.snapshot(), writer) >= version:
        return False
    # Makes Delta refuse this commit when another of the same writer comes in between.
    transaction.readTxn().addOne(writer)
    files = transaction.writeFiles(rows._jdf)
    jvm = _jvm(spark)
    committed_at = jvm.scala.Some(round(time.time() * 1000))
    append = jvm.org.apache.spark.sql.streaming.OutputMode.Append()
    operation = delta.DeltaOperations.StreamingUpdate(append, writer, version, jvm.scala.Option.empty())
    transaction.commit(files.appended(delta.actions.SetTransaction(writer, version, committed_at)), operation)
    return True


def committed_version(spark: SparkSession, table: Table, lake_root: str, writer: str) -> int | None:
    """The newest version that this writer committed to the table, None also where there is no table."""
    log = _log(spark, table, lake_root)
    if not log.tableExists():
        return None
    version = _last_version(log.startTransaction().snapshot(), writer)
    return None if version < 0 else version


def has_rows(spark: SparkSession, table: Table, lake_root: str) -> bool:
    """Told from the log alone: a table with files counts."""
    log = _log(spark, table, lake_root)
    if not log.tableExists():
        return False
    snapshot = log.startTransaction().snapshot()
    checksum = snapshot.checksumOpt()
    files = checksum.get().numFiles() if checksum.isDefined() else snapshot.numOfFiles()
    return int(files) > 0


def _refuse_other_columns(rows: DataFrame, table: Table, schema: str) -> None:
    """Delta checks this above the transaction; below, files with other types would be written and break readers."""
    wanted = [f"{field.name} {field.dataType.simpleString()}" for field in StructType.fromJson(json.loads(schema))]
    found = [f"{field.name} {field.dataType.simpleString()}" for field in rows.schema]
    if found != wanted:
        raise SchemaMismatch(f"{table.name} has the columns {', '.join(wanted)}; not {', '.join(found)}.")


def _last_version(snapshot: Any, writer: str) -> int:
    """-1 for a writer that the table does not know. Rebuilds the state only where the checksum is missing."""
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    transactions = known.get() if known.isDefined() else snapshot.setTransactions()
    each = transactions.iterator()
    while each.hasNext():
        transaction = each.next()
        if transaction.appId() == writer:
            return int(transaction.version())
    return -1


def _log(spark: SparkSession, table: Table, lake_root: str) -> Any:
    return _delta(spark).DeltaLog.forTable(spark._jsparkSession, table.path(lake_root))


def _delta(spark: SparkSession) -> Any:
    return _jvm(spark).org.apache.spark.sql.delta


def _jvm(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm

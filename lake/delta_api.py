"""Delta's own transactions, which its Python package does not offer."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from lake.tables import Table


def versions_of(snapshot: Any) -> dict[str, int]:
    """The last version that each writer noted in the log. Rebuilds the state only where the checksum is missing."""
    checksum = snapshot.checksumOpt()
    known = checksum.get().setTransactions() if checksum.isDefined() else checksum
    each = (known.get() if known.isDefined() else snapshot.setTransactions()).iterator()
    found = {}
    while each.hasNext():
        transaction = each.next()
        found[transaction.appId()] = int(transaction.version())
    return found


def delta_log(spark: SparkSession, table: Table, lake_root: str) -> Any:
    return delta_package(spark).DeltaLog.forTable(spark._jsparkSession, table.path(lake_root))


def delta_package(spark: SparkSession) -> Any:
    return virtual_machine(spark).org.apache.spark.sql.delta


def virtual_machine(spark: SparkSession) -> Any:
    assert spark._jvm is not None
    return spark._jvm


def files_where(spark: SparkSession, transaction: Any, where: str | None) -> list[Any]:
    """The files of all rows for which a condition on the table's partitions holds; all files without one."""
    if where is None:
        files = transaction.filterFiles()
    else:
        condition = spark._jsparkSession.sessionState().sqlParser().parseExpression(where)
        files = transaction.filterFiles(sequence(spark, [condition]), False)
    return [files.apply(number) for number in range(files.size())]


def overwrite(spark: SparkSession, where: str | None) -> Any:
    """For the table's history."""
    jvm = virtual_machine(spark)
    nothing = jvm.scala.Option.empty()
    condition = nothing if where is None else jvm.scala.Some(where)
    mode = jvm.org.apache.spark.sql.SaveMode.Overwrite
    return delta_package(spark).DeltaOperations.Write(mode, nothing, condition, *[nothing] * 6)


def sequence(spark: SparkSession, elements: Iterable[Any]) -> Any:
    """Of Scala."""
    jvm = virtual_machine(spark)
    found = jvm.java.util.ArrayList()
    for element in elements:
        found.add(element)
    return jvm.org.apache.spark.api.python.PythonUtils.toSeq(found)

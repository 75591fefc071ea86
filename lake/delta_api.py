"""Delta's own transactions, which its Python package does not offer."""

from collections.abc import Iterable
from typing import Any

from pyspark.sql import SparkSession

from lake.java import java_class
from lake.tables import Table

DELTA = "org.apache.spark.sql.delta"


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
    return java_class(spark, f"{DELTA}.DeltaLog").forTable(spark._jsparkSession, table.path(lake_root))


def none(spark: SparkSession) -> Any:
    """Of Scala."""
    return java_class(spark, "scala.Option").empty()


def some(spark: SparkSession, value: Any) -> Any:
    """Of Scala."""
    return java_class(spark, "scala.Some")(value)


def files_where(spark: SparkSession, transaction: Any, where: str | None) -> list[Any]:
    """The files of all rows for which a condition on the table's partitions holds; all files without one."""
    if where is None:
        files = transaction.filterFiles()
    else:
        condition = spark._jsparkSession.sessionState().sqlParser().parseExpression(where)
        files = transaction.filterFiles(sequence(spark, [condition]), False)
    return elements(files)


def overwrite(spark: SparkSession, where: str | None) -> Any:
    """For the table's history."""
    nothing = none(spark)
    condition = nothing if where is None else some(spark, where)
    mode = java_class(spark, "org.apache.spark.sql.SaveMode").Overwrite
    return java_class(spark, f"{DELTA}.DeltaOperations$Write")(mode, nothing, condition, *[nothing] * 6)


def elements(found: Any) -> list[Any]:
    """Of a sequence of Scala."""
    return [found.apply(number) for number in range(found.size())]


def sequence(spark: SparkSession, elements: Iterable[Any]) -> Any:
    """Of Scala."""
    found = java_class(spark, "java.util.ArrayList")()
    for element in elements:
        found.add(element)
    return java_class(spark, "org.apache.spark.api.python.PythonUtils").toSeq(found)

"""Classes of Spark's JVM by their names."""

from typing import Any

from py4j.java_gateway import JavaClass
from pyspark.sql import SparkSession


def java_class(spark: SparkSession, name: str) -> Any:
    """By its whole name, a nested one as `Outer$Inner`. Asked for as `spark._jvm.org.apache…`, the JVM would look for a
    class of each part of the name in all of its jars, every time: in small batches that took a tenth of a stream's
    time."""
    assert spark._jvm is not None
    return JavaClass(name, spark._jvm._gateway_client)

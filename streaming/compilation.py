"""Whether Spark compiles its plans to code or interprets them.

Compiling pays for itself over many rows. A small batch is done sooner without, most of all in a young JVM, which has to
compile the code once more for the machine.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

SMALL_BATCH = 5_000
INTERPRETED = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
COMPILED = {"spark.sql.codegen.wholeStage": "true", "spark.sql.codegen.factoryMode": "FALLBACK"}


def interpret(spark: SparkSession, wanted: bool = True) -> None:
    """From now on, in this session and in queries that are started from it."""
    for name, value in (INTERPRETED if wanted else COMPILED).items():
        spark.conf.set(name, value)


@contextmanager
def compiled(spark: SparkSession) -> Iterator[None]:
    """For work on many rows, whatever the session does otherwise."""
    before = {name: spark.conf.get(name) for name in COMPILED}
    interpret(spark, False)
    try:
        yield
    finally:
        for name, value in before.items():
            spark.conf.set(name, value or COMPILED[name])

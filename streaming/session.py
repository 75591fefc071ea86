"""The Spark session of a stream: Delta, RocksDB state, FAIR pools, UTC, and defaults fit for a small machine."""

import os
import re
import shutil
import sys
from pathlib import Path

import psutil
from pyspark.sql import SparkSession

from settings import Settings, SettingsError

LOG_CONFIGURATION = Path(__file__).with_name("log4j2.properties")
# Ten times Java's own. A start runs much code often enough for Java to compile it for the long run, which on two cores
# took minutes of both. Loops over many rows get that far within a batch.
COMPILED_LATER = (
    "-XX:Tier4InvocationThreshold=50000 -XX:Tier4MinInvocationThreshold=6000 "
    "-XX:Tier4CompileThreshold=150000 -XX:Tier4BackEdgeThreshold=400000"
)
JAVA_OPTIONS = (
    f"-Duser.timezone=UTC -XX:+UseSerialGC {COMPILED_LATER} -Dlog4j2.configurationFile={LOG_CONFIGURATION.as_uri()}"
)
CLASS_ARCHIVE = "classes.jsa"
SCRATCH = "tmp"
ALWAYS_NEW = ("body", "sequence_number", "eventID")


def spark_session(settings: Settings, application: str, kept_slots: int = 0) -> SparkSession:
    """Its scratch files are in a folder of this process, which `clear_scratch` removes when the process is gone.

    On this machine it has `kept_slots` for tasks that run all the time and mostly wait, and leaves a core to them.
    """
    scratch = settings.run_folder / application / SCRATCH / str(os.getpid())
    scratch.mkdir(parents=True, exist_ok=True)
    if settings.spark.master.startswith("local"):
        # Of the processes that run stateful processors; PySpark takes the first python3 on the path otherwise.
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    master = with_slots(settings.spark.master, kept_slots)
    builder = SparkSession.builder.master(master).appName(f"tidewatch-{application}")
    for name, value in (session_configuration(settings, scratch) | settings.spark.conf).items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def with_slots(master: str, more: int) -> str:
    cores = re.fullmatch(r"local(?:\[(\d+|\*)\])?", master)
    if cores is None or not more:
        return master
    own = {None: 1, "*": os.cpu_count() or 1}.get(cores[1]) or int(cores[1])
    return f"local[{max(1, own - 1) + more}]"


def close_session(spark: SparkSession, seconds: float | None = None) -> None:
    """Stops the session and waits for its JVM to end by itself, which removes scratch files and writes what it owes.

    Raises `subprocess.TimeoutExpired` when that takes longer than the seconds given.
    """
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.proc.stdin.close()
    gateway.proc.wait(seconds)


def clear_scratch(settings: Settings, application: str) -> None:
    """Removes what sessions left whose processes run no more."""
    for folder in (settings.run_folder / application / SCRATCH).iterdir():
        if folder.name.isdigit() and not psutil.pid_exists(int(folder.name)):
            shutil.rmtree(folder, ignore_errors=True)


def session_configuration(settings: Settings, scratch: Path) -> dict[str, str]:
    """No secrets here: PySpark puts all of it on the JVM's command line."""
    jars = sorted((settings.jars / "spark").glob("*.jar"))
    if not jars:
        raise SettingsError(f"TIDEWATCH_JARS={settings.jars} has no Spark jars: run `make setup`.")
    configuration = {
        "spark.driver.memory": settings.spark.driver_memory,
        "spark.driver.extraJavaOptions": f'{JAVA_OPTIONS} "-Djava.io.tmpdir={scratch}"',
        "spark.local.dir": str(scratch),
        "spark.executor.extraJavaOptions": "-Duser.timezone=UTC",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.extensions": "io.delta.sql.DeltaSparkSessionExtension",
        "spark.sql.catalog.spark_catalog": "org.apache.spark.sql.delta.catalog.DeltaCatalog",
        "spark.sql.warehouse.dir": settings.lake_root,
        "spark.sql.shuffle.partitions": str(settings.spark.shuffle_partitions),
        # The default of 50 turns each look at a small table's log into 50 tasks.
        "spark.databricks.delta.snapshotPartitions": str(os.cpu_count() or 2),
        # By default Spark keeps the compiled code of 100 stages: with more, batches compile less again.
        "spark.sql.codegen.cache.maxEntries": "1000",
        # For its UI, which is off, Spark writes out every plan and keeps a thousand of them.
        "spark.sql.ui.explainMode": "simple",
        "spark.sql.ui.retainedExecutions": "20",
        "spark.ui.retainedJobs": "200",
        "spark.ui.retainedStages": "200",
        # The sizes of a batch are known beforehand: planning again after each shuffle would only take time.
        "spark.sql.adaptive.enabled": "false",
        # Caches live for one batch: packing them takes longer than it saves.
        "spark.sql.inMemoryColumnarStorage.compressed": "false",
        # A batch has records of one day or two: with a file open for each, rows need not be sorted by day first.
        "spark.sql.maxConcurrentOutputFileWriters": "4",
        # What is different in every row makes no dictionary; trying to was in a fifth of the samples of bronze's tasks.
        **{f"spark.hadoop.parquet.enable.dictionary#{column}": "false" for column in ALWAYS_NEW},
        "spark.scheduler.mode": "FAIR",
        "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state"
        ".RocksDBStateStoreProvider",
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
        "spark.sql.streaming.stateStore.rocksdb.trackTotalNumberOfRows": "false",
        "spark.sql.streaming.stopTimeout": f"{round(settings.stream.stop_seconds * 1000)}ms",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    if settings.spark.master.startswith("local"):
        configuration |= _on_this_machine(settings, jars, scratch)
    else:
        configuration["spark.jars"] = ",".join(str(jar) for jar in jars)
    if "://" not in settings.checkpoint_root:
        configuration["spark.sql.streaming.checkpointFileManagerClass"] = (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        )
    return configuration


def _on_this_machine(settings: Settings, jars: list[Path], scratch: Path) -> dict[str, str]:
    """What a session gains when driver and executors are one process."""
    archive = settings.jars / CLASS_ARCHIVE
    java_options = f'{JAVA_OPTIONS} "-Djava.io.tmpdir={scratch}"'
    if archive.exists():  # one of another Java is passed over, without a word because of the second option
        java_options += f' "-XX:SharedArchiveFile={archive}" -Xlog:cds=off -Xlog:cds+dynamic=off'
    return {
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.extraJavaOptions": java_options,
        # On the class path itself: the archive has only what is there, and Spark opens files before it loads jars.
        "spark.driver.extraClassPath": ":".join(str(jar) for jar in jars),
        # Local files without a process a file: Hadoop's own way calls chmod and readlink for each it makes or renames.
        "spark.hadoop.fs.file.impl": "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem",
        "spark.delta.logStore.file.impl": "io.delta.storage.LocalLogStore",
    }

"""`python -m streaming.class_archive FILE`: makes the JVM's archive of loaded classes, which halves a stream's start.

It runs the real streams on a broker of their own in a temporary folder, so that the archive has what streams load.
"""

import random
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path

from hub import INPUT_HUBS
from hub.broker import EmbeddedBroker
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher
from hub.topics import create_missing_topics, partition_counts
from hub.traffic.run import sources
from processes.ports import free_port
from settings import HubSettings, Settings, SparkSettings
from streaming.catalog import STREAMS
from streaming.queries import start_query
from streaming.query_plan import QueryContext
from streaming.session import JAVA_OPTIONS, close_session, spark_session

BATCH_SECONDS = 120


def make_archive(file: Path) -> None:
    temporary = file.with_suffix(".new")
    temporary.unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="tidewatch-") as home:
        settings = archive_settings(Path(home), temporary)
        hub = settings.hub
        with EmbeddedBroker(settings.hub_folder, settings.jars, port=hub.port, controller_port=hub.controller_port):
            _run_streams(settings)
    if not temporary.exists():
        raise RuntimeError("the JVM wrote no archive")
    temporary.replace(file)


def archive_settings(home: Path, archive: Path) -> Settings:
    """Nothing of the user's: neither hub nor lake nor checkpoints."""
    return Settings(
        home=home,
        lake=None,
        checkpoints=None,
        hub=HubSettings(port=free_port(), controller_port=free_port(), partitions=1),
        spark=SparkSettings(
            conf={"spark.driver.extraJavaOptions": f"{JAVA_OPTIONS} -XX:ArchiveClassesAtExit={archive}"}
        ),
    )


def _run_streams(settings: Settings) -> None:
    connection = HubConnection.from_settings(settings.hub)
    create_missing_topics(connection, settings.hub, {hub for stream in STREAMS.values() for hub in stream.hubs})
    now = datetime.now(UTC)
    with KafkaPublisher(connection) as publisher:
        for source in sources(INPUT_HUBS, rate=30, random_source=random.Random(0)):
            for planned in source.due(1, now):
                publisher.publish(planned.record, lambda outcome: None)
    spark = spark_session(settings, "class-archive")
    context = QueryContext.without_host(
        spark,
        settings,
        connection,
        partition_counts(connection),
    )
    for stream in STREAMS.values():
        queries = [start_query(context, stream, query) for query in stream.queries]
        deadline = time.monotonic() + BATCH_SECONDS
        while not all(query.lastProgress for query in queries):
            if time.monotonic() > deadline:
                raise RuntimeError(f"{stream.name} did no batch in {BATCH_SECONDS} s")
            time.sleep(0.2)
        for query in queries:
            query.stop()
    close_session(spark)  # the JVM writes the archive when it ends


if __name__ == "__main__":
    make_archive(Path(sys.argv[1]).resolve())

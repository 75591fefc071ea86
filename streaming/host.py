"""The stream host: one process that runs one stream's queries until it is told to stop or one of them fails."""

import contextlib
import errno
import logging
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import HubUnreachable, create_missing_topics, partition_counts, retention_seconds
from lake.tables import Table
from processes.identity import ProcessIdentity
from settings import Settings, SettingsError
from streaming.catalog import StreamSpec
from streaming.chores import Chores
from streaming.echoes import Pulsed, listen
from streaming.failures import Failure, FailureClass, StreamFailed, classify
from streaming.files import StreamFiles
from streaming.guard import check_or_end, guard
from streaming.hub_watch import watch_hubs
from streaming.lease import Holder, Lease, LeaseHeld, describe_holder, is_held
from streaming.progress import RUNNING, STARTING, STOPPING, WAITING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

    from streaming.watch import ProgressWriter
    from streaming.work import WorkMeter

log = logging.getLogger("tidewatch")

HUB_RETRY_SECONDS = 3
TABLE_RETRY_SECONDS = 2
CLOSE_SECONDS = 5
LOOK_SECONDS = 0.2
ALIVE_SECONDS = 2.0
FOR_A_PERSON = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST}
"""Of what may be wrong with the home folder, what does not end by itself, as a full disk does."""
# In the history of a table each commit then tells which run made it.
COMMIT_NOTE = "spark.databricks.delta.commitInfo.userMetadata"


class StreamHost:
    """Runs a stream. `run_id` is the Dagster run it belongs to, if any."""

    def __init__(self, settings: Settings, stream: StreamSpec, run_id: str | None) -> None:
        self._settings = settings
        self._stream = stream
        self._run_id = run_id
        self._files = StreamFiles(settings.run_folder, stream.name)
        self._stop = threading.Event()
        self._sender = f"{run_id or stream.name}-{uuid.uuid4().hex[:8]}"

    def run(self) -> int:
        """Returns the process's exit code; a failure is also left in a file for the one who reads the code."""
        _stop_on_signals(self.request_stop)
        try:
            self._check_before_start()
            self._files.failure.unlink(missing_ok=True)
            self._host()
        except StreamFailed as failed:
            failure = failed.failure
        except LeaseHeld as held:
            failure = Failure(
                FailureClass.LEASE_HELD,
                f"{self._stream.name} runs already: {held}.",
                "Leave that one alone, or terminate its run first.",
            )
        except SettingsError as error:
            failure = Failure(FailureClass.SETTINGS, str(error), "Correct the setting and launch the stream again.")
        except Exception as error:
            log.exception("%s failed", self._stream.name)
            failure = self._explain(error)
        else:
            log.info("%s stopped", self._stream.name)
            return 0
        log.error("%s", failure)
        if failure.kind is not FailureClass.LEASE_HELD:
            self._leave(failure)
        return int(failure.kind)

    def _explain(self, error: Exception) -> Failure:
        holder = Holder.read(self._files.lease)
        ours = holder is not None and holder.host == ProcessIdentity.current()
        if holder is not None and ours and holder.jvm is not None and not holder.jvm.is_alive():
            return Failure(
                FailureClass.TRANSIENT,
                f"{self._stream.name}: its JVM ended by itself or was killed ({type(error).__name__}).",
                "The stream is tried again by itself. If it happens again, look whether the machine ran out of memory.",
            )
        return classify(f"{type(error).__name__}: {error}", self._stream.name)

    def request_stop(self, *_: object) -> None:
        self._stop.set()

    def _check_before_start(self) -> None:
        """Finds what would fail later, before a JVM is started for it."""
        home = self._settings.home
        try:
            self._files.lease.parent.mkdir(parents=True, exist_ok=True)
            probe = self._files.lease.with_name(f"probe.{os.getpid()}")
            probe.write_bytes(b"x")
            probe.unlink()
        except OSError as error:
            kind = FailureClass.SETTINGS if error.errno in FOR_A_PERSON else FailureClass.SURROUNDINGS
            raise StreamFailed(
                Failure(
                    kind,
                    f"{self._stream.name}: the home folder {home} can't be written ({error.strerror}).",
                    "Free some space, give this account the right to write there, or set TIDEWATCH_HOME to another.",
                )
            ) from None
        if is_held(self._files.lease):
            raise LeaseHeld(describe_holder(self._files.lease))
        for folder in (str(home), self._settings.lake_root):
            self._check_room(folder)

    def _check_room(self, folder: str) -> None:
        if "://" in folder:
            return
        place = Path(folder)
        while not place.exists():
            place = place.parent
        if not place.is_dir():
            raise StreamFailed(
                Failure(
                    FailureClass.SETTINGS,
                    f"{self._stream.name}: {place} is no folder, so nothing can be kept in {folder}.",
                    "Move that file away, or set TIDEWATCH_HOME or TIDEWATCH_LAKE to another place.",
                )
            )
        free_mb = shutil.disk_usage(place).free // 2**20
        if free_mb < self._settings.stream.disk_floor_mb:
            raise StreamFailed(
                Failure(
                    FailureClass.SURROUNDINGS,
                    f"{self._stream.name}: only {free_mb} MB are free under {folder}, "
                    f"{self._settings.stream.disk_floor_mb} MB are the least to start with.",
                    "Free some space, or lower TIDEWATCH_STREAM_DISK_FLOOR_MB.",
                )
            )

    def _host(self) -> None:
        # Spark is imported here, so that a host that may not run ends before the cost of it.
        from lake.commit import SchemaMismatch
        from streaming.checkpoints import CheckpointError
        from streaming.compilation import interpret
        from streaming.queries import start_query
        from streaming.query_plan import QueryContext
        from streaming.session import clear_scratch, close_session, spark_session
        from streaming.watch import ProgressWriter
        from streaming.work import WorkMeter

        spark = spark_session(self._settings, self._stream.name, self._kept_slots())
        interpret(spark)  # until a batch has many rows
        _stop_on_signals(self.request_stop)  # again, because PySpark sets a handler of its own for SIGINT
        # The JVM holds the lease for as long as it lives; nothing here gives it back.
        lease = Lease.take(spark, self._files.lease, self._run_id)
        guard(lease, self._files.revoked, self._run_id)
        clear_scratch(self._settings, self._stream.name)
        if self._run_id:
            spark.conf.set(COMMIT_NOTE, f"run {self._run_id}")
        progress = ProgressWriter(self._files.progress, self._stream.name, self._run_id)
        connection = HubConnection.from_settings(self._settings.hub)
        partitions = self._wait_for_hub(connection, progress) if self._stream.hubs else {}
        if partitions is None or not self._wait_for_tables(spark, progress):
            return
        self._check_slots(spark, partitions)
        progress.phase(STARTING)
        chores = Chores()
        context = QueryContext(
            spark,
            self._settings,
            connection,
            partitions,
            self._stop.is_set,
            partial(check_or_end, lease),
            datetime.now(UTC),
            progress.rows_of_last_batch,
            chores.add,
            self._sender,
        )
        progress.listen(spark)
        kept = retention_seconds(connection, set(self._stream.hubs)) if self._stream.hubs else {}
        queries = []
        for spec in self._stream.queries:
            progress.expect(spec.name, spec.trigger_seconds(self._settings), kept.get(spec.source_name))
            try:
                with _alive_while_it_works(WorkMeter(spark.sparkContext), progress):
                    query = start_query(context, self._stream, spec)
            except CheckpointError as error:
                raise StreamFailed(Failure(FailureClass.CHECKPOINT, str(error), "", spec.name)) from error
            except SchemaMismatch as error:
                raise StreamFailed(Failure(FailureClass.SETTINGS, str(error), "", spec.name)) from error
            progress.recognise(spec.name, str(query.runId))
            queries.append(query)
        progress.phase(RUNNING)
        log.info("%s runs %s", self._stream.name, ", ".join(spec.name for spec in self._stream.queries))
        self._watch_sources(spark, connection, partitions, progress)
        self._listen_to_echoes(connection, partitions, progress)
        pulses = self._start_pulses(connection)
        chores.start()
        meter, alive_at = WorkMeter(spark.sparkContext), 0.0
        while not self._stop.wait(LOOK_SECONDS):
            for query in queries:
                if not query.isActive:
                    raise StreamFailed(_failure_of(query, self._stream.name))
            if pulses is not None and pulses.forbidden:
                raise StreamFailed(
                    Failure(
                        FailureClass.SETTINGS,
                        f"{self._stream.name}: this account may not send to the hub {self._stream.pulsed_hub} "
                        f"({pulses.forbidden}), by which it keeps time when nobody else sends.",
                        "Give it the right to send there, or set "
                        f"TIDEWATCH_{self._stream.name.upper()}_PULSE_SECONDS=0.",
                    )
                )
            if time.monotonic() - alive_at >= ALIVE_SECONDS:
                # Reached only when the JVM answered, so it speaks for both.
                progress.alive(*(query.name for query in queries if meter.got_on(query)))
                alive_at = time.monotonic()
        progress.phase(STOPPING)
        chores.stop()
        if pulses is not None:
            pulses.stop()
        # Calls that wait for a JVM which is ending are cut off, and py4j tells of each at length.
        logging.getLogger().setLevel(logging.CRITICAL)
        log.info("%s stops after its running batches", self._stream.name)
        try:
            self._finish(spark, queries, progress)
            with contextlib.suppress(subprocess.TimeoutExpired):
                close_session(spark, CLOSE_SECONDS)
        except Exception as error:
            # The JVM went first. Whatever was running is done again after the next start.
            log.warning("%s was cut off while it stopped: %s", self._stream.name, type(error).__name__)
        del lease

    def _kept_slots(self) -> int:
        """How many tasks its queries in real time keep running: one for each partition of their hubs."""
        hubs = self._hubs_in_real_time()
        if not hubs:
            return 0
        try:
            partitions = partition_counts(HubConnection.from_settings(self._settings.hub))
        except HubUnreachable:
            partitions = {}  # it will be waited for; where it has more, the next start knows
        return sum(partitions.get(hub, self._settings.hub.partitions) for hub in hubs)

    def _check_slots(self, spark: "SparkSession", partitions: dict[str, int]) -> None:
        """Without one for every partition, and another, queries would wait for each other without end."""
        needed = sum(partitions[hub] for hub in self._hubs_in_real_time())
        slots = spark.sparkContext.defaultParallelism
        if not needed or slots > needed:
            return
        local = self._settings.spark.master.startswith("local")
        raise StreamFailed(
            Failure(
                # The hub has more partitions than it was thought to have when it did not answer yet.
                FailureClass.TRANSIENT if local else FailureClass.SETTINGS,
                f"{self._stream.name}: its queries in real time keep a task running for each of {needed} partitions, "
                f"but Spark has only {slots} slots for tasks.",
                "It is started again with more."
                if local
                else f"Give it at least {needed + 1} cores, or set TIDEWATCH_SENSORS_ALERTS=micro-batch.",
            )
        )

    def _hubs_in_real_time(self) -> list[str]:
        return [spec.hub for spec in self._stream.queries if spec.real_time(self._settings) and spec.hub is not None]

    def _start_pulses(self, connection: HubConnection) -> Pulses | None:
        hub, seconds = self._stream.pulsed_hub, self._stream.pulse_seconds(self._settings)
        if hub is None or not seconds:
            return None
        pulses = Pulses(connection, hub, seconds, self._sender)
        pulses.start()
        return pulses

    def _listen_to_echoes(
        self, connection: HubConnection, partitions: dict[str, int], progress: "ProgressWriter"
    ) -> None:
        for spec in self._stream.queries:
            if spec.echoes is not None and spec.hub is not None and spec.real_time(self._settings):
                seconds = self._stream.pulse_seconds(self._settings)
                pulsed = Pulsed(spec.name, partitions[spec.hub], seconds, self._sender)
                listen(connection, spec.echoes, partitions[spec.echoes], pulsed, progress)

    def _watch_sources(
        self, spark: "SparkSession", connection: HubConnection, partitions: dict[str, int], progress: "ProgressWriter"
    ) -> None:
        from streaming.table_watch import UnreadOfTable, watch_tables

        queries = self._stream.queries
        if hubs := {spec.name: (spec.hub, partitions[spec.hub]) for spec in queries if spec.hub is not None}:
            watch_hubs(connection, hubs, progress)
        tables = {spec.name: spec.source for spec in queries if isinstance(spec.source, Table)}
        if tables:
            root = self._settings.lake_root
            watch_tables({name: UnreadOfTable(spark, table, root) for name, table in tables.items()}, progress)

    def _finish(self, spark: "SparkSession", queries: "list[StreamingQuery]", progress: "ProgressWriter") -> None:
        """Lets batches in work end. In place of a next one the sink raises, which ends the query. A query in real time
        is in a batch all the time; what it did since it last noted how far it is, it does again."""
        deadline = time.monotonic() + self._settings.stream.stop_seconds
        in_real_time = {spec.name for spec in self._stream.queries if spec.real_time(self._settings)}
        batches = [query for query in queries if query.name not in in_real_time]
        while any(query.isActive and query.status["isTriggerActive"] for query in batches):
            if time.monotonic() > deadline:
                log.warning(
                    "%s: a batch did not end in %s s and is cut off; it is done again after the next start",
                    self._stream.name,
                    self._settings.stream.stop_seconds,
                )
                break
            progress.alive()
            time.sleep(LOOK_SECONDS)
        if in_real_time:  # their tasks end in no other way than by an interruption, of which Spark tells at length
            spark.sparkContext.setLogLevel("OFF")
        for query in queries:
            query.stop()

    def _wait_for_hub(self, connection: HubConnection, progress: "ProgressWriter") -> dict[str, int] | None:
        """Creates what topics are missing and returns all with their partitions; None when told to stop meanwhile."""
        deadline = time.monotonic() + self._settings.stream.hub_wait_seconds
        told = ""
        while not self._stop.is_set():
            try:
                create_missing_topics(connection, self._settings.hub, self._stream.topics(self._settings))
                return partition_counts(connection)
            except HubUnreachable as error:
                if str(error) != told:
                    progress.phase(WAITING, str(error))
                    log.warning("%s waits for the hub: %s", self._stream.name, error)
                    told = str(error)
                if time.monotonic() > deadline:
                    raise StreamFailed(
                        Failure(
                            FailureClass.SURROUNDINGS, f"{self._stream.name}: {error}", "It is tried again by itself."
                        )
                    ) from error
                progress.alive()
            self._stop.wait(HUB_RETRY_SECONDS)
        return None

    def _wait_for_tables(self, spark: "SparkSession", progress: "ProgressWriter") -> bool:
        """Until other streams have made the tables that this one reads; False when told to stop meanwhile."""
        from lake.commit import table_exists

        written = {table.name for spec in self._stream.queries for table in spec.tables}
        sources = [spec.source for spec in self._stream.queries if isinstance(spec.source, Table)]
        waiting = [source for source in sources if source.name not in written]
        while not self._stop.is_set():
            waiting = [source for source in waiting if not table_exists(spark, source, self._settings.lake_root)]
            if not waiting:
                return True
            names = ", ".join(source.name for source in waiting)
            progress.phase(WAITING, f"{names} is not there yet: its stream has to run first.")
            self._stop.wait(TABLE_RETRY_SECONDS)
        return False

    def _leave(self, failure: Failure) -> None:
        try:
            failure.write(self._files.failure)
        except OSError as error:
            log.error("The failure can't be noted in %s: %s", self._files.failure, error)


@contextlib.contextmanager
def _alive_while_it_works(meter: "WorkMeter", progress: "ProgressWriter") -> Iterator[None]:
    """What a query does before it starts may take long: while its tasks end one after the other, it is no hang."""
    over = threading.Event()

    def watch() -> None:
        with contextlib.suppress(Exception):  # a JVM that does not answer is what the host's own calls tell of
            while not over.wait(ALIVE_SECONDS):
                if meter.got_on(None):
                    progress.alive()

    threading.Thread(target=watch, name="start-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _failure_of(query: "StreamingQuery", stream: str) -> Failure:
    error = query.exception()
    return classify(str(error) if error else "the query ended by itself", stream, query.name or "")


def _stop_on_signals(request_stop: Callable[..., None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, request_stop)


def configure_logging() -> None:
    formatter = logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%dT%H:%M:%SZ")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    log.addHandler(handler)
    log.setLevel(logging.INFO)

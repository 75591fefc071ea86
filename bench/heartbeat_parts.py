"""`python -m bench.heartbeat_parts`: what a batch of the query that judges machines costs, part by part.

Spark tells how long it plans and writes its logs, but not what happens in a batch's tasks. So the query is run as
steps, each with one part more than the one before, in turns: what a step takes more than the last is that part's.
"""

import argparse
import json
import shutil
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from bench.beating import beating
from bench.figures import Figure, Result
from bench.heartbeat import own_hub
from bench.rig import wait_for
from hub import HEARTBEATS, MACHINE_STATUS
from hub.connection import HubConnection
from hub.pulses import Pulses
from hub.topics import create_missing_topics, offset_ranges, partition_counts
from settings import Settings
from streaming.catalog import HEARTBEAT, QuerySpec
from streaming.checkpoints import Generation, QueryCheckpoints
from streaming.heartbeats import beats
from streaming.machine_processor import CHANGES
from streaming.machine_queries import health_plan, to_buckets
from streaming.machine_state import QUERY, bucket_keys
from streaming.queries import TASKS, start_query
from streaming.query_plan import QueryContext, QueryPlan
from streaming.session import close_session, spark_session
from streaming.sources import observe_newest, planned_records

SPEC = next(query for query in HEARTBEAT.queries if query.name == QUERY)
WARM_UP_SECONDS, SETTLE_SECONDS = 40.0, 4.0
DRIVER = {
    "ends": "latestOffset",
    "planning": "queryPlanning",
    "offset_log": "walCommit",
    "commit_log": "commitOffsets",
}
"""What Spark tells of a batch itself, before and after its tasks."""
TASKS_AND_SINK = "addBatch"


class Idle(StatefulProcessor):
    """Takes its rows and does nothing with them."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # type: ignore[override]
        for _ in rows:
            pass
        return iter(())

    def close(self) -> None:
        pass


@dataclass(frozen=True)
class Measured:
    """Of half of a step's batches, at most so many milliseconds."""

    whole: float
    of_spark: dict[str, float]
    state_commit: float


def parts(steps: dict[str, list[Measured]]) -> dict[str, list[float]]:
    """What each part takes in each round, in milliseconds. `steps` are in the order in which they grow."""
    *_, whole = steps.values()
    found = {"batch": [each.whole for each in whole]}
    for part, name in DRIVER.items():
        found[part] = [each.of_spark[name] for each in whole]
    before = [0.0] * len(whole)
    for step, rounds in steps.items():
        now = [each.of_spark[TASKS_AND_SINK] for each in rounds]
        found[step] = [after - less for after, less in zip(now, before, strict=True)]
        before = now
    found["state_commit"] = [each.state_commit for each in whole]
    return found


def measured(batches: list[dict[str, Any]]) -> Measured:
    """Of batches as Spark tells them; those without records are left out."""
    done = [batch for batch in batches if batch["numInputRows"]]
    times = [batch["durationMs"] for batch in done]
    of_spark = {
        name: statistics.median(each.get(name, 0) for each in times) for name in (*DRIVER.values(), TASKS_AND_SINK)
    }
    commits = [operator["commitTimeMs"] for batch in done for operator in batch["stateOperators"]]
    return Measured(
        statistics.median(each["triggerExecution"] for each in times),
        of_spark,
        statistics.median(commits) if commits else 0.0,
    )


class Steps:
    """The query that judges, as far as each step goes."""

    def __init__(self, spark: SparkSession, settings: Settings, connection: HubConnection) -> None:
        self._spark, self._settings, self._connection = spark, settings, connection
        self._started = 0
        self.all: dict[str, Callable[[], StreamingQuery]] = {
            "reading": lambda: self._natively(self._read),
            "shuffle": lambda: self._natively(lambda context, generation: self._spread(context, generation, True)),
            "state": lambda: self._natively(self._counted, "update"),
            "python": lambda: self._natively(self._idle),
            "judging": lambda: self._natively(lambda context, generation: _plan(context, generation).rows),
            "handing_over": lambda: self._in_batches(_into_nothing),
            "sink": lambda: self._in_batches(None),
        }
        """By the part that each has more than the one before; the last is the query as it is."""

    @contextmanager
    def running(self, step: str) -> Iterator[StreamingQuery]:
        query = self.all[step]()
        try:
            yield query
        finally:
            query.stop()

    def _natively(self, rows: Callable[[QueryContext, Generation], DataFrame], mode: str = "append") -> StreamingQuery:
        context = self._next_context()
        checkpoints = QueryCheckpoints(self._spark, context.settings.checkpoint_root, HEARTBEAT.name, QUERY)
        generation = checkpoints.begin(SPEC.plan, self._from_now(), context.now, SPEC.buckets(context.settings))
        tasks = self._spark.conf.get(TASKS)
        self._spark.conf.set(TASKS, SPEC.buckets(context.settings))
        try:
            writer = rows(context, generation).writeStream.format("noop").outputMode(mode)
            location = checkpoints.location(generation)
            return writer.option("checkpointLocation", location).trigger(processingTime="0 seconds").start()
        finally:
            self._spark.conf.set(TASKS, tasks or "")

    def _in_batches(self, commit: Callable[[DataFrame, int], None] | None) -> StreamingQuery:
        def planner(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
            plan = _plan(context, generation)
            return plan if commit is None else replace(plan, commit=commit)

        return start_query(self._next_context(), HEARTBEAT, SPEC, planner, begins_at=self._from_now())

    def _read(self, context: QueryContext, generation: Generation) -> DataFrame:
        records = planned_records(context, HEARTBEATS, generation, context.settings.heartbeat.max_records)
        return observe_newest(beats(records), context.partitions[HEARTBEATS])

    def _spread(self, context: QueryContext, generation: Generation, shuffled: bool = False) -> DataFrame:
        keys = bucket_keys(self._spark, SPEC.buckets(context.settings))
        rows = to_buckets(self._read(context, generation), keys, pulses=True)
        return rows.repartition(len(keys), "bucket") if shuffled else rows

    def _counted(self, context: QueryContext, generation: Generation) -> DataFrame:
        """With state, but without Python."""
        return self._spread(context, generation).groupBy("bucket").agg(F.max("at"))

    def _idle(self, context: QueryContext, generation: Generation) -> DataFrame:
        rows = self._spread(context, generation).groupBy("bucket")
        return rows.transformWithStateInPandas(Idle(), outputStructType=CHANGES, outputMode="Append", timeMode="None")

    def _next_context(self) -> QueryContext:
        shutil.rmtree(self._settings.home / f"checkpoints-{self._started}", ignore_errors=True)
        self._started += 1
        folder = str(self._settings.home / f"checkpoints-{self._started}")
        settings = self._settings.model_copy(update={"checkpoints": folder})
        return QueryContext.without_host(self._spark, settings, self._connection, partition_counts(self._connection))

    def _from_now(self) -> dict[str, dict[str, int]]:
        ranges = offset_ranges(self._connection, HEARTBEATS)
        return {HEARTBEATS: {str(partition): end for partition, (_, end) in ranges.items()}}


def _plan(context: QueryContext, generation: Generation) -> QueryPlan:
    return health_plan(context, SPEC, generation)


def _into_nothing(batch: DataFrame, number: int) -> None:
    batch.write.format("noop").mode("overwrite").save()


def measure(machines: int, rounds: int, seconds: float, say: Callable[[str], None]) -> Result:
    with own_hub() as (settings, connection):
        create_missing_topics(connection, settings.hub, [HEARTBEATS, MACHINE_STATUS])
        spark = spark_session(settings, "bench")
        pulses = Pulses(connection, HEARTBEATS, settings.heartbeat.pulse_seconds, "bench")
        pulses.start()
        try:
            with beating(connection.servers) as running:
                running.set(machines, 0.01)
                found = parts(_in_turns(Steps(spark, settings, connection), rounds, seconds, say))
        finally:
            pulses.stop()
            close_session(spark)
    return Result("heartbeat_parts", {name: Figure.plain(values, "ms") for name, values in found.items()})


def _in_turns(steps: Steps, rounds: int, seconds: float, say: Callable[[str], None]) -> dict[str, list[Measured]]:
    with steps.running("sink"):
        time.sleep(WARM_UP_SECONDS)
    found: dict[str, list[Measured]] = defaultdict(list)
    for number in range(1, rounds + 1):
        for step in steps.all:
            with steps.running(step) as query:
                wait_for("a batch", partial(_has_done_a_batch, query))
                time.sleep(SETTLE_SECONDS)
                began = datetime.now(UTC)
                time.sleep(seconds)
                batches = [json.loads(each.json) for each in query.recentProgress]
                found[step].append(
                    measured([batch for batch in batches if datetime.fromisoformat(batch["timestamp"]) >= began])
                )
            say(f"{number}: up to {step} {found[step][-1].whole:.0f} ms")
    return dict(found)


def _has_done_a_batch(query: StreamingQuery) -> bool:
    if (error := query.exception()) is not None:
        raise error
    return any(each.numInputRows for each in query.recentProgress)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--machines", type=int, default=1_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=8.0, help="How long each step is measured in each round.")
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    result = measure(chosen.machines, chosen.rounds, chosen.seconds, print)
    print("\n".join(result.lines()))
    if chosen.json:
        chosen.json.write_text(json.dumps(result.to_dict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())

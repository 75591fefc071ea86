"""What the heartbeat stream remembers of a machine, read from its checkpoint with Spark's state reader."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pandas as pd
from pyspark.sql import SparkSession

from settings import Settings
from streaming.catalog import HEARTBEAT
from streaming.checkpoints import CheckpointError, Generation, QueryCheckpoints
from streaming.machine_health import Machines, Status
from streaming.machine_processor import STATE, from_bytes, to_bytes

QUERY = "machine_health"
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class MachineState:
    machine_name: str
    status: str
    since: datetime
    last_heartbeat: datetime
    partition: int
    """The hub's partition of its last heartbeat."""
    waiting: list[datetime]
    """Heartbeats beyond the time up to which all partitions are known."""
    judged_up_to: datetime
    """The earliest of the partitions' clocks."""


def machine_state(spark: SparkSession, settings: Settings, name: str) -> MachineState | None:
    """As of the last batch, safe beside the running stream; None for a machine that nothing is known of."""
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, HEARTBEAT.name, QUERY)
    generation = checkpoints.latest()
    if generation is None or not checkpoints.has_commits(generation):
        raise CheckpointError(f"{HEARTBEAT.name}/{QUERY} has done no batch yet: let the stream heartbeat run first.")
    for state in stored(spark, checkpoints, generation).values():
        if (found := _found(from_bytes(state), name)) is not None:
            return found
    return None


def stored(spark: SparkSession, checkpoints: QueryCheckpoints, generation: Generation) -> dict[int, bytes]:
    """The state of each bucket by its key, as of the last batch."""
    if not checkpoints.has_commits(generation):
        return {}
    _ = spark.streams.active  # which starts what state is read through, in a session that has had no query yet
    reader = spark.read.format("statestore").option("stateVarName", STATE)
    rows = reader.load(checkpoints.location(generation)).select("key", "value").collect()
    return {row["key"][0]: bytes(row["value"][0]) for row in rows}


def carried_over(
    spark: SparkSession, checkpoints: QueryCheckpoints, generation: Generation, keys: list[int]
) -> dict[int, bytes]:
    """What the buckets of a new generation begin with: all that the one before knew, divided anew. Empty as soon as the
    generation has a state of its own for every bucket."""
    before = checkpoints.before(generation)
    if before is None or stored(spark, checkpoints, generation).keys() >= set(keys):
        return {}
    states = [from_bytes(state) for state in stored(spark, checkpoints, before).values()]
    if not states:
        return {}
    clocks: dict[int, int] = {}
    for state in states:
        for partition, at in state.clocks.items():
            clocks[partition] = min(at, clocks.get(partition, at))
    known, waiting = (
        pd.concat([getattr(state, part) for state in states], ignore_index=True) for part in ("known", "waiting")
    )
    machines = pd.concat([known["machine"], waiting["machine"]]).unique().tolist()
    rows = spark.createDataFrame([(name,) for name in machines], "machine STRING").selectExpr(
        "machine", f"{bucket_of_machine(keys)} AS bucket"
    )
    bucket = {row["machine"]: row["bucket"] for row in rows.collect()}
    return {
        key: to_bytes(
            Machines(
                known[known["machine"].map(bucket) == key].reset_index(drop=True),
                waiting[waiting["machine"].map(bucket) == key].reset_index(drop=True),
                clocks,
            )
        )
        for key in keys
    }


def bucket_of_machine(keys: list[int]) -> str:
    """As SQL over a column `machine`."""
    return f"element_at(array({', '.join(map(str, keys))}), 1 + cast(pmod(xxhash64(machine), {len(keys)}) AS INT))"


def _found(machines: Machines, name: str) -> MachineState | None:
    known = machines.known[machines.known["machine"] == name]
    if known.empty:
        return None
    row = known.iloc[0]
    waiting = machines.waiting.loc[machines.waiting["machine"] == name, "at"]
    return MachineState(
        name,
        Status(row["status"]).name.capitalize(),
        _time(row["since"]),
        _time(row["last"]),
        int(row["partition"]),
        [_time(at) for at in waiting],
        _time(min(machines.clocks.values())),
    )


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=int(micros))

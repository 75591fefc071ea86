"""What the heartbeat stream remembers of a machine, read from its checkpoint with Spark's state reader."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pandas as pd
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

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
    """Unknown while nothing of it is judged yet, and without times then."""
    since: datetime | None
    last_heartbeat: datetime | None
    """Or, while it beats on without a silence, the time up to which that is judged."""
    partition: int
    """The hub's partition of its last heartbeat."""
    waiting: list[datetime]
    """Heartbeats beyond the time up to which all partitions are known: of each run the first two and the last."""
    judged_up_to: datetime
    """The earliest of the partitions' clocks."""
    held_up_by: int
    """The partition whose clock that is."""
    behind_seconds: float
    """How far it is behind the newest of the clocks."""


def machine_state(spark: SparkSession, settings: Settings, name: str) -> MachineState | None:
    """As of the last batch, safe beside the running stream; None for a machine that nothing is known of."""
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, HEARTBEAT.name, QUERY)
    generation = checkpoints.latest()
    states = {} if generation is None else _known(spark, checkpoints, generation, settings.heartbeat.buckets)
    if not states:
        raise CheckpointError(f"{HEARTBEAT.name}/{QUERY} has done no batch yet: let the stream heartbeat run first.")
    for state in states.values():
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
    spark: SparkSession, checkpoints: QueryCheckpoints, generation: Generation, keys: list[int], partitions: int
) -> dict[int, bytes]:
    """What the buckets of a new generation begin with: all that was known before, divided anew. Empty as soon as the
    generation has a state of its own for every bucket. `partitions` is how many the hub has now."""
    before = checkpoints.before(generation)
    if before is None or stored(spark, checkpoints, generation).keys() >= set(keys):
        return {}
    states = _known(spark, checkpoints, before, len(keys)).values()
    return _divided_anew(spark, generation, [from_bytes(state) for state in states], keys, partitions)


def _known(
    spark: SparkSession, checkpoints: QueryCheckpoints, generation: Generation, buckets: int
) -> dict[int, bytes]:
    """What each bucket of a generation stored, or else began with: one that was cut off before it stored anything knows
    what the one before knew. `buckets` counts where the generation does not tell."""
    states = stored(spark, checkpoints, generation)
    keys = bucket_keys(spark, generation.buckets or buckets)
    before = checkpoints.before(generation)
    if before is None or states.keys() >= set(keys):
        return states
    earlier = [from_bytes(state) for state in _known(spark, checkpoints, before, buckets).values()]
    return {**_divided_anew(spark, generation, earlier, keys), **states}


def _divided_anew(
    spark: SparkSession,
    generation: Generation,
    states: list[Machines],
    keys: list[int],
    partitions: int | None = None,
) -> dict[int, bytes]:
    """For each bucket of the generation its machines. A partition that the hub has no more has no clock either: it
    would stand still, and hold up all machines for ever."""
    if not states:
        return {}
    clocks: dict[int, int] = {}
    for state in states:
        for partition, at in state.clocks.items():
            clocks[partition] = min(at, clocks.get(partition, at))
    lost = _lost(generation, states, clocks)
    clocks = {partition: at for partition, at in clocks.items() if partitions is None or partition < partitions}
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
                lost,
            )
        )
        for key in keys
    }


def _lost(generation: Generation, states: list[Machines], clocks: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """What is lost with this generation, and was before. Of a partition that loses again it is all the time in between:
    it may not have been read since."""
    now = {int(partition): until for partition, until in (generation.lost_until or {}).items()}
    found = [loss for state in states for loss in state.lost.items()]
    found += [(partition, (clocks.get(partition, 0), until)) for partition, until in now.items()]
    lost: dict[int, tuple[int, int]] = {}
    for partition, (known_up_to, known_again) in found:
        first, last = lost.get(partition, (known_up_to, known_again))
        lost[partition] = min(first, known_up_to), max(last, known_again)
    return lost


def bucket_keys(spark: SparkSession, buckets: int) -> list[int]:
    """A key for each bucket, such that Spark gives each bucket a task of its own."""
    task = F.pmod(F.hash(F.col("id").cast("int")), F.lit(buckets)).alias("task")
    rows = spark.range(100 * buckets).select(F.col("id").cast("int"), task).collect()
    keys = {row["task"]: row["id"] for row in reversed(rows)}
    return [keys[task] for task in range(buckets)]


def bucket_of_machine(keys: list[int]) -> str:
    """As SQL over a column `machine`."""
    return f"element_at(array({', '.join(map(str, keys))}), 1 + cast(pmod(xxhash64(machine), {len(keys)}) AS INT))"


def _found(machines: Machines, name: str) -> MachineState | None:
    known = machines.known[machines.known["machine"] == name]
    waiting = machines.waiting[machines.waiting["machine"] == name].sort_values("at")
    if known.empty and waiting.empty:
        return None
    row = waiting.iloc[-1] if known.empty else known.iloc[0]
    slowest = min(machines.clocks, key=machines.clocks.__getitem__)
    earliest = machines.clocks[slowest]
    return MachineState(
        name,
        Status(Status.UNKNOWN if known.empty else row["status"]).name.capitalize(),
        None if known.empty else _time(row["since"]),
        None if known.empty else _time(row["last"]),
        int(row["partition"]),
        [_time(at) for at in waiting["at"]],
        _time(earliest),
        slowest,
        (max(machines.clocks.values()) - earliest) / 1e6,
    )


def _time(micros: int) -> datetime:
    return EPOCH + timedelta(microseconds=int(micros))

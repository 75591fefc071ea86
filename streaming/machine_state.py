"""What the heartbeat stream remembers of a machine, read from its checkpoint with Spark's state reader."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from pyspark.sql import SparkSession

from settings import Settings
from streaming.catalog import HEARTBEAT
from streaming.checkpoints import CheckpointError, QueryCheckpoints
from streaming.machine_health import Machines, Status
from streaming.machine_processor import STATE, from_bytes

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
    state = (
        spark.read.format("statestore").option("stateVarName", STATE).load(checkpoints.location(generation)).collect()
    )
    for row in state:
        if (found := _found(from_bytes(row["value"][0]), name)) is not None:
            return found
    return None


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

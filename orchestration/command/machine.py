"""`tidewatch machine`: what the heartbeat stream remembers of a machine."""

import json
from dataclasses import asdict

from settings import Settings
from streaming.checkpoints import CheckpointError
from streaming.machine_state import MachineState, machine_state
from streaming.session import clear_scratch, close_session, spark_session

APPLICATION = "machine"


class MachineError(Exception):
    """Nothing can be told of the machine; the message says why."""


def look_up(settings: Settings, name: str) -> MachineState:
    spark = spark_session(settings, APPLICATION)
    try:
        clear_scratch(settings, APPLICATION)
        found = machine_state(spark, settings, name)
    except CheckpointError as error:
        raise MachineError(str(error)) from error
    finally:
        close_session(spark)
    if found is None:
        raise MachineError(
            f"Nothing is known of a machine {name}: it never sent a heartbeat, or it was retired. "
            "silver/machine_status tells which."
        )
    return found


def to_json(state: MachineState) -> str:
    return json.dumps(asdict(state), default=lambda at: at.isoformat(), indent=2)


def as_report(state: MachineState) -> str:
    judged = f"judged up to {state.judged_up_to.isoformat()}, as far as partition {state.held_up_by} is known"
    if state.behind_seconds:
        judged += f", {state.behind_seconds:,.1f} s behind the newest"
    if state.since is None or state.last_heartbeat is None:
        lines = [
            f"{state.machine_name} is new: it beats on partition {state.partition}, but nothing is judged of it yet"
        ]
    else:
        lines = [
            f"{state.machine_name} is {state.status} since {state.since.isoformat()}",
            f"  last heartbeat {state.last_heartbeat.isoformat()} on partition {state.partition}",
        ]
    lines.append(f"  {judged}")
    if state.waiting:
        lines.append(
            f"  heartbeats up to {state.waiting[-1].isoformat()} wait until all partitions are known up to them"
        )
    return "\n".join(lines)

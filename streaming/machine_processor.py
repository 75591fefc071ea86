"""The stateful processor of heartbeats: all machines of a bucket are one value of its state, so that a batch takes two
calls of the state for each bucket, however many machines there are."""

import json
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from streaming.machine_health import BEAT, KNOWN, WAITING, Machines, Patience, Status, frame, judge

CHANGES = """machine_name STRING, previous STRING, status STRING, since TIMESTAMP, last_heartbeat TIMESTAMP,
    detected_at TIMESTAMP"""
"""What the processor gives, as Spark's DDL. `previous` is null for a machine that is new, or was retired."""
STATE = "machines"
CLOCKS, LOST = b"clocks", b"lost"


class MachineProcessor(StatefulProcessor):
    """Takes `machine` (null for a pulse), `partition` and `at` (microseconds), and gives the columns of `CHANGES`."""

    def __init__(self, patience: Patience, *, one_clock: bool, carried_over: Mapping[int, bytes] | None = None) -> None:
        """`carried_over` is what buckets begin with, by their keys, where the state has nothing of them yet."""
        self._patience, self._one_clock = patience, one_clock
        self._carried_over = dict(carried_over or {})

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._state = handle.getValueState(STATE, "machines BINARY")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # type: ignore[override]
        stored = self._state.get()
        known = stored[0] if stored is not None else self._carried_over.get(key[0])
        before = Machines.none() if known is None else from_bytes(known)
        records = pd.concat(list(rows), ignore_index=True)
        told = judge(before, records[list(BEAT)], self._patience, one_clock=self._one_clock)
        self._state.update((to_bytes(told.machines),))
        if len(told.changes):  # of an empty frame Spark can't tell the types
            yield _as_rows(told.changes)

    def close(self) -> None:
        pass


def to_bytes(machines: Machines) -> bytes:
    """Two Arrow streams, one after the other; what is known of partitions is with the first one's schema."""
    of_partitions: dict[bytes, Mapping[int, object]] = {CLOCKS: machines.clocks, LOST: machines.lost}
    metadata = {name: json.dumps(dict(times)).encode() for name, times in of_partitions.items()}
    sink = pa.BufferOutputStream()
    for table in (_table(machines.known).replace_schema_metadata(metadata), _table(machines.waiting)):
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
    return bytes(sink.getvalue())


def from_bytes(data: bytes) -> Machines:
    source = pa.BufferReader(data)
    known, waiting = (pa.ipc.open_stream(source).read_all() for _ in range(2))
    clocks, lost = (json.loads(known.schema.metadata.get(name, b"{}")) for name in (CLOCKS, LOST))
    beats = _columns(waiting)
    return Machines(
        frame(KNOWN, **_columns(known)),
        # A state from before runs has every single heartbeat.
        frame(WAITING, **{"unbroken_since": beats["at"], **beats}),
        {int(partition): at for partition, at in clocks.items()},
        {int(partition): (known_up_to, known_again) for partition, (known_up_to, known_again) in lost.items()},
    )


# Column by column: for few machines, Arrow's ways from and to whole frames take twice as long.
def _table(rows: pd.DataFrame) -> pa.Table:
    return pa.table({name: rows[name].to_numpy() for name in rows})


def _columns(table: pa.Table) -> dict[str, npt.NDArray[np.generic]]:
    return {name: table.column(name).to_numpy() for name in table.column_names}


def _as_rows(changes: pd.DataFrame) -> pd.DataFrame:
    names = np.array([status.name.capitalize() for status in Status if status is not Status.UNKNOWN] + [None], object)
    return pd.DataFrame(
        {
            "machine_name": changes["machine"],
            "previous": names[changes["previous"]],
            "status": names[changes["status"]],
            "since": _time(changes["since"]),
            "last_heartbeat": _time(changes["last_heartbeat"]),
            "detected_at": pd.Series([datetime.now(UTC)] * len(changes), dtype="datetime64[us, UTC]"),
        }
    )


def _time(micros: "pd.Series[int]") -> "pd.Series[pd.Timestamp]":
    return pd.to_datetime(micros, unit="us", utc=True)

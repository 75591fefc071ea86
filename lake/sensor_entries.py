"""Whether the books of sensors balance: every record of bronze is a reading, in quarantine, or a pulse. Reads Delta
without Spark."""

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow.dataset as ds

from lake.audit import PLACE, Place, batches_of, place_of, rows_of
from lake.sensors import SENSOR_READINGS
from lake.silver import quarantine_table
from lake.tables import Table, bronze_table

BRONZE, QUARANTINE = bronze_table("sensors"), quarantine_table("sensors")
# A place as one number: more records than that no partition has.
BITS = 48
Places = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class SensorBooks:
    """Of the records that the hub took since some time."""

    bronze: int = 0
    readings: int = 0
    late: int = 0
    """Readings that came too late for a window."""
    quarantine: int = 0
    pulses: int = 0
    missing: list[Place] = field(default_factory=list)
    """In bronze, and nowhere else, although later readings are in silver."""
    surplus: list[Place] = field(default_factory=list)
    """Entered twice, or not in bronze, although later records are."""

    @property
    def balanced(self) -> bool:
        return not (self.missing or self.surplus)


def sensor_books(lake_root: str, since: datetime) -> SensorBooks:
    # Before a batch's readings its quarantine is committed. Bronze comes last, so that it can't lack what was read.
    readings = _places(SENSOR_READINGS, lake_root, since, "processing_time")
    late = _places(SENSOR_READINGS, lake_root, since, "processing_time", ds.field("missed_windows") > 0)
    quarantine = _places(QUARANTINE, lake_root, since, "processing_time")
    bronze = _places(BRONZE, lake_root, since, "enqueued_time")
    entered, times = np.unique(np.concatenate([readings, quarantine]), return_counts=True)
    left = np.setdiff1d(bronze[_up_to(bronze, readings)], entered)
    unknown = np.setdiff1d(entered[_up_to(entered, bronze)], bronze)
    pulses = _pulses(lake_root, since, left)
    return SensorBooks(
        len(bronze),
        len(readings),
        len(late),
        len(quarantine),
        len(pulses),
        [place for place in _told(left) if place not in pulses],
        _told(np.union1d(entered[times > 1], unknown)),
    )


def _places(table: Table, lake_root: str, since: datetime, time: str, more: ds.Expression | None = None) -> Places:
    wanted = _since(since, time)
    batches = batches_of(table, lake_root, PLACE, wanted if more is None else wanted & more)
    return np.concatenate(
        [
            np.empty(0, np.int64),
            *(
                (batch.column("partition").to_numpy().astype(np.int64) << BITS)
                + batch.column("sequence_number").to_numpy()
                for batch in batches
            ),
        ]
    )


def _since(since: datetime, time: str) -> ds.Expression:
    return (ds.field("date") >= since.date()) & (ds.field(time) >= since)


def _up_to(places: Places, known: Places) -> "np.ndarray[Any, np.dtype[np.bool_]]":
    """Which are not beyond the last known one of their partition."""
    last = {partition: known[known >> BITS == partition].max() for partition in np.unique(known >> BITS).tolist()}
    inside = np.zeros(len(places), np.bool_)
    for partition, end in last.items():
        inside |= (places >> BITS == partition) & (places <= end)
    return inside


def _pulses(lake_root: str, since: datetime, places: Places) -> set[Place]:
    """Those of the places at which bronze has a pulse."""
    known = set(_told(places))
    if not known:
        return set()
    numbers = ds.field("sequence_number").isin([number for _, number in known]) & _since(since, "enqueued_time")
    rows = rows_of(BRONZE, lake_root, ("body", *PLACE), numbers)
    return {place_of(row) for row in rows if place_of(row) in known and _is_pulse(row["body"])}


def _is_pulse(body: bytes | None) -> bool:
    try:
        fields = json.loads(body or b"")
        return isinstance(fields, dict) and fields.keys() == {"pulse", "sent_at"}
    except ValueError:
        return False


def _told(places: Places) -> list[Place]:
    return [(place >> BITS, place & ((1 << BITS) - 1)) for place in places.tolist()]

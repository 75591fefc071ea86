"""Whether alerts, readings and samples of sensors agree. Reads Delta without Spark."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

import pyarrow.dataset as ds

from lake.audit import PLACE, Place, place_of, rows_of
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS


@dataclass(frozen=True)
class Agreement:
    """Each of the lists has the ids of alerts that are missing in one place."""

    anomalies: int = 0
    not_told: list[str] = field(default_factory=list)
    """Anomalous readings of silver without an alert on the hub."""
    not_in_silver: list[str] = field(default_factory=list)
    """Alerts on the hub whose readings silver has passed by."""
    not_sampled: list[str] = field(default_factory=list)
    """Anomalous readings that are in no sample, although a window that they were in time for is closed."""

    @property
    def agrees(self) -> bool:
        return not (self.not_told or self.not_in_silver or self.not_sampled)


def agreement(
    lake_root: str,
    alerts: Iterable[tuple[str, Place]],
    since: datetime,
    told_up_to: datetime,
    window: timedelta,
    windows_of_one: int,
) -> Agreement:
    """Of the readings that the hub took from `since` on; anomalies up to `told_up_to` have to be told. `alerts` are all
    of the hub since then, each with its reading's place. A reading is in so many windows of that length."""
    recent = (ds.field("date") >= since.date()) & (ds.field("processing_time") >= since)
    columns = ("processing_time", "event_time", "alert_id", "missed_windows", *PLACE)
    anomalous: dict[Place, dict[str, Any]] = {}
    read_to: dict[int, int] = {}
    for row in rows_of(SENSOR_READINGS, lake_root, columns, recent):
        read_to[row["partition"]] = max(read_to.get(row["partition"], -1), row["sequence_number"])
        if row["alert_id"] is not None:
            anomalous[place_of(row)] = row
    told = {place: alert_id for alert_id, place in alerts}
    passed_by = {place for place in told if place not in anomalous and place[1] <= read_to.get(place[0], -1)}
    in_time = [row for row in anomalous.values() if row["missed_windows"] < windows_of_one]
    return Agreement(
        len(anomalous),
        [
            row["alert_id"]
            for place, row in anomalous.items()
            if place not in told and row["processing_time"] <= told_up_to
        ],
        [told[place] for place in sorted(passed_by - _older(lake_root, passed_by))],
        _not_sampled(lake_root, in_time, window),
    )


def _older(lake_root: str, places: Collection[Place]) -> set[Place]:
    """Those whose readings are in silver, but were taken by the hub earlier: a stream that was down told them late."""
    if not places:
        return set()
    numbers = ds.field("sequence_number").isin([number for _, number in places]) & ds.field("alert_id").is_valid()
    return {place_of(row) for row in rows_of(SENSOR_READINGS, lake_root, PLACE, numbers)}


def _not_sampled(lake_root: str, anomalous: list[dict[str, Any]], window: timedelta) -> list[str]:
    closed = max((row["window_end"] for row in rows_of(SENSOR_WINDOWS, lake_root, ("window_end",))), default=None)
    if closed is None or not anomalous:
        return []
    first = min(row["event_time"] for row in anomalous)
    lately = (ds.field("date") >= (first - window).date()) & (ds.field("event_time") >= first)
    sampled = {row["alert_id"] for row in rows_of(SENSOR_SAMPLES, lake_root, ("alert_id",), lately)}
    due = (row for row in anomalous if row["event_time"] + window <= closed)
    return [row["alert_id"] for row in due if row["alert_id"] not in sampled]

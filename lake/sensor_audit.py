"""Holds what a ledger says of sensors' readings against silver and quarantine, and samples against the readings they
are of. Reads Delta without Spark."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pyarrow.dataset as ds

from lake.audit import PLACE, Place, TableAudit, add_example, compare, place_of, rows_of, told_place
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MICRO = timedelta(microseconds=1)
MICROS = 1_000_000


@dataclass(frozen=True, slots=True, order=True)
class Reading:
    """In the order of a window. Times are microseconds."""

    event_time: int
    device_id: str
    sensor_freq: float
    place: Place
    enqueued: int
    anomalous: bool

    @property
    def same(self) -> tuple[int, str, float]:
        return self.event_time, self.device_id, self.sensor_freq


@dataclass(frozen=True)
class WindowRules:
    """In microseconds; see the settings of the same names."""

    length: int
    slide: int
    lateness: int
    per_device: bool = False

    def ends(self, reading: Reading) -> list[int]:
        """Of the windows that the reading is in and in time for."""
        first = reading.event_time - reading.event_time % self.slide + self.slide
        ends = range(first, first + self.length, self.slide)
        return [end for end in ends if reading.enqueued < end + self.lateness]


Sample = tuple[int, str | None, Place, tuple[str, ...]]
"""A window's end, the device where each is sampled, the record's place and its roles."""


def samples_of(readings: Iterable[Reading], rules: WindowRules) -> set[Sample]:
    """What is to be sampled of all windows, told window by window and reading by reading."""
    windows: dict[tuple[int, str | None], list[Reading]] = defaultdict(list)
    for reading in readings:
        for end in rules.ends(reading):
            windows[end, reading.device_id if rules.per_device else None].append(reading)
    return {
        (end, device, reading.place, roles)
        for (end, device), inside in windows.items()
        for reading, roles in _roles(inside)
    }


def _roles(inside: list[Reading]) -> Iterator[tuple[Reading, tuple[str, ...]]]:
    ordered = sorted(inside)
    different = [next(group) for _, group in itertools.groupby(ordered, key=lambda reading: reading.same)]
    places = {"first": 0, "middle": (len(different) - 1) // 2, "last": len(different) - 1}
    for place, reading in enumerate(different):
        roles = (*(role for role, at in places.items() if at == place), *(["anomaly"] if reading.anomalous else []))
        if roles:
            yield reading, roles


def reading_places(lake_root: str) -> set[Place]:
    return {place_of(row) for row in rows_of(SENSOR_READINGS, lake_root, PLACE)}


def audit_readings(lake_root: str, sent: Collection[Reading], spoiled: Collection[Place]) -> TableAudit:
    """Every reading is there once and as it was sent, and no spoiled one."""
    audit = TableAudit(SENSOR_READINGS.name, len(sent))
    known = {reading.place: reading for reading in sent}
    found: Counter[Place] = Counter()
    for reading in _readings(lake_root, None):
        place = reading.place
        found[place] += 1
        if place in known and known[place] != reading:
            audit.changed += 1
            add_example(audit, f"changed: {told_place(place)} is {reading}, not {known[place]}")
    for place in known.keys() - found.keys():
        audit.lost += 1
        add_example(audit, f"lost: {told_place(place)}")
    for place, times in found.items():
        if times > 1:
            audit.duplicated += times - 1
            add_example(audit, f"duplicated: {told_place(place)}, {times} times")
    for place in found.keys() & set(spoiled):
        audit.unexplained += 1
        add_example(audit, f"unexplained: the spoiled record at {told_place(place)}")
    return audit


def audit_samples(lake_root: str, rules: WindowRules, *, first: int, closed_by: int) -> TableAudit:
    """Samples of the windows that begin at `first` or later are those of silver's readings; all windows that end up to
    `closed_by` have to be closed."""
    due = closed_by - closed_by % rules.slide
    closed = newest_closed(lake_root)
    judged_up_to = max(closed, due)
    readings = [reading for reading in _readings(lake_root, first) if reading.event_time < judged_up_to]
    right = {sample for sample in samples_of(readings, rules) if first + rules.length <= sample[0] <= judged_up_to}
    audit = TableAudit(SENSOR_SAMPLES.name, len(readings))
    found = Counter(sample for sample in _samples(lake_root) if first + rules.length <= sample[0] <= judged_up_to)
    compare(audit, found, right, right, _sample)
    return audit


def newest_closed(lake_root: str) -> int:
    """The end of the newest closed window."""
    ends = (micros(row["window_end"]) for row in rows_of(SENSOR_WINDOWS, lake_root, ("window_end",)))
    return max(ends, default=0)


def micros(at: datetime) -> int:
    return (at - EPOCH) // MICRO


def _readings(lake_root: str, first: int | None) -> Iterator[Reading]:
    columns = ("device_id", "sensor_freq", "event_time", "anomaly", "processing_time", *PLACE)
    where = None if first is None else ds.field("event_time") >= EPOCH + first * MICRO
    for row in rows_of(SENSOR_READINGS, lake_root, columns, where):
        yield Reading(
            micros(row["event_time"]),
            row["device_id"],
            row["sensor_freq"],
            place_of(row),
            micros(row["processing_time"]),
            row["anomaly"] is not None,
        )


def _samples(lake_root: str) -> Iterator[Sample]:
    for row in rows_of(SENSOR_SAMPLES, lake_root, ("window_end", "of_device", "roles", *PLACE)):
        yield micros(row["window_end"]), row["of_device"], place_of(row), tuple(row["roles"])


def _sample(sample: Sample) -> str:
    end, device, place, roles = sample
    of = f" of {device}" if device is not None else ""
    return f"{' and '.join(roles)} at {told_place(place)} of the window{of} up to {EPOCH + end * MICRO}"

"""Whether the books of clicks balance, how fresh silver is, and what it had to put aside. From Delta's logs alone,
where not said otherwise; reads Delta without Spark."""

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from lake.anomalies import PAGE_LOAD_ANOMALIES
from lake.audit import opened
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, clicks_table
from lake.tables import Table, bronze_table

CLICKS = clicks_table({})
BRONZE = bronze_table("clicks")
EXAMPLES = 3
Day = date | None
MOST_FIELDS = 100


@dataclass(frozen=True)
class Books:
    """Records by day; those of a spoiled time have none. `read` is what silver has surely read of bronze, `bronze` all
    that is there."""

    bronze: dict[Day, int]
    read: dict[Day, int]
    clicks: dict[Day, int]
    duplicates: dict[Day, int]
    quarantine: dict[Day, int]

    def entered(self, day: Day) -> int:
        return sum(table.get(day, 0) for table in (self.clicks, self.duplicates, self.quarantine))

    @property
    def missing(self) -> dict[Day, int]:
        """Read, but in none of the three."""
        short = {day: count - self.entered(day) for day, count in self.read.items()}
        return {day: count for day, count in short.items() if count > 0}

    @property
    def surplus(self) -> dict[Day, int]:
        """In more than one of the three, or from nowhere."""
        days = self.clicks.keys() | self.duplicates.keys() | self.quarantine.keys()
        over = {day: self.entered(day) - self.bronze.get(day, 0) for day in days}
        return {day: count for day, count in over.items() if count > 0}

    def share(self, table: dict[Day, int], since: date) -> float:
        """Of all that was entered from that day on."""
        entered = sum(self.entered(day) for day in self.bronze if day and day >= since)
        return sum(count for day, count in table.items() if day and day >= since) / entered if entered else 0.0


def click_books(lake_root: str, next_version: int | None) -> Books:
    """`next_version` is the version of bronze that silver reads next, None where nobody knows."""
    # Silver is looked at before all of bronze and after what it has read: so neither difference can come from a batch
    # that ends in between.
    read = _by_day(BRONZE, lake_root, next_version - 1) if next_version else {}
    silver = [_by_day(table, lake_root) for table in (CLICKS, CLICK_DUPLICATES, CLICK_QUARANTINE)]
    return Books(_by_day(BRONZE, lake_root), read, *silver)


def newest_click(lake_root: str) -> datetime | None:
    """The time of the newest click in silver."""
    return _newest(CLICKS, lake_root)


def clicks_since(lake_root: str, day: date) -> int:
    """How many clicks silver has from that day on."""
    return sum(count for each, count in _by_day(CLICKS, lake_root).items() if each and each >= day)


def page_load_times(lake_root: str, since: datetime, about: int) -> "np.ndarray[Any, np.dtype[np.float64]]":
    """Of clicks from then on: all, or evenly spread over them about so many; reads the clicks."""
    table = opened(CLICKS, lake_root)
    if table is None:
        return np.empty(0)
    wanted = (ds.field("date") >= since.date()) & (ds.field("processing_time") >= since)
    wanted &= ds.field("page_loading_seconds").is_valid()
    dataset = table.to_pyarrow_dataset()
    every = max(1, dataset.count_rows(filter=wanted) // about)
    batches = dataset.scanner(columns=["page_loading_seconds"], filter=wanted).to_batches()
    return np.concatenate([np.empty(0), *(batch.column(0).to_numpy()[::every] for batch in batches)])


@dataclass(frozen=True)
class Unjudged:
    """Clicks by day that the model has not judged though the stream has read them, and scores that no click has."""

    missing: dict[Day, int]
    surplus: dict[Day, int]


def unjudged_clicks(lake_root: str, next_version: int) -> Unjudged:
    """`next_version` is the version of clicks that the query which judges them reads next."""
    # Scores are looked at after what was read and before all clicks, as in `click_books`.
    read = _by_day(CLICKS, lake_root, next_version - 1) if next_version else {}
    scores = _by_day(PAGE_LOAD_ANOMALIES, lake_root)
    there = _by_day(CLICKS, lake_root)
    missing = {day: count - scores.get(day, 0) for day, count in read.items()}
    surplus = {day: count - there.get(day, 0) for day, count in scores.items()}
    return Unjudged(*({day: count for day, count in each.items() if count > 0} for each in (missing, surplus)))


def newest_window(lake_root: str) -> datetime | None:
    """The end of the newest window in click_activity."""
    table = opened(CLICK_ACTIVITY, lake_root)
    ends = table.to_pyarrow_dataset().to_table(columns=["window_end"])["window_end"] if table else None
    found: datetime | None = pc.max(ends).as_py() if ends is not None else None
    return found


@dataclass
class UnknownFields:
    """Fields that the schema does not have: how many clicks have each, and some of their values."""

    clicks: int = 0
    counts: "Counter[str]" = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)


def unknown_fields(lake_root: str, since: datetime, most_clicks: int) -> UnknownFields:
    """Reads clicks from then on that have unknown fields, so many at most."""
    found = UnknownFields()
    table = opened(CLICKS, lake_root)
    if table is None:
        return found
    wanted = (ds.field("date") >= since.date()) & (ds.field("processing_time") >= since)
    wanted &= ds.field("unknown_fields").is_valid()
    scanner = table.to_pyarrow_dataset().scanner(columns=["unknown_fields"], filter=wanted)
    for text in scanner.head(most_clicks).column("unknown_fields").to_pylist():
        found.clicks += 1
        for name, value in _leaves(json.loads(text)):
            if name in found.counts or len(found.counts) < MOST_FIELDS:
                found.counts[name] += 1
                examples = found.examples.setdefault(name, [])
                if len(examples) < EXAMPLES:
                    examples.append(json.dumps(value)[:80])
    return found


def _leaves(unknown: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Fields of the user agent and of elements by their paths, the same for all elements."""
    for name, value in unknown.items():
        if name == "userAgent":
            yield from ((f"userAgent.{inner}", each) for inner, each in value.items())
        elif name == "extraPayload":
            yield from {f"extraPayload[].{inner}": each for one in value for inner, each in one.items()}.items()
        else:
            yield name, value


def _by_day(table: Table, lake_root: str, version: int | None = None) -> dict[Day, int]:
    files = _files(table, lake_root, version)
    if files is None:
        return {}
    counts: Counter[Day] = Counter()
    for day, records in zip(
        files.column("partition.date").to_pylist(), files.column("num_records").to_pylist(), strict=True
    ):
        counts[day] += records
    return dict(counts)


def _newest(table: Table, lake_root: str) -> datetime | None:
    files = _files(table, lake_root)
    if files is None or "max.processing_time" not in files.column_names:
        return None
    return max((at for at in files.column("max.processing_time").to_pylist() if at), default=None)


def _files(table: Table, lake_root: str, version: int | None = None) -> pa.Table | None:
    there = opened(table, lake_root, version)
    found = pa.table(there.get_add_actions(flatten=True)) if there else None
    return found if found is not None and found.num_rows else None

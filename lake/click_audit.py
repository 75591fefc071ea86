"""Holds what a ledger says was acknowledged of clicks against silver and quarantine. Reads Delta without Spark."""

import itertools
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from lake.audit import PLACE, AtOnce, Place, TableAudit, add_example, place_of, rows_of, told_place
from lake.silver import CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table

CLICKS = clicks_table({})


@dataclass(frozen=True, slots=True)
class SentClick:
    """A record that the hub acknowledged, and what it was meant to be: `event_id` is None where it was spoiled."""

    number: int
    place: Place
    event_id: str | None
    enqueued: datetime


def click_places(lake_root: str) -> set[Place]:
    """Every record that silver has taken up, whatever became of it."""
    tables = (CLICKS, CLICK_DUPLICATES, CLICK_QUARANTINE)
    return {place_of(row) for table in tables for row in rows_of(table, lake_root, PLACE)}


def audit_clicks(
    lake_root: str, sent: Iterable[SentClick], in_bronze: Callable[[], set[Place]], horizon: timedelta
) -> TableAudit:
    """Every record is in exactly one of the three tables, spoiled ones in quarantine and others not; of the records of
    an event that came within the horizon exactly one is a click, under its own id, and each of the others names one;
    nothing is there that bronze does not have.

    While silver runs, a batch that is in some of its tables only may look like damage: look again before believing it.
    """
    known = {one.place: one for one in sent}
    audit = TableAudit("silver and quarantine", len(known))
    found: dict[Place, Counter[str]] = defaultdict(Counter)
    clicks: dict[Place, dict[str, Any]] = {}
    silver = AtOnce(lake_root, CLICKPATH, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKS)
    for row in silver.rows_of(CLICKS, ("eventID", "related_products", "processing_time", *PLACE)):
        found[place_of(row)][CLICKS.name] += 1
        clicks[place_of(row)] = row
    for table in (CLICK_DUPLICATES, CLICK_QUARANTINE):
        for place in _places(table, silver):
            found[place][table.name] += 1
    bronze = in_bronze()
    for place, tables in found.items():
        if (times := tables.total()) > 1:
            audit.duplicated += times - 1
            add_example(audit, f"duplicated: {told_place(place)} is in {_listed(tables)}")
        if place not in bronze:
            audit.unexplained += 1
            add_example(audit, f"unexplained: {told_place(place)} is in {_listed(tables)}, but not in bronze")
    for place, one in known.items():
        tables = found.get(place, Counter())
        if not tables:
            audit.lost += 1
            add_example(audit, f"lost: record {one.number}, {told_place(place)}")
        elif (one.event_id is None) != (CLICK_QUARANTINE.name in tables):
            audit.unexplained += 1
            add_example(audit, f"unexplained: record {one.number}, {told_place(place)}, is in {_listed(tables)}")
    events = {place: row["eventID"] for place, row in clicks.items()}
    _audit_ids(audit, known, events)
    kept_at = {place: row["processing_time"] for place, row in clicks.items()}
    _audit_duplicates(audit, kept_at, events, silver, horizon)
    _audit_events(audit, known.values(), events, horizon)
    _audit_clickpath(audit, {place: row["related_products"] for place, row in clicks.items()}, silver)
    return audit


def _audit_ids(audit: TableAudit, known: Mapping[Place, SentClick], events: Mapping[Place, str]) -> None:
    for place, event in events.items():
        if place in known and known[place].event_id not in (None, event):
            audit.changed += 1
            add_example(audit, f"changed: {told_place(place)} is event {event}, not {known[place].event_id}")


def _audit_duplicates(
    audit: TableAudit,
    kept_at: Mapping[Place, datetime],
    events: Mapping[Place, str],
    silver: AtOnce,
    horizon: timedelta,
) -> None:
    """Each names a click of its event, and is no further from it than a repeat may be."""
    columns = ("eventID", "kept_partition", "kept_sequence_number", "processing_time", *PLACE)
    for row in silver.rows_of(CLICK_DUPLICATES, columns):
        kept, told = (row["kept_partition"], row["kept_sequence_number"]), f"{told_place(place_of(row))} repeats event"
        if events.get(kept) != row["eventID"]:
            audit.lost += 1
            add_example(audit, f"lost: {told} {row['eventID']}, but no click of it is at {told_place(kept)}")
        elif abs(row["processing_time"] - kept_at[kept]) > horizon:
            audit.lost += 1
            add_example(audit, f"lost: {told} {row['eventID']}, but the click at {told_place(kept)} is too far away")


def _audit_events(
    audit: TableAudit, sent: Iterable[SentClick], events: Mapping[Place, str], horizon: timedelta
) -> None:
    by_event: dict[str, list[SentClick]] = defaultdict(list)
    for one in sent:
        if one.event_id is not None and one.place in events:
            by_event[one.event_id].append(one)
    for event, kept in by_event.items():
        for before, after in itertools.pairwise(sorted(kept, key=lambda one: one.enqueued)):
            if after.enqueued - before.enqueued <= horizon:
                audit.duplicated += 1
                add_example(audit, f"duplicated: event {event}, records {before.number} and {after.number} are clicks")


def _audit_clickpath(audit: TableAudit, related: dict[Place, int], silver: AtOnce) -> None:
    found = Counter(_places(CLICKPATH, silver))
    for place in found.keys() | related.keys():
        if found[place] != related.get(place, 0):
            audit.changed += 1
            add_example(
                audit, f"changed: {told_place(place)} has {found[place]} rows of clickpath, not {related.get(place, 0)}"
            )


def _places(table: Table, silver: AtOnce) -> list[Place]:
    return [place_of(row) for row in silver.rows_of(table, PLACE)]


def _listed(tables: "Counter[str]") -> str:
    return " and ".join(tables.elements())

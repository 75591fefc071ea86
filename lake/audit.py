"""Holds what a ledger says was acknowledged against what the tables have. Reads Delta without Spark."""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.dataset as ds
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from lake.tables import Table

EXAMPLES = 5
PLACE = ("partition", "sequence_number")
Place = tuple[int, int]
"""Of a record on its hub: partition and sequence number."""
Outcome = TypeVar("Outcome", bound=Hashable)
NEEDED = ("body", "headers", "partition", "sequence_number")


@dataclass(frozen=True, slots=True)
class Acknowledged:
    """A record that the hub acknowledged: its number in the ledger, its place, and the digest of its bytes."""

    number: int
    partition: int
    sequence_number: int
    digest: str


@dataclass
class TableAudit:
    """The verdict on one table. It is clean when the first four are 0."""

    table: str
    acknowledged: int
    lost: int = 0
    duplicated: int = 0
    changed: int = 0
    unexplained: int = 0
    unconfirmed: int = 0
    """Rows of records that were sent but never acknowledged, as happens when the hub or the sender is killed."""
    examples: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicated or self.changed or self.unexplained)


def audit_bronze(
    table: Table,
    lake_root: str,
    acknowledged: Iterable[Acknowledged],
    digest: Callable[[bytes | None], str],
    number_of: Callable[[list[tuple[str, bytes | None]]], int | None],
    may_be_unconfirmed: Callable[[int], bool],
) -> TableAudit:
    """Compares one bronze table with the acknowledged records of its hub.

    `number_of` reads a row's number in the ledger from its headers, None for a record of somebody else.
    """
    expected = {(one.partition, one.sequence_number): one for one in acknowledged}
    audit = TableAudit(table.name, len(expected))
    seen: Counter[tuple[int, int]] = Counter()
    for row in rows_of(table, lake_root, NEEDED):
        place = (row["partition"], row["sequence_number"])
        entry = expected.get(place)
        if entry is None:
            number = number_of([(header["key"], header["value"]) for header in row["headers"] or ()])
            if number is None:
                continue
            if may_be_unconfirmed(number):
                audit.unconfirmed += 1
            else:
                audit.unexplained += 1
                add_example(audit, f"unexplained: record {number} at partition {place[0]}, number {place[1]}")
        elif digest(row["body"]) != entry.digest:
            audit.changed += 1
            add_example(audit, f"changed: record {entry.number} at partition {place[0]}, number {place[1]}")
        seen[place] += 1
    for place, times in seen.items():
        if times > 1:
            audit.duplicated += times - 1
            add_example(audit, f"duplicated: partition {place[0]}, number {place[1]}, {times} times")
    for place, entry in expected.items():
        if place not in seen:
            audit.lost += 1
            add_example(audit, f"lost: record {entry.number} at partition {place[0]}, number {place[1]}")
    return audit


def places_in_bronze(table: Table, lake_root: str) -> set[tuple[int, int]]:
    """Partition and sequence number of every row."""
    found: set[tuple[int, int]] = set()
    for batch in batches_of(table, lake_root, ("partition", "sequence_number")):
        columns = (batch.column(name).to_pylist() for name in ("partition", "sequence_number"))
        found.update(zip(*columns, strict=True))
    return found


def rows_of(
    table: Table, lake_root: str, columns: tuple[str, ...], where: ds.Expression | None = None
) -> Iterator[dict[str, Any]]:
    for batch in batches_of(table, lake_root, columns, where):
        yield from batch.to_pylist()


def batches_of(
    table: Table, lake_root: str, columns: tuple[str, ...], where: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    return _batches(opened(table, lake_root), columns, where)


class AtOnce:
    """Tables as they are at nearly one moment, at which all are opened: reading one after the other takes so long on
    large tables that a stream always writes in between."""

    def __init__(self, lake_root: str, *tables: Table) -> None:
        self._opened = {table.name: opened(table, lake_root) for table in tables}

    def rows_of(self, table: Table, columns: tuple[str, ...]) -> Iterator[dict[str, Any]]:
        for batch in _batches(self._opened[table.name], columns):
            yield from batch.to_pylist()


def opened(table: Table, lake_root: str, version: int | None = None) -> DeltaTable | None:
    """At its newest version or the one given; what is written later is not seen through it. None where there is no
    table."""
    try:
        return DeltaTable(table.path(lake_root), version=version)
    except TableNotFoundError:
        return None


def _batches(
    delta: DeltaTable | None, columns: tuple[str, ...], where: ds.Expression | None = None
) -> Iterator[pa.RecordBatch]:
    if delta is not None:
        yield from delta.to_pyarrow_dataset().to_batches(columns=list(columns), filter=where)


def compare(
    audit: TableAudit,
    found: Counter[Outcome],
    right: Collection[Outcome],
    due: Collection[Outcome],
    told: Callable[[Outcome], str],
) -> None:
    """Each that is due is there, and nothing but what is right, once. `told` names one for people."""
    for outcome in due:
        if outcome not in found:
            audit.lost += 1
            add_example(audit, f"lost: {told(outcome)}")
    for outcome, times in found.items():
        if outcome not in right:
            audit.unexplained += 1
            add_example(audit, f"unexplained: {told(outcome)}")
        elif times > 1:
            audit.duplicated += times - 1
            add_example(audit, f"duplicated: {told(outcome)}, {times} times")


def place_of(row: Mapping[str, Any]) -> Place:
    return row["partition"], row["sequence_number"]


def told_place(place: Place) -> str:
    return f"partition {place[0]}, number {place[1]}"


def add_example(audit: TableAudit, text: str) -> None:
    if len(audit.examples) < EXAMPLES:
        audit.examples.append(text)

"""Holds what a ledger says of machines' heartbeats against the changes of their health, and spoiled ones against
quarantine. Reads Delta without Spark."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from lake.audit import PLACE, Place, TableAudit, add_example, compare, place_of, rows_of, told_place
from lake.machines import MACHINE_STATUS
from lake.silver import quarantine_table

INITIALIZING, HEALTHY, UNHEALTHY, RETIRED = "Initializing", "Healthy", "Unhealthy", "Retired"
FIELDS = ("machine_name", "previous", "status", "since", "last_heartbeat")


@dataclass(frozen=True)
class Change:
    """Times in milliseconds."""

    previous: str | None
    status: str
    since: int
    last_heartbeat: int

    def __str__(self) -> str:
        return f"{self.previous or 'new'} to {self.status} at {self.since}"


@dataclass(frozen=True)
class Patience:
    """In milliseconds; see the settings of the same names."""

    silence: int
    retirement: int


def story(beats: Sequence[int], patience: Patience, up_to: float) -> list[Change]:
    """What becomes of a machine by its heartbeats, told one by one, as far as it is known at `up_to`."""
    told: list[Change] = []
    status, last = None, 0

    def silence(now: float) -> str | None:
        after = status
        if after in (INITIALIZING, HEALTHY) and now - last >= patience.silence:
            told.append(Change(after, UNHEALTHY, last + patience.silence, last))
            after = UNHEALTHY
        if after is not None and now - last >= patience.retirement:
            told.append(Change(after, RETIRED, last + patience.retirement, last))
            after = None
        return after

    for at in sorted(beats):
        if at > up_to:
            break
        status = silence(at)
        if status != HEALTHY:
            after = INITIALIZING if status is None else HEALTHY
            told.append(Change(status, after, at, at))
            status = after
        last = at
    silence(up_to)
    return told


def audit_machines(
    lake_root: str, beats: Mapping[str, Sequence[int]], patience: Patience, *, told_up_to: int, sure_up_to: float
) -> TableAudit:
    """`beats` has all heartbeats of machines that send nowhere else. Changes up to `told_up_to` have to be there; those
    after `sure_up_to` nobody can judge, because heartbeats are missing in the ledger."""
    audit = TableAudit(MACHINE_STATUS.name, sum(map(len, beats.values())))
    found: dict[str, Counter[Change]] = {machine: Counter() for machine in beats}
    for machine, change in _changes(lake_root):
        if machine in found and change.since <= sure_up_to:
            found[machine][change] += 1
    for machine, times in beats.items():
        right = story(times, patience, float("inf"))
        due = [change for change in right if change.since <= min(told_up_to, sure_up_to)]
        compare(audit, found[machine], right, due, partial("{}, {}".format, machine))
    return audit


def _changes(lake_root: str) -> Iterator[tuple[str, Change]]:
    for row in rows_of(MACHINE_STATUS, lake_root, FIELDS):
        since, last = (_millis(row[name]) for name in ("since", "last_heartbeat"))
        yield row["machine_name"], Change(row["previous"], row["status"], since, last)


def _millis(at: datetime) -> int:
    return round(at.timestamp() * 1000)


def audit_quarantine(hub: str, lake_root: str, good: Collection[Place], spoiled: Collection[Place]) -> TableAudit:
    """Every spoiled record is there once, and no good one."""
    table = quarantine_table(hub)
    audit = TableAudit(table.name, len(spoiled))
    places = Counter(place_of(row) for row in rows_of(table, lake_root, PLACE))
    for place in spoiled:
        if places[place] != 1:
            audit.lost += not places[place]
            audit.duplicated += max(0, places[place] - 1)
            add_example(audit, f"{places[place]} times: the record at {told_place(place)}")
    for place in places.keys() & set(good):
        audit.unexplained += 1
        add_example(audit, f"unexplained: the good record at {told_place(place)}")
    return audit

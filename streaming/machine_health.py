"""What heartbeats say about machines: a state machine over whole columns of machines, without Spark or a clock.

A machine's story follows from the times of its heartbeats alone: Initializing with the first, Healthy with the second,
Unhealthy once the silence after one has lasted, Healthy again with the next, and Retired, as if it had never been, when
it stays away. How the records are cut into batches changes nothing, and neither does when they are read.

Time is the hub's. A partition is read in its order, so that its newest record tells up to when all of it is known.
Silence is judged at the time up to which all partitions are known, and heartbeats beyond it wait: another partition
may still have earlier ones of a machine that moved. Of a run of them without a silence only the first two and the last
can change a story, so that only those are kept, however long they wait.

Where records of a partition were lost, nobody knows whether its machines were silent meanwhile: a silence that was not
over by then counts from the end of the loss.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

Micros = npt.NDArray[np.int64]
Losses = Mapping[int, tuple[int, int]]
"""Of partitions that lost records unread: the time up to which they were known, and from which on they are again."""


class Status(enum.IntEnum):
    UNKNOWN = -1
    """Before the first heartbeat, and again after retirement."""
    INITIALIZING = 0
    HEALTHY = 1
    UNHEALTHY = 2
    RETIRED = 3


@dataclass(frozen=True)
class Patience:
    """In microseconds."""

    silence: int
    """After so much of it a machine is unhealthy."""
    retirement: int
    """After so much of it a machine is forgotten: more than `silence`."""


BEAT = {"machine": object, "partition": np.int32, "at": np.int64}
KNOWN = {"machine": object, "partition": np.int32, "last": np.int64, "status": np.int8, "since": np.int64}
WAITING = {**BEAT, "unbroken_since": np.int64}
"""At `at` is a heartbeat, and from `unbroken_since` until then are others of this partition without a silence."""
CHANGE = {"machine": object, "previous": np.int8, "status": np.int8, "since": np.int64, "last_heartbeat": np.int64}


def frame(columns: Mapping[str, type], **values: object) -> pd.DataFrame:
    """With these columns and types; empty without values."""
    return pd.DataFrame({name: np.asarray(values.get(name, []), kind) for name, kind in columns.items()})


@dataclass(frozen=True)
class Machines:
    """What is known of some machines."""

    known: pd.DataFrame
    """The columns of `KNOWN`, each machine once: its last heartbeat, its status, and since when it has it."""
    waiting: pd.DataFrame
    """What of heartbeats can't be judged yet, with the columns of `WAITING`."""
    clocks: Mapping[int, int]
    """The time of the newest record that was read of each partition."""
    lost: Losses = field(default_factory=dict)

    @classmethod
    def none(cls) -> Self:
        return cls(frame(KNOWN), frame(WAITING), {})


@dataclass(frozen=True)
class Told:
    machines: Machines
    changes: pd.DataFrame
    """The columns of `CHANGE`; those of a machine in their order."""


def judge(before: Machines, records: pd.DataFrame, patience: Patience, *, one_clock: bool) -> Told:
    """`records` have the columns of `BEAT`, in any order; those of pulses have no machine.

    Without `one_clock` a machine's silence is judged by its own partition alone: one without records then holds up no
    other, but a machine that moves to another looks silent.
    """
    judged = dict.fromkeys(before.clocks, min(before.clocks.values(), default=0)) if one_clock else before.clocks
    clocks = _advanced(before.clocks, judged, records)
    beats = records.loc[records["machine"].notna().to_numpy(), list(BEAT)]
    at = _not_before(judged, beats)
    beats = beats.assign(at=at, unbroken_since=at)
    if len(before.waiting):
        beats = pd.concat([_not_after(clocks, before.waiting), beats], ignore_index=True)
    ready, waiting = _divided(beats, _judged_up_to(clocks, beats, one_clock=one_clock))
    known, changes = _after_beats(before.known, ready, before.lost, patience)
    known, silences = _after_silence(known, _judged_up_to(clocks, known, one_clock=one_clock), before.lost, patience)
    changes = pd.concat([changes, silences], ignore_index=True) if len(silences) else changes
    return Told(Machines(known, _ends_of_runs(waiting, patience), clocks, before.lost), changes)


def _advanced(clocks: Mapping[int, int], judged: Mapping[int, int], records: pd.DataFrame) -> dict[int, int]:
    """A clock that was ahead of the time and was set right goes back, as far as nothing was judged by it."""
    newest = records.groupby("partition", sort=False)["at"].max()
    advanced = dict(clocks)
    for partition, at in zip(newest.index.tolist(), newest.tolist(), strict=True):
        advanced[partition] = max(at, judged.get(partition, at))
    return advanced


def _not_before(judged: Mapping[int, int], beats: pd.DataFrame) -> Micros:
    """A hub whose clock was set back tells no times before those that were judged."""
    read = beats["partition"].map(judged).fillna(0).to_numpy(np.int64)
    later: Micros = np.maximum(beats["at"].to_numpy(np.int64), read)
    return later


def _not_after(clocks: Mapping[int, int], waiting: pd.DataFrame) -> pd.DataFrame:
    """A clock that was ahead was so for its heartbeats too: they came before the record that set it right."""
    latest = waiting["partition"].map(clocks).fillna(waiting["at"]).to_numpy(np.int64)
    return waiting.assign(
        at=np.minimum(waiting["at"], latest), unbroken_since=np.minimum(waiting["unbroken_since"], latest)
    )


def _divided(beats: pd.DataFrame, up_to: Micros) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Those up to then, and those after. Of a run over that time, the machine is known to have beaten until then."""
    at, unbroken_since = beats["at"].to_numpy(), beats["unbroken_since"].to_numpy()
    ready, waiting = unbroken_since <= up_to, at > up_to
    return (
        beats.assign(at=np.minimum(at, up_to))[ready],
        beats.assign(unbroken_since=np.maximum(unbroken_since, up_to))[waiting],
    )


def _ends_of_runs(waiting: pd.DataFrame, patience: Patience) -> pd.DataFrame:
    """The first two and the last of each run of a machine's heartbeats in a partition.

    A machine falls silent only after the last of a run, comes back only with the first, and is healthy with the second.
    What other partitions have of it in between changes none of that.
    """
    if not len(waiting):
        return frame(WAITING)
    machine = pd.factorize(waiting["machine"])[0]
    order = np.lexsort((waiting["at"], waiting["partition"], machine))
    waiting, machine = waiting.iloc[order], machine[order]
    at, partition = waiting["at"].to_numpy(np.int64), waiting["partition"].to_numpy()
    unbroken_since = waiting["unbroken_since"].to_numpy(np.int64, copy=True)
    other = np.r_[True, (machine[1:] != machine[:-1]) | (partition[1:] != partition[:-1])]
    begins = other | (_heard_again(unbroken_since, other) - np.r_[0, at[:-1]] >= patience.silence)
    beginning = np.flatnonzero(begins)[np.cumsum(begins) - 1]
    place = np.arange(len(at)) - beginning
    last = np.r_[begins[1:], True]
    far = last & (place > 1)
    unbroken_since[far] = at[beginning[far] + 1]
    kept: pd.DataFrame = waiting.assign(unbroken_since=unbroken_since)[(place < 2) | last]
    return kept.reset_index(drop=True)


def _heard_again(unbroken_since: Micros, first: npt.NDArray[np.bool_]) -> Micros:
    """When a machine is first known to beat after the heartbeat before each, in the order of time; `first` are those of
    another machine. A run that ends later may reach back over several."""
    backwards = pd.Series(unbroken_since[::-1]).groupby(np.cumsum(first)[::-1], sort=False)
    earliest: Micros = backwards.cummin().to_numpy()[::-1]
    return earliest


def _judged_up_to(clocks: Mapping[int, int], rows: pd.DataFrame, *, one_clock: bool) -> Micros:
    """For each row, by its partition; where that is no more, by all."""
    earliest = min(clocks.values(), default=0)
    if one_clock or not len(rows):
        return np.full(len(rows), earliest, np.int64)
    own: Micros = rows["partition"].map(clocks).fillna(earliest).to_numpy().astype(np.int64)
    return own


def _counted_from(last: Micros, partition: npt.NDArray[np.int32], lost: Losses, time: int) -> Micros:
    """From when on a silence of this time counts that begins with these heartbeats."""
    counted = last
    for lossy, (known_up_to, known_again) in lost.items():
        unsure = (partition == lossy) & (last + time > known_up_to)
        counted = np.where(unsure, np.maximum(last, known_again), counted)
    return counted


def _after_beats(
    known: pd.DataFrame, beats: pd.DataFrame, lost: Losses, patience: Patience
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """All heartbeats of a machine, one after the other: what each gap and each heartbeat changes."""
    if not len(beats):
        return known, frame(CHANGE)
    names = pd.Index(known["machine"]).append(pd.Index(beats["machine"].unique())).unique()
    machine = names.get_indexer(pd.Index(beats["machine"]))
    order = np.lexsort((beats["at"].to_numpy(), machine))
    machine, at = machine[order], beats["at"].to_numpy()[order]
    partition, unbroken_since = beats["partition"].to_numpy()[order], beats["unbroken_since"].to_numpy(np.int64)[order]
    columns = {name: _grown(known[name].to_numpy(), len(names)) for name in ("partition", "last", "status", "since")}
    columns["status"][len(known) :] = Status.UNKNOWN
    # What was told of a machine stands: a partition that is seen for the first time may tell of times before.
    told = np.maximum(columns["last"], columns["since"])[machine]
    at, unbroken_since = np.maximum(at, told), np.maximum(unbroken_since, told)
    first = np.r_[True, machine[1:] != machine[:-1]]
    before, partition_before = np.r_[0, at[:-1]], np.r_[partition[:1], partition[:-1]]
    before[first], partition_before[first] = columns["last"][machine[first]], columns["partition"][machine[first]]
    silent_from, gone_from = (
        _counted_from(before, partition_before, lost, time) for time in (patience.silence, patience.retirement)
    )
    new = first & (columns["status"][machine] == Status.UNKNOWN)
    heard_again = _heard_again(unbroken_since, first)
    retired = ~new & (heard_again - gone_from >= patience.retirement)
    begins = new | retired
    status_before = np.where(np.r_[False, begins[:-1]], Status.INITIALIZING, Status.HEALTHY).astype(np.int8)
    status_before[first] = columns["status"][machine[first]]
    silent = ~new & (heard_again - silent_from >= patience.silence)
    told_silent = silent & (status_before != Status.UNHEALTHY)
    healed = ~begins & (silent | (status_before != Status.HEALTHY))
    changed = begins | healed  # as whatever was silent is
    columns["since"][machine[changed]] = at[changed]
    last = np.r_[first[1:], True]
    columns["last"][machine[last]] = at[last]
    columns["partition"][machine[last]] = partition[last]
    columns["status"][machine[last]] = np.where(begins[last], Status.INITIALIZING, Status.HEALTHY)
    known = pd.DataFrame({"machine": np.asarray(names, object), **columns})
    if not changed.any():
        return known, frame(CHANGE)
    changes = [
        _changes(names, machine, told_silent, status_before, Status.UNHEALTHY, silent_from + patience.silence, before),
        _changes(names, machine, retired, Status.UNHEALTHY, Status.RETIRED, gone_from + patience.retirement, before),
        _changes(names, machine, begins, Status.UNKNOWN, Status.INITIALIZING, at, at),
        _changes(names, machine, healed, np.where(silent, Status.UNHEALTHY, status_before), Status.HEALTHY, at, at),
    ]
    return known, _in_order(changes)


def _after_silence(
    known: pd.DataFrame, up_to: Micros, lost: Losses, patience: Patience
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """What becomes of machines by the silence after their last heartbeat."""
    last, status = known["last"].to_numpy(), known["status"].to_numpy()
    unhealthy_at, gone_at = (
        _counted_from(last, known["partition"].to_numpy(), lost, time) + time
        for time in (patience.silence, patience.retirement)
    )
    silent = (unhealthy_at <= up_to) & (status != Status.UNHEALTHY)
    gone = gone_at <= up_to
    if not silent.any() and not gone.any():
        return known, frame(CHANGE)
    names, all_of_them = pd.Index(known["machine"]), np.arange(len(known))
    changes = [
        _changes(names, all_of_them, silent, status, Status.UNHEALTHY, unhealthy_at, last),
        _changes(names, all_of_them, gone, Status.UNHEALTHY, Status.RETIRED, gone_at, last),
    ]
    since = np.where(silent, unhealthy_at, known["since"].to_numpy())
    known = known.assign(status=np.where(silent, np.int8(Status.UNHEALTHY), status), since=since)
    return known[~gone].reset_index(drop=True), _in_order(changes)


def _changes(
    names: "pd.Index[str]",
    machine: npt.NDArray[np.intp],
    which: npt.NDArray[np.bool_],
    previous: npt.NDArray[np.int8] | Status,
    status: Status,
    since: Micros,
    last: Micros,
) -> pd.DataFrame:
    previous = np.broadcast_to(np.asarray(previous, np.int8), which.shape)
    return frame(
        CHANGE,
        machine=names[machine[which]],
        previous=previous[which],
        status=np.full(which.sum(), status),
        since=since[which],
        last_heartbeat=last[which],
    )


def _in_order(changes: list[pd.DataFrame]) -> pd.DataFrame:
    """By time; of one moment in the order in which they are given."""
    return pd.concat(changes, ignore_index=True).sort_values("since", kind="stable", ignore_index=True)


def _grown(values: npt.NDArray[np.generic], length: int) -> npt.NDArray[np.generic]:
    grown = np.zeros(length, values.dtype)
    grown[: len(values)] = values
    return grown

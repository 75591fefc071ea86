"""The state machine of machines against a plain reference, on every short history and on random long ones."""

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from lake import machine_audit
from streaming.machine_health import BEAT, KNOWN, WAITING, Machines, Patience, Status, frame, judge
from streaming.machine_processor import from_bytes, to_bytes

SILENCE, RETIREMENT = 5, 20
PATIENCE = Patience(SILENCE, RETIREMENT)
PULSE = None

Record = tuple[str | None, int, int]
"""Machine, partition and time."""
Change = tuple[str, int, int, int, int]
Batches = list[list[Record]]


def reference(records: Sequence[Record], up_to: int) -> list[Change]:
    """The story of each machine, told heartbeat by heartbeat, as the audit tells it."""
    patience = machine_audit.Patience(SILENCE, RETIREMENT)
    return [
        (machine, _status(change.previous), _status(change.status), change.since, change.last_heartbeat)
        for machine in sorted({machine for machine, _, _ in records if machine})
        for change in machine_audit.story([at for name, _, at in records if name == machine], patience, up_to)
    ]


def _status(name: str | None) -> Status:
    return Status[name.upper()] if name else Status.UNKNOWN


def as_frame(records: Iterable[Record]) -> pd.DataFrame:
    rows = list(records)
    return frame(
        BEAT,
        machine=np.array([row[0] for row in rows], object),
        partition=[row[1] for row in rows],
        at=[row[2] for row in rows],
    )


def read(
    batches: Iterable[Sequence[Record]], *, one_clock: bool = True, begin_with: Machines | None = None
) -> tuple[Machines, list[Change]]:
    """The stream starts anew before every batch: what it knows comes from what was stored."""
    machines, told = begin_with or Machines.none(), []
    for batch in batches:
        result = judge(from_bytes(to_bytes(machines)), as_frame(batch), PATIENCE, one_clock=one_clock)
        machines = result.machines
        told += [tuple(row) for row in result.changes.itertuples(index=False, name=None)]
    return machines, sorted(told, key=lambda change: change[0])


def story(batches: Iterable[Sequence[Record]], *, one_clock: bool = True) -> list[Change]:
    return read(batches, one_clock=one_clock)[1]


def test_every_history_of_four_heartbeats_in_every_cut() -> None:
    """All histories at once, each with a machine and a partition of its own."""
    gaps = (1, SILENCE - 1, SILENCE, RETIREMENT - 1, RETIREMENT)
    histories = [list(itertools.accumulate(chosen)) for chosen in itertools.product(gaps, repeat=5)]
    expected = [
        change
        for number, (*times, end) in enumerate(histories)
        for change in reference([(f"m{number:05}", number, at) for at in times], end)
    ]
    for cuts in itertools.product([False, True], repeat=4):
        batches: Batches = [[]]
        for step, cut in enumerate([*cuts, False]):
            machine = [PULSE if step == 4 else f"m{number:05}" for number in range(len(histories))]
            batches[-1] += [(machine[number], number, times[step]) for number, times in enumerate(histories)]
            if cut:
                batches.append([])
        assert story(batches, one_clock=False) == expected, cuts


def test_a_whole_life() -> None:
    records: list[Record] = [("a", 0, at) for at in (0, 1, 2, 10, 11, 50, 51)]
    assert story([records]) == [
        ("a", Status.UNKNOWN, Status.INITIALIZING, 0, 0),
        ("a", Status.INITIALIZING, Status.HEALTHY, 1, 1),
        ("a", Status.HEALTHY, Status.UNHEALTHY, 7, 2),
        ("a", Status.UNHEALTHY, Status.HEALTHY, 10, 10),
        ("a", Status.HEALTHY, Status.UNHEALTHY, 16, 11),
        ("a", Status.UNHEALTHY, Status.RETIRED, 31, 11),
        ("a", Status.UNKNOWN, Status.INITIALIZING, 50, 50),
        ("a", Status.INITIALIZING, Status.HEALTHY, 51, 51),
    ]


@st.composite
def histories(draw: st.DrawFn) -> tuple[Batches, Batches]:
    """What partitions have, each in the order of its times, and how it is read: machines move between them as they
    like, and in each batch each partition gives some of what is left, the first batch from all."""
    machines = st.sampled_from(["a", "b", "c", PULSE])
    gaps = st.sampled_from([0, 1, 1, 2, 4, 5, 6, 19, 20, 30])
    partitions: Batches = []
    for partition in range(draw(st.integers(1, 3))):
        steps = draw(st.lists(st.tuples(machines, gaps), min_size=1, max_size=20))
        times = itertools.accumulate(gap for _, gap in steps)
        partitions.append([(machine, partition, at) for (machine, _), at in zip(steps, times, strict=True)])
    left = [list(each) for each in partitions]
    batches: Batches = []
    while any(left):
        batch: list[Record] = []
        for each in left:
            taken = draw(st.integers(0 if batches else 1, 8))
            batch += each[:taken]
            del each[:taken]
        batches.append(draw(st.permutations(batch)))
    return partitions, [batch for batch in batches if batch]


@given(histories())
def test_any_history_in_any_batches_tells_the_same_story(
    history: tuple[Batches, Batches],
) -> None:
    partitions, batches = history
    known_up_to = min(each[-1][2] for each in partitions)
    machines, told = read(batches)
    assert told == reference([record for each in partitions for record in each], known_up_to)
    last = {machine: (status, since) for machine, _, status, since, _ in told if status != Status.RETIRED}
    retired = {machine for machine, _, _, _, _ in told} - set(machines.known["machine"])
    for machine, status, since in machines.known[["machine", "status", "since"]].itertuples(index=False, name=None):
        assert last[machine] == (status, since)
    assert retired == {machine for machine, *_ in told if _last(told, machine) is Status.RETIRED}


@st.composite
def backlogs(draw: st.DrawFn) -> Batches:
    """One partition is read last: what two others have of machines that are in both waits in runs until then."""
    gaps = st.sampled_from([1, 1, 1, 1, 2, 2, 3, 4, 5, 20])
    batches: Batches = [[(PULSE, partition, 0) for partition in range(3)]]
    for partition in (1, 2):
        machines = draw(st.lists(st.sampled_from(["a", "a", "a", "b", PULSE]), min_size=10, max_size=30))
        times = itertools.accumulate(draw(gaps) for _ in machines)
        records = [(machine, partition, at) for machine, at in zip(machines, times, strict=True)]
        size = draw(st.integers(1, 10))
        batches += [records[first : first + size] for first in range(0, len(records), size)]
    pulses = sorted(draw(st.lists(st.integers(5, 60), min_size=4, max_size=8)))
    batches.append([(PULSE, 1, 1000), (PULSE, 2, 1000)])
    batches += [[(PULSE, 0, at)] for at in [*pulses, 1000]]
    return batches


@given(backlogs())
def test_a_partition_that_is_read_last_changes_no_story(batches: Batches) -> None:
    records = [record for batch in batches for record in batch]
    machines, told = read([])
    for batch in batches:
        machines, more = read([batch], begin_with=machines)
        told = sorted([*told, *more], key=lambda change: change[0])
        assert told == reference(records, min(machines.clocks.values()))
    assert machines.waiting.equals(frame(WAITING))


@given(histories(), st.booleans())
def test_no_story_goes_back_in_time_even_where_a_partition_is_seen_late(
    history: tuple[Batches, Batches], one_clock: bool
) -> None:
    partitions, _ = history
    told = story([each for each in partitions if each], one_clock=one_clock)
    for _, changes in itertools.groupby(told, key=lambda change: change[0]):
        of_machine = list(changes)
        for before, after in itertools.pairwise(of_machine):
            # A machine that was retired is forgotten, and so is when.
            assert before[3] <= after[3] or before[2] == Status.RETIRED, of_machine
            assert after[1] == (Status.UNKNOWN if before[2] == Status.RETIRED else before[2]), of_machine


def _last(told: list[Change], machine: str) -> Status:
    return Status([status for name, _, status, _, _ in told if name == machine][-1])


def test_a_machine_that_moves_to_a_new_partition_is_not_missed() -> None:
    moved: list[Record] = [("a", 1, at) for at in range(3, 12)]
    batches: Batches = [[("a", 0, 0), ("a", 0, 1), ("a", 0, 2)], [*moved, *((PULSE, 0, at) for at in range(3, 12))]]
    assert [change[2] for change in story(batches)] == [Status.INITIALIZING, Status.HEALTHY]
    told = [change[2] for change in story(batches, one_clock=False)]
    assert told == [Status.INITIALIZING, Status.HEALTHY], "read in one batch it is not missed either way"


def test_by_its_own_clock_a_partition_waits_for_no_other() -> None:
    batches: Batches = [[("a", 0, 0), ("b", 1, 0)], [(PULSE, 0, 9)]]
    assert [change[0] for change in story(batches)] == ["a", "b"]
    told = story(batches, one_clock=False)
    assert told[1] == ("a", Status.INITIALIZING, Status.UNHEALTHY, SILENCE, 0)
    assert [change[2] for change in told if change[0] == "b"] == [Status.INITIALIZING]


def test_a_hub_whose_clock_was_set_back_tells_nothing_before_what_was_judged() -> None:
    batches: Batches = [[("a", 0, 0), (PULSE, 0, 9)], [("a", 0, 3)], [("a", 0, 10)]]
    assert story(batches)[-2:] == [
        ("a", Status.INITIALIZING, Status.UNHEALTHY, 5, 0),
        ("a", Status.UNHEALTHY, Status.HEALTHY, 9, 9),
    ]
    assert read([[(PULSE, 0, 9)], [(PULSE, 0, 3)]])[0].clocks == {0: 9}


def test_a_partition_whose_clock_was_ahead_for_a_while_makes_no_machine_silent() -> None:
    """Its machine beats on, and the other partition has the right time all along."""
    batches: Batches = [[("a", 0, 0), ("a", 0, 1), (PULSE, 1, 1)], [("a", 0, 3600), (PULSE, 1, 2)]]
    batches += [[("a", 0, at), (PULSE, 1, at)] for at in range(3, 30)]
    machines, told = read(batches)
    assert [change[2] for change in told] == [Status.INITIALIZING, Status.HEALTHY]
    assert machines.clocks == {0: 29, 1: 29}
    assert machines.known["last"].tolist() == [29]


def test_what_a_clock_that_was_ahead_told_of_a_machine_does_not_revive_it_later() -> None:
    """It beat once while the clock of its partition was ahead, and never again after that was set right."""
    batches: Batches = [[("a", 0, 0), ("a", 0, 1), (PULSE, 1, 1)], [("a", 0, 3600), (PULSE, 1, 2)]]
    batches += [[(PULSE, 0, at), (PULSE, 1, at)] for at in [3, 4, 9, 15, 3600, 3601]]
    machines, told = read(batches)
    assert told[2:] == [
        ("a", Status.HEALTHY, Status.UNHEALTHY, 3 + SILENCE, 3),
        ("a", Status.UNHEALTHY, Status.RETIRED, 3 + RETIREMENT, 3),
    ]
    assert machines.waiting.equals(frame(WAITING))


def test_an_hour_of_heartbeats_waits_in_a_few_rows() -> None:
    """Of a machine that moved to a partition which is read sooner, with a silence after half of the time."""
    hour = [at for at in range(1, 3600) if not 1800 < at <= 1800 + SILENCE]
    batches: Batches = [[("a", 0, 0), (PULSE, 1, 0)]]
    batches += [[("a", 1, at) for at in hour[first : first + 100]] for first in range(0, len(hour), 100)]
    machines, told = read(batches)
    assert len(told) == 1 and len(machines.waiting) == 6, "two runs"
    records = [record for batch in batches for record in batch]
    for known_up_to in (1, 2, 900, 1800, 1804, 1805, 1806, 1807, 3599, 3604):
        pulses: Batches = [[(PULSE, 0, at), (PULSE, 1, max(3599, at))] for at in (known_up_to // 2, known_up_to)]
        assert told + read(pulses, begin_with=machines)[1] == reference(records, known_up_to), known_up_to


def test_by_its_own_clock_a_machine_of_a_partition_that_is_no_more_is_judged_by_the_others() -> None:
    """The topic was made anew with fewer, so that their clocks were left behind."""
    known, _ = read([[("a", 1, 0), ("b", 0, 0)]], one_clock=False)
    carried = Machines(known.known, known.waiting, {0: 0})
    _, told = read([[(PULSE, 0, SILENCE)]], one_clock=False, begin_with=carried)
    assert [change[:3] for change in told] == [(name, Status.INITIALIZING, Status.UNHEALTHY) for name in ("a", "b")]


def test_what_waits_of_a_partition_that_is_no_more_is_judged_in_its_time() -> None:
    waits, _ = read([[("a", 0, 0), (PULSE, 1, 0)], [("a", 1, 3)]])
    carried = Machines(waits.known, waits.waiting, {0: 0})
    machines, told = read([[(PULSE, 0, 2)], [(PULSE, 0, 3)]], begin_with=carried)
    assert told == [("a", Status.INITIALIZING, Status.HEALTHY, 3, 3)]
    assert machines.waiting.equals(frame(WAITING))


@dataclass(frozen=True)
class Loss:
    """Two partitions, each with machines of its own, that lost a stretch of their records, or none."""

    before: list[Record]
    after: Batches
    lost: dict[int, tuple[int, int]]

    @property
    def read(self) -> list[Record]:
        return [*self.before, *(record for batch in self.after for record in batch)]


@st.composite
def losses(draw: st.DrawFn) -> Loss:
    before: list[Record] = []
    after: Batches = [[], []]
    lost = {}
    gaps = st.sampled_from([0, 1, 1, 2, 4, 5, 6, 19, 20, 30])
    for partition, machines in enumerate((["a", "b", PULSE], ["c", PULSE])):
        steps = draw(st.lists(st.tuples(st.sampled_from(machines), gaps), min_size=2, max_size=24))
        times = itertools.accumulate(gap for _, gap in steps)
        records = [(machine, partition, at) for (machine, _), at in zip(steps, times, strict=True)]
        first = draw(st.integers(1, len(records) - 1))
        last, middle = sorted(draw(st.lists(st.integers(first, len(records) - 1), min_size=2, max_size=2)))
        if last > first:
            lost[partition] = records[first - 1][2], records[last][2]
        before += records[:first]
        after[0] += records[last:middle]
        after[1] += records[middle:]
    return Loss(before, after, lost)


def reference_with_loss(beats: list[int], known_up_to: int, known_again: int, up_to: int) -> list[tuple[Status, int]]:
    """Of a machine, heartbeat by heartbeat: silence counts as far as it was seen."""
    told: list[tuple[Status, int]] = []
    status, last = Status.UNKNOWN, 0

    def due(time: int) -> int:
        seen = last >= known_again or last + time <= known_up_to
        return (last if seen else known_again) + time

    for at in [*(beat for beat in beats if beat <= up_to), None]:
        now = up_to if at is None else at
        if status in (Status.INITIALIZING, Status.HEALTHY) and due(SILENCE) <= now:
            told.append((status := Status.UNHEALTHY, due(SILENCE)))
        if status is not Status.UNKNOWN and due(RETIREMENT) <= now:
            told.append((Status.RETIRED, due(RETIREMENT)))
            status = Status.UNKNOWN
        if at is not None and status is not Status.HEALTHY:
            status = Status.INITIALIZING if status is Status.UNKNOWN else Status.HEALTHY
            told.append((status, at))
        last = now
    return told


@given(losses())
def test_silence_counts_only_as_far_as_it_was_seen(loss: Loss) -> None:
    machines, told = read([loss.before])
    machines, more = read(loss.after, begin_with=replace(machines, lost=loss.lost))
    up_to = min(machines.clocks.values())
    for machine, partition in (("a", 0), ("b", 0), ("c", 1)):
        beats = [at for name, _, at in loss.read if name == machine]
        expected = reference_with_loss(beats, *loss.lost.get(partition, (0, 0)), up_to)
        assert [(Status(row[2]), row[3]) for row in [*told, *more] if row[0] == machine] == expected


def test_machines_whose_heartbeats_were_lost_are_told_silent_only_when_they_stay_so() -> None:
    """An hour of partition 0 is lost. `a` beats on, `b` never again; `c` was unhealthy before, and `d` of another
    partition was silent for a while meanwhile."""
    first: list[Record] = [("c", 0, 0), *(("a", 0, at) for at in range(10)), *(("b", 0, at) for at in range(10))]
    other: list[Record] = [("d", 1, at) for at in range(3625) if not 100 < at < 110]
    machines, _ = read([[*first, *other[:10]]])
    machines = replace(machines, lost={0: (9, 3600)})
    later: list[Record] = [("a", 0, at) for at in range(3601, 3625)]
    assert read([[*other[10:], *later]], begin_with=machines)[1] == [
        ("b", Status.HEALTHY, Status.UNHEALTHY, 3600 + SILENCE, 9),
        ("b", Status.UNHEALTHY, Status.RETIRED, 3600 + RETIREMENT, 9),
        ("c", Status.UNHEALTHY, Status.RETIRED, 3600 + RETIREMENT, 0),
        ("d", Status.HEALTHY, Status.UNHEALTHY, 100 + SILENCE, 100),
        ("d", Status.UNHEALTHY, Status.HEALTHY, 110, 110),
    ]


def test_retired_machines_leave_nothing_behind() -> None:
    told = judge(Machines.none(), as_frame([("a", 0, 0), (PULSE, 0, RETIREMENT)]), PATIENCE, one_clock=True)
    assert told.machines.known.equals(frame(KNOWN))

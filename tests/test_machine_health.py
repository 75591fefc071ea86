"""The state machine of machines against a plain reference, on every short history and on random long ones."""

import itertools
from collections.abc import Iterable, Sequence

import numpy as np
import pandas as pd
from hypothesis import given
from hypothesis import strategies as st

from lake import machine_audit
from streaming.machine_health import BEAT, KNOWN, Machines, Patience, Status, frame, judge

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


def read(batches: Iterable[Sequence[Record]], *, one_clock: bool = True) -> tuple[Machines, list[Change]]:
    machines, told = Machines.none(), []
    for batch in batches:
        result = judge(machines, as_frame(batch), PATIENCE, one_clock=one_clock)
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


def test_retired_machines_leave_nothing_behind() -> None:
    told = judge(Machines.none(), as_frame([("a", 0, 0), (PULSE, 0, RETIREMENT)]), PATIENCE, one_clock=True)
    assert told.machines.known.equals(frame(KNOWN))

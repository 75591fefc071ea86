"""What generations of a checkpoint know of machines, whichever of them ended before they stored anything."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from orchestration.command.machine import as_report
from settings import HeartbeatSettings, Settings
from streaming.catalog import HEARTBEAT
from streaming.checkpoints import CheckpointError, Generation, QueryCheckpoints
from streaming.machine_health import Machines
from streaming.machine_processor import from_bytes, to_bytes
from streaming.machine_state import EPOCH, QUERY, bucket_keys, carried_over, machine_state
from tests.test_machine_health import Batches, read

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
PARTITIONS = 2
NAMES = [f"press-{number}" for number in range(20)]
Stored = dict[int, dict[int, bytes]]
"""What each generation stored, by its number and its buckets' keys."""


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> Stored:
    """In place of Spark's state, which takes a query for each generation."""
    known: Stored = {}

    def look(spark: SparkSession, checkpoints: QueryCheckpoints, generation: Generation) -> dict[int, bytes]:
        return known.get(generation.number, {})

    monkeypatch.setattr("streaming.machine_state.stored", look)
    return known


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, heartbeat=HeartbeatSettings(buckets=2))


@pytest.fixture
def checkpoints(spark: SparkSession, settings: Settings) -> QueryCheckpoints:
    return QueryCheckpoints(spark, settings.checkpoint_root, HEARTBEAT.name, QUERY)


def beaten(at: int, *names: str, partitions: int = PARTITIONS) -> Machines:
    """Each beat once on partition 0; all partitions are known up to then."""
    batch: Batches = [[*((name, 0, at) for name in names), *((None, partition, at) for partition in range(partitions))]]
    return read(batch)[0]


def last_beats(states: dict[int, bytes]) -> dict[str, int]:
    """Of each machine that some bucket knows."""
    known = [from_bytes(state).known for state in states.values()]
    rows = [row for each in known for row in each[["machine", "last"]].itertuples(index=False, name=None)]
    assert len({name for name, _ in rows}) == len(rows), "each in one bucket"
    return dict(rows)


def test_a_generation_that_stored_nothing_hands_on_what_it_was_given(
    spark: SparkSession, checkpoints: QueryCheckpoints, stored: Stored
) -> None:
    """A plan is changed, ends before its first batch, and is changed back."""
    first, *cut_off, latest = (checkpoints.begin(plan, None, NOW, 2 + plan) for plan in (1, 2, 3, 1))
    stored[first.number] = {key: to_bytes(beaten(7, *NAMES[key::3])) for key in range(3)}
    keys = bucket_keys(spark, 3)
    given = carried_over(spark, checkpoints, latest, keys, PARTITIONS)
    assert given.keys() == set(keys)
    assert last_beats(given) == dict.fromkeys(NAMES, 7)
    for generation in cut_off:
        given = carried_over(spark, checkpoints, generation, bucket_keys(spark, generation.buckets or 0), PARTITIONS)
        assert last_beats(given) == dict.fromkeys(NAMES, 7)


def test_of_a_generation_that_stored_some_buckets_the_others_know_what_they_were_given(
    spark: SparkSession, checkpoints: QueryCheckpoints, stored: Stored
) -> None:
    first, second, third = (checkpoints.begin(plan, None, NOW, 2) for plan in (1, 2, 3))
    keys = bucket_keys(spark, 2)
    stored[first.number] = {keys[0]: to_bytes(beaten(7, *NAMES))}
    in_bucket = last_beats({0: carried_over(spark, checkpoints, second, keys, PARTITIONS)[keys[0]]})
    assert 0 < len(in_bucket) < len(NAMES)
    stored[second.number] = {keys[0]: to_bytes(beaten(9, *in_bucket))}
    expected = {name: 9 if name in in_bucket else 7 for name in NAMES}
    assert last_beats(carried_over(spark, checkpoints, third, keys, PARTITIONS)) == expected
    stored[third.number] = dict.fromkeys(keys, to_bytes(beaten(9)))
    assert carried_over(spark, checkpoints, third, keys, PARTITIONS) == {}, "it has its own"


def test_a_partition_that_is_no_more_does_not_stop_the_clock(
    spark: SparkSession, checkpoints: QueryCheckpoints, stored: Stored
) -> None:
    """The topic was made anew with two partitions in place of four, and the loss was accepted."""
    first, second = (checkpoints.begin(1, None, NOW, 1) for _ in range(2))
    keys = bucket_keys(spark, 1)
    stored[first.number] = {keys[0]: to_bytes(beaten(0, "press", partitions=4))}
    (given,) = carried_over(spark, checkpoints, second, keys, PARTITIONS).values()
    machines, told = read([[(None, 0, 90), (None, 1, 90)]], begin_with=from_bytes(given))
    assert machines.clocks == {0: 90, 1: 90}
    assert [change[0] for change in told] == ["press", "press"], "unhealthy, and retired"


def test_a_loss_is_known_to_every_bucket_and_in_every_generation_after_it(
    spark: SparkSession, checkpoints: QueryCheckpoints, stored: Stored
) -> None:
    """More was lost before the first that followed had done a batch."""
    first, *_, latest = (
        checkpoints.begin(1, None, NOW, 2, lost_until) for lost_until in (None, {"0": 90}, {"1": 60}, {"0": 100})
    )
    keys = bucket_keys(spark, 2)
    stored[first.number] = {keys[0]: to_bytes(beaten(7, *NAMES))}
    given = carried_over(spark, checkpoints, latest, keys, PARTITIONS)
    assert [dict(from_bytes(given[key]).lost) for key in keys] == [{0: (7, 100), 1: (7, 60)}] * 2
    told = []
    for state in given.values():
        here = set(last_beats({0: state}))
        batch: Batches = [[*((name, 0, 101) for name in NAMES[5:] if name in here), (None, 0, 105), (None, 1, 105)]]
        machines, changes = read(batch, begin_with=from_bytes(state))
        told += [(name, since) for name, _, _, since, _ in changes]
        assert machines.lost == from_bytes(to_bytes(machines)).lost == {0: (7, 100), 1: (7, 60)}
    healthy = [(name, 101) for name in NAMES[5:]]
    assert sorted(told) == sorted([*((name, 105) for name in NAMES[:5]), *healthy])


def test_a_machine_is_known_before_it_is_judged_and_before_a_new_generation_did_a_batch(
    spark: SparkSession, settings: Settings, checkpoints: QueryCheckpoints, stored: Stored
) -> None:
    with pytest.raises(CheckpointError, match="has done no batch yet"):
        machine_state(spark, settings, "press")
    first, _ = (checkpoints.begin(plan, None, NOW, 1) for plan in (1, 2))
    batches: Batches = [[("lathe", 0, 1_000_000), (None, 1, 1_000_000)], [("press", 0, 4_500_000)]]
    stored[first.number] = {bucket_keys(spark, 1)[0]: to_bytes(read(batches)[0])}
    lathe, press = (machine_state(spark, settings, name) for name in ("lathe", "press"))
    assert lathe is not None and press is not None
    assert (lathe.status, lathe.last_heartbeat) == ("Initializing", EPOCH + timedelta(seconds=1))
    assert (press.status, press.since, press.last_heartbeat) == ("Unknown", None, None)
    assert press.waiting == [EPOCH + timedelta(seconds=4.5)]
    assert (press.held_up_by, press.behind_seconds) == (1, 3.5)
    assert "press is new" in as_report(press) and "partition 1 is known, 3.5 s behind the newest" in as_report(press)
    assert machine_state(spark, settings, "nobody") is None

"""Days of tables: how many are taken at a time, and how a range of them grows."""

import itertools
from datetime import UTC, date, datetime, timedelta

import pytest

from lake.days import MB, Day, slices
from streaming.click_rebuild import Days, parts_of

FIRST = date(2026, 3, 1)


def day(number: int) -> date:
    return FIRST + timedelta(days=number)


def test_small_days_are_taken_together_and_large_ones_alone_in_their_order() -> None:
    sizes: dict[Day, int] = {day(3): 5 * MB, day(0): MB, day(1): MB, day(2): 50 * MB, None: 1, day(4): 6 * MB}
    assert slices(sizes, 10) == [{None, day(0), day(1)}, {day(2)}, {day(3)}, {day(4)}]
    assert slices(sizes, 100) == [set(sizes)]
    assert slices({day(0): 0, day(1): 0}, 1) == [{day(0), day(1)}]
    assert slices({}, 1) == []


def test_a_range_grows_at_the_end_that_a_neighbour_is_at() -> None:
    days = Days(day(3), day(4))
    assert days.neighbours == [day(2), day(5)]
    assert days.with_neighbours({day(2)}) == Days(day(2), day(4))
    assert days.with_neighbours({day(5)}) == Days(day(3), day(5))
    assert days.with_neighbours({day(2), day(5)}) == Days(day(2), day(5))
    assert Days(None, day(4)).with_neighbours({day(5)}) == Days(None, day(5))
    assert Days().neighbours == [] and Days().where is None
    assert Days(day(3)).where == "date >= date'2026-03-04'"


@pytest.mark.parametrize("count", [1, 2, 13, 96])
def test_the_parts_of_a_day_leave_no_moment_out(count: int) -> None:
    parts = parts_of(FIRST, count)
    assert len(parts) == count
    assert parts[0][0] == datetime(2026, 3, 1, tzinfo=UTC) and parts[-1][1] == datetime(2026, 3, 2, tzinfo=UTC)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(parts))

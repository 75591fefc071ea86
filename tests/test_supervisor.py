from datetime import UTC, datetime, timedelta

import pytest

from orchestration.supervisor import Decision, LeaveAlone, RunState, SeenRun, Start, Wait, decide, wait_after

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = "0123456789"


def ended(state: RunState, seconds_ago: float, failures: int = 0) -> SeenRun:
    return SeenRun(ID, state, NOW - timedelta(seconds=seconds_ago), failures)


@pytest.mark.parametrize(
    ("latest", "lease_held", "decision"),
    [
        (None, False, Start("it was never started")),
        (None, True, Wait(None, "an earlier host still holds the lease")),
        (SeenRun(ID, RunState.ACTIVE, None), False, LeaveAlone("run 01234567 is active")),
        (SeenRun(ID, RunState.ACTIVE, None), True, LeaveAlone("run 01234567 is active")),
        (ended(RunState.FAILED, 4.9, 1), False, Wait(NOW + timedelta(seconds=0.1), "failure 1 in a row")),
        (ended(RunState.FAILED, 5, 1), False, Start("run 01234567 failed")),
        (ended(RunState.FAILED, 5, 1), True, Wait(None, "an earlier host still holds the lease")),
        (ended(RunState.FAILED, 5, 3), False, Wait(NOW + timedelta(seconds=15), "failure 3 in a row")),
        (ended(RunState.ENDED, 0), False, Start("it was stopped with the system")),
    ],
)
def test_decisions(latest: SeenRun | None, lease_held: bool, decision: Decision) -> None:
    assert decide(latest, lease_held, NOW) == decision


@pytest.mark.parametrize("lease_held", [True, False])
def test_what_a_person_terminated_stays_stopped(lease_held: bool) -> None:
    decision = decide(ended(RunState.CANCELED, 10**6), lease_held, NOW)
    assert isinstance(decision, LeaveAlone) and "person" in decision.reason


def test_the_wait_doubles_up_to_a_limit() -> None:
    waits = [wait_after(failures).total_seconds() for failures in (0, 1, 2, 3, 4, 5, 6, 7, 8, 1000)]
    assert waits == [5, 5, 10, 20, 40, 80, 160, 300, 300, 300]

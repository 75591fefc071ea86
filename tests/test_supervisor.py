"""The decision: a table of cases, and laws that hold for any history."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import settings, strategies
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from orchestration.supervisor import (
    Cause,
    CleanUp,
    Decision,
    Hold,
    LeaveAlone,
    Life,
    Limits,
    Restart,
    RunState,
    Seen,
    SeenHost,
    SeenLease,
    SeenRun,
    Start,
    Wait,
    decide,
    is_lost,
    wait_after,
)

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
ID = "0123456789"
LIMITS = Limits()
OURS = SeenLease(ID, run_active=True, pid=7)
STALE = SeenLease("an older run", run_active=False, pid=8)
BY_HAND = SeenLease(None, pid=9)
WELL = SeenHost(running=True, silent_seconds=1, quiet_seconds={"clicks": 0, "sensors": 3})


def run(state: RunState, seconds_ago: float = 1, worker: Life = Life.ALIVE, **more: object) -> SeenRun:
    return replace(SeenRun(ID, state, NOW - timedelta(seconds=seconds_ago), worker), **more)  # type: ignore[arg-type]


def failed(seconds_ago: float, attempt: int = 1, **more: object) -> SeenRun:
    return run(RunState.FAILED, seconds_ago, Life.DEAD, attempt=attempt, reason="It broke.", **more)


STARTED = run(RunState.STARTED, 3600)


@pytest.mark.parametrize(
    ("seen", "kind", "said"),
    [
        # What never ran, or stopped.
        (Seen(None), Start, "never started"),
        (Seen(None, BY_HAND), LeaveAlone, "process 9, which was started by hand"),
        (Seen(None, STALE), CleanUp, "lives on although"),
        (Seen(None, wanted=False), LeaveAlone, "SUPERVISOR_STREAMS does not name it"),
        (Seen(None, STALE, wanted=False), CleanUp, "lives on although"),
        (Seen(failed(600), wanted=False), LeaveAlone, "SUPERVISOR_STREAMS does not name it"),
        (Seen(STARTED, OURS, WELL, wanted=False), LeaveAlone, "is active"),
        (Seen(run(RunState.ENDED)), Start, "not by a person"),
        (Seen(run(RunState.ENDED), OURS), LeaveAlone, "is about to"),
        (Seen(run(RunState.ENDED, 600), OURS), CleanUp, "lives on although"),
        (Seen(run(RunState.ENDED), STALE), CleanUp, "lives on although"),
        (Seen(run(RunState.CANCELED)), LeaveAlone, "a person terminated it"),
        (Seen(run(RunState.CANCELED, 10**7)), LeaveAlone, "a person terminated it"),
        (Seen(run(RunState.CANCELED), OURS), LeaveAlone, "is about to"),
        (Seen(run(RunState.CANCELED, 600), OURS), CleanUp, "lives on although"),
        # What is on its way.
        (Seen(run(RunState.LAUNCHING, worker=Life.UNKNOWN)), LeaveAlone, "is being launched"),
        (Seen(run(RunState.LAUNCHING, 119, Life.UNKNOWN)), LeaveAlone, "is being launched"),
        (Seen(run(RunState.LAUNCHING, 121, Life.UNKNOWN)), Restart, "not launched in 120 s"),
        (Seen(run(RunState.LAUNCHING, 1, Life.DEAD)), Restart, "the process of its run is gone"),
        (Seen(run(RunState.STARTED, 5)), LeaveAlone, "is starting"),
        (Seen(run(RunState.STARTED, 5, Life.UNKNOWN)), LeaveAlone, "is starting"),
        (Seen(run(RunState.STARTED, 119)), LeaveAlone, "is starting"),
        (Seen(run(RunState.STARTED, 121, Life.UNKNOWN)), Restart, "did not come up in 120 s"),
        (Seen(run(RunState.STARTED, 121)), Restart, "did not come up in 120 s"),
        (Seen(run(RunState.STARTED, 5), STALE), CleanUp, "run an older"),
        (Seen(run(RunState.STARTED, 5), BY_HAND), LeaveAlone, "held by another"),
        (Seen(run(RunState.STARTED, 5), SeenLease("another run", run_active=True)), LeaveAlone, "held by another"),
        (Seen(run(RunState.STARTED, 500), BY_HAND), LeaveAlone, "held by another"),
        # Its host took the lease and froze before it could say so.
        (Seen(run(RunState.STARTED, 5), SeenLease(None)), LeaveAlone, "is starting"),
        (Seen(run(RunState.STARTED, 500), SeenLease(None)), Restart, "did not come up"),
        (Seen(run(RunState.STARTED, 500), STALE), Restart, "did not come up"),
        (Seen(run(RunState.CANCELING), OURS, WELL), LeaveAlone, "is stopping"),
        (Seen(run(RunState.CANCELING, 46), OURS, WELL), CleanUp, "did not end in 45 s"),
        (Seen(run(RunState.CANCELING, worker=Life.DEAD), OURS, WELL), CleanUp, "was being terminated"),
        # What runs, or seems to.
        (Seen(STARTED, OURS, WELL), LeaveAlone, "is active"),
        (Seen(replace(STARTED, worker=Life.DEAD), OURS, WELL), Restart, "the process of its run is gone"),
        (Seen(replace(STARTED, worker=Life.DEAD)), Restart, "the process of its run is gone"),
        (Seen(STARTED, OURS, replace(WELL, silent_seconds=30)), LeaveAlone, "is active"),
        (Seen(STARTED, OURS, replace(WELL, silent_seconds=31)), Restart, "not answered for 31 s"),
        (Seen(STARTED, OURS, replace(WELL, quiet_seconds={"a": 0, "b": 120})), LeaveAlone, "is active"),
        (Seen(STARTED, OURS, replace(WELL, quiet_seconds={"a": 0, "b": 121})), Restart, "query b is stuck"),
        (Seen(STARTED, OURS, SeenHost(False, 1, quiet_seconds={"b": 10**6})), LeaveAlone, "is active"),
        (Seen(STARTED, OURS, replace(WELL, quiet_seconds={"b": 999}, hub_away=True)), LeaveAlone, "is active"),
        (Seen(STARTED, OURS, SeenHost(False, 120)), LeaveAlone, "is active"),
        (Seen(STARTED, OURS, SeenHost(False, 121)), Restart, "not answered for 121 s"),
        # What failed.
        (Seen(failed(1)), Start, "It broke."),
        (Seen(failed(0, 2)), Wait, "It broke."),
        (Seen(failed(8, 2)), Start, "It broke."),
        (Seen(failed(8, 2), STALE), CleanUp, "lives on although"),
        (Seen(failed(1), SeenLease(ID)), CleanUp, "lives on although"),
        (Seen(failed(8, 2), BY_HAND), LeaveAlone, "started by hand"),
        (Seen(failed(10**6, cause=Cause.FOR_A_PERSON)), Hold, "It broke."),
        (Seen(failed(10**6, 10, fruitless_before=8)), Start, "It broke."),
        (Seen(failed(10**6, 10, fruitless_before=9)), Hold, "10 runs in a row failed without any progress"),
        (Seen(failed(10**6, 10, fruitless_before=9, progressed=True)), Start, "It broke."),
        (Seen(failed(10**6, 99, fruitless_before=99, cause=Cause.SURROUNDINGS)), Start, "It broke."),
    ],
)
def test_cases(seen: Seen, kind: type, said: str) -> None:
    decision = decide(seen, LIMITS, NOW)
    assert isinstance(decision, kind), decision
    assert said in decision.reason


@pytest.mark.parametrize(
    ("beside", "lost"),
    [
        (run(RunState.STARTED, 1, Life.DEAD), True),
        (run(RunState.CANCELING, 1, Life.DEAD), True),
        (run(RunState.STARTED, 10**6, Life.ALIVE), False),
        (run(RunState.LAUNCHING, 119, Life.UNKNOWN), False),
        (run(RunState.LAUNCHING, 121, Life.UNKNOWN), True),
        (run(RunState.STARTED, 121, Life.UNKNOWN), True),
    ],
)
def test_a_run_beside_another_is_lost_without_a_process(beside: SeenRun, lost: bool) -> None:
    assert is_lost(beside, LIMITS, NOW) is lost


def test_a_hang_is_told_from_a_death_and_with_the_query_that_hangs() -> None:
    stuck = decide(Seen(STARTED, OURS, replace(WELL, quiet_seconds={"a": 0, "b": 121})), LIMITS, NOW)
    silent = decide(Seen(STARTED, OURS, replace(WELL, silent_seconds=31)), LIMITS, NOW)
    dead = decide(Seen(replace(STARTED, worker=Life.DEAD), OURS, WELL), LIMITS, NOW)
    assert isinstance(stuck, Restart) and (stuck.hung, stuck.query) == (True, "b")
    assert isinstance(silent, Restart) and (silent.hung, silent.query) == (True, None)
    assert isinstance(dead, Restart) and not dead.hung


def test_a_stream_that_was_stopped_in_order_starts_as_if_for_the_first_time() -> None:
    ended = run(RunState.ENDED, attempt=9, fruitless_before=9)
    assert decide(Seen(ended), LIMITS, NOW) == Start("it was stopped in order, and not by a person")


def test_a_start_carries_what_the_next_decision_needs() -> None:
    start = decide(Seen(failed(20, 3, fruitless_before=2)), LIMITS, NOW)
    assert isinstance(start, Start)
    assert (start.attempt, start.fruitless) == (4, 3)
    assert start.not_before == NOW - timedelta(seconds=20) + wait_after(3, LIMITS, ID)


@pytest.mark.parametrize(("seconds", "progressed", "attempt"), [(599, True, 8), (600, True, 2), (600, False, 8)])
def test_a_healthy_run_starts_the_count_anew(seconds: float, progressed: bool, attempt: int) -> None:
    run = failed(10**6, 7, seconds=seconds, progressed=progressed)
    start = decide(Seen(run), LIMITS, NOW)
    assert isinstance(start, Start) and start.attempt == attempt


def test_what_says_nothing_about_the_stream_does_not_count_towards_a_crash_loop() -> None:
    start = decide(Seen(failed(10**6, 5, fruitless_before=3, cause=Cause.SURROUNDINGS)), LIMITS, NOW)
    assert isinstance(start, Start) and start.fruitless == 3


def test_the_wait_doubles_up_to_a_limit_with_a_jitter_of_its_own_for_each_run() -> None:
    for failures, seconds in [(0, 5), (1, 5), (2, 10), (3, 20), (6, 160), (7, 300), (8, 300), (1000, 300)]:
        waits = {wait_after(failures, LIMITS, str(number)).total_seconds() for number in range(100)}
        assert len(waits) > 90
        assert seconds <= min(waits) and max(waits) <= 1.2 * seconds


class AnyHistory(RuleBasedStateMachine):
    """A stream in a world where processes die and hang, persons act and time passes, under a supervisor that does what
    `decide` says. The world keeps its own books of what the supervisor is then allowed to do."""

    def __init__(self) -> None:
        super().__init__()
        self.now = NOW
        self.run: SeenRun | None = None
        self.count = 0
        self.not_before: datetime | None = None
        self.driver: str | None = None
        """The run whose host holds the lease."""
        self.silent = 0.0
        self.quiet = 0.0
        self.wanted = True
        """False from a person's termination to a person's launch."""
        self.failures = 0
        self.fruitless = 0
        self.incurable = False
        self.earliest = NOW

    def seen(self) -> Seen:
        lease = None
        if self.driver is not None:
            active = self.run is not None and self.driver == self.run.run_id and self.is_active()
            lease = SeenLease(self.driver, active, 1)
        host = None
        if self.run is not None and self.run.run_id == self.driver:
            host = SeenHost(True, self.silent, quiet_seconds={"other": 0.0, "q": self.quiet})
        return Seen(self.run, lease, host)

    def is_active(self) -> bool:
        return self.run is not None and self.run.state in (RunState.LAUNCHING, RunState.STARTED, RunState.CANCELING)

    def is_well(self) -> bool:
        return self.silent <= 30 and self.quiet <= 120

    def finish(self, state: RunState, cause: Cause = Cause.CURABLE, progressed: bool = False) -> None:
        assert self.run is not None
        seconds = (self.now - self.run.since).total_seconds()
        self.run = replace(
            self.run,
            state=state,
            since=self.now,
            worker=Life.DEAD,
            cause=cause,
            reason="x",
            progressed=progressed,
            seconds=seconds,
        )
        if state is RunState.FAILED:
            self.failures = 1 if progressed and seconds >= 600 else self.failures + 1
            self.fruitless = 0 if progressed else self.fruitless + (cause is Cause.CURABLE)
            self.incurable = cause is Cause.FOR_A_PERSON or (cause is Cause.CURABLE and self.fruitless >= 10)
            self.earliest = self.now + timedelta(seconds=min(300, 5 * 2 ** (self.failures - 1)))
        else:
            self.failures = self.fruitless = 0
            self.incurable = False

    def launch(self, attempt: int, fruitless: int, not_before: datetime | None) -> None:
        self.count += 1
        self.run = SeenRun(
            f"run {self.count}", RunState.LAUNCHING, self.now, attempt=attempt, fruitless_before=fruitless
        )
        self.not_before = not_before

    @rule(seconds=strategies.sampled_from([1, 5, 30, 130, 700]))
    def time_passes(self, seconds: int) -> None:
        self.now += timedelta(seconds=seconds)

    @rule()
    def supervisor_looks(self) -> None:
        self.apply(decide(self.seen(), LIMITS, self.now))

    def apply(self, decision: Decision) -> None:
        match decision:
            case Start():
                assert self.wanted, "started although a person had stopped it"
                assert self.driver is None and not self.is_active(), "started beside another"
                assert not self.incurable, "started although only a person can help"
                if self.run is not None and self.run.state is RunState.FAILED:
                    assert decision.not_before is not None
                    assert decision.not_before >= self.earliest, "an attempt before its backoff"
                self.launch(decision.attempt, decision.fruitless, decision.not_before)
            case Restart():
                assert self.is_active() and self.wanted
                assert self.run is not None
                merely_idle = self.run.worker is Life.ALIVE and self.run.run_id == self.driver and self.is_well()
                assert not merely_idle, "restarted although nothing is wrong"
                self.driver = None
                self.finish(RunState.FAILED)
            case CleanUp():
                assert self.driver is not None or (self.run is not None and self.run.state is RunState.CANCELING)
                self.driver = None
                if self.run is not None and self.run.state is RunState.CANCELING:
                    self.finish(RunState.CANCELED)
            case Hold():
                assert self.incurable, "held although a restart may help"
            case Wait():
                assert self.wanted and not self.incurable
                assert decision.until >= self.earliest

    @precondition(lambda self: self.run is not None and self.run.state is RunState.LAUNCHING)
    @rule()
    def dagster_launches(self) -> None:
        assert self.run is not None
        self.run = replace(self.run, state=RunState.STARTED, since=self.now, worker=Life.ALIVE)

    @precondition(lambda self: self.run is not None and self.run.state is RunState.STARTED and self.driver is None)
    @rule()
    def host_takes_the_lease(self) -> None:
        assert self.run is not None
        if self.run.worker is Life.ALIVE and (self.not_before is None or self.now >= self.not_before):
            self.driver = self.run.run_id
            self.silent = self.quiet = 0.0

    @precondition(lambda self: self.driver is not None)
    @rule(silent=strategies.floats(0, 60), quiet=strategies.floats(0, 240))
    def host_is_busy_idle_or_hung(self, silent: float, quiet: float) -> None:
        self.silent, self.quiet = silent, quiet

    @precondition(lambda self: self.run is not None and self.run.state is RunState.STARTED)
    @rule(cause=strategies.sampled_from(Cause), progressed=strategies.booleans())
    def host_fails(self, cause: Cause, progressed: bool) -> None:
        assert self.run is not None
        if self.driver == self.run.run_id:
            self.driver = None
        self.finish(RunState.FAILED, cause, progressed)

    @precondition(lambda self: self.run is not None and self.run.state is RunState.STARTED)
    @rule()
    def the_system_is_stopped_in_order(self) -> None:
        assert self.run is not None
        if self.driver == self.run.run_id:
            self.driver = None
        self.finish(RunState.ENDED)

    @precondition(lambda self: self.is_active())
    @rule()
    def worker_dies_unseen_and_its_host_lives_on(self) -> None:
        assert self.run is not None
        self.run = replace(self.run, worker=Life.DEAD)

    @precondition(lambda self: self.is_active())
    @rule()
    def dagster_declares_it_ended_while_its_host_lives(self) -> None:
        assert self.run is not None
        self.finish(RunState.CANCELED if self.run.state is RunState.CANCELING else RunState.FAILED)

    @precondition(lambda self: self.is_active())
    @rule()
    def person_terminates(self) -> None:
        assert self.run is not None
        self.wanted = False
        self.run = replace(self.run, state=RunState.CANCELING, since=self.now)

    @precondition(lambda self: self.run is not None and self.run.state is RunState.CANCELING)
    @rule(host_ends=strategies.booleans())
    def termination_ends(self, host_ends: bool) -> None:
        assert self.run is not None
        if host_ends and self.driver == self.run.run_id:
            self.driver = None
        self.finish(RunState.CANCELED)

    @precondition(lambda self: self.run is not None and not self.is_active())
    @rule()
    def person_launches(self) -> None:
        self.wanted = True
        self.failures = self.fruitless = 0
        self.incurable = False
        self.launch(1, 0, None)

    @invariant()
    def what_a_restart_cures_comes_back(self) -> None:
        """From here on nothing else happens: Dagster launches what is asked for and hosts come up well."""
        if not self.wanted or self.incurable:
            return
        ahead = AnyHistory()
        ahead.__dict__.update(self.__dict__)
        for _ in range(250):
            ahead.supervisor_looks()
            if ahead.incurable:
                return
            run = ahead.run
            if run is not None and run.state is RunState.LAUNCHING:
                ahead.dagster_launches()
            elif run is not None and run.state is RunState.STARTED and ahead.driver is None:
                ahead.host_takes_the_lease()
            elif run is not None and run.run_id == ahead.driver and ahead.is_active() and ahead.is_well():
                return
            ahead.now += timedelta(seconds=5)
        raise AssertionError(f"it never came back from {self.run}, {self.driver}")


TestAnyHistory = AnyHistory.TestCase
TestAnyHistory.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)

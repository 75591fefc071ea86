"""The process of a run: when it starts its host, and how it relays what the host says."""

import logging
import subprocess
import sys
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from dagster import OpExecutionContext

from orchestration import stream_jobs, tags
from settings import Settings


@dataclass
class FakeLog:
    full: bool = False
    lines: list[str] = field(default_factory=list)

    def info(self, line: str) -> None:
        if self.full:
            raise OSError("database or disk is full")
        self.lines.append(line)

    warning = error = info


@dataclass
class FakeRun:
    tags: dict[str, str]


@dataclass
class FakeContext:
    run: FakeRun = field(default_factory=lambda: FakeRun({}))
    log: FakeLog = field(default_factory=FakeLog)


def context(made: FakeContext) -> OpExecutionContext:
    return cast("OpExecutionContext", made)


def waited(monkeypatch: pytest.MonkeyPatch, **planned: str) -> list[float]:
    """The seconds that a run with these tags slept before its host."""
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    tagged = {f"tidewatch/{name.replace('_', '-')}": value for name, value in planned.items()}
    stream_jobs._wait_for_its_time(context(FakeContext(FakeRun(tagged))), Settings())
    return slept


def in_seconds(seconds: float) -> str:
    return (datetime.now(UTC) + timedelta(seconds=seconds)).isoformat()


def test_a_host_does_not_start_before_its_backoff_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert waited(monkeypatch, not_before=in_seconds(40)) == [pytest.approx(40, abs=2)]
    assert waited(monkeypatch, not_before=in_seconds(-1)) == []
    assert waited(monkeypatch) == []


def test_a_run_that_a_person_re_executed_does_not_wait_for_its_parents_backoff(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    monkeypatch.setattr(time, "sleep", slept.append)
    tagged = {tags.NOT_BEFORE: in_seconds(40), tags.PARENT: "another run"}
    stream_jobs._wait_for_its_time(context(FakeContext(FakeRun(tagged))), Settings())
    assert slept == []


def test_a_clock_that_was_set_back_does_not_make_it_wait_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    longest = Settings().supervisor.longest_wait_seconds
    assert waited(monkeypatch, not_before=in_seconds(10**6)) == [2 * longest]


# More than a pipe holds, so that it blocks unless somebody reads.
LINES = 3000
TALKATIVE = f"""
for number in range({LINES}):
    print("2026-01-01T00:00:00Z INFO " + str(number).zfill(50), flush=True)
"""


class FullDisk:
    def write(self, _: str) -> int:
        raise OSError("No space left on device")

    def flush(self) -> None:
        pass


@pytest.mark.parametrize("broken", ["output", "log"])
def test_a_host_is_read_to_its_end_whatever_can_not_be_written(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, broken: str
) -> None:
    child = subprocess.Popen([sys.executable, "-c", TALKATIVE], stdout=subprocess.PIPE, text=True)
    made = FakeContext()
    if broken == "output":
        monkeypatch.setattr(sys, "stdout", cast("Any", FullDisk()))
    else:
        made.log.full = True
    with caplog.at_level(logging.ERROR, "tidewatch"):
        stream_jobs._relay(context(made), child)
    monkeypatch.undo()
    assert child.wait(10) == 0
    assert len(made.log.lines) == (LINES if broken == "output" else 0), "one that fails takes nothing from the other"
    (told,) = [record.getMessage() for record in caplog.records]
    assert "can't be written to" in told and "full" in told.replace("No space left on device", "full")

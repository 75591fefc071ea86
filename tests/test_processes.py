import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from bench.rig import wait_for
from processes.child import end_group, spawn, wait_until_dead
from processes.identity import ProcessIdentity

SLEEP = [sys.executable, "-c", "import time; time.sleep(60)"]


def identity_of(pid: int) -> ProcessIdentity:
    identity = ProcessIdentity.of(pid)
    assert identity is not None
    return identity


def test_an_identity_survives_json_and_tells_the_living_from_the_dead() -> None:
    child = subprocess.Popen(SLEEP)
    identity = identity_of(child.pid)
    assert ProcessIdentity.from_json(identity.to_json()) == identity
    assert identity.is_alive()
    child.kill()
    wait_for("the zombie counts as dead", lambda: not identity.is_alive(), 5)
    child.wait()
    assert ProcessIdentity.of(child.pid) is None


def test_a_reused_pid_or_another_boot_is_another_process() -> None:
    mine = ProcessIdentity.current()
    assert not ProcessIdentity(mine.pid, mine.started + "1", mine.boot).is_alive()
    assert not ProcessIdentity(mine.pid, mine.started, "another boot").is_alive()


def test_text_that_is_no_identity_is_none() -> None:
    for text in ("", "{", "[]", '{"pid": "x"}', '{"pid": 1}'):
        assert ProcessIdentity.from_json(text) is None


def test_a_child_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            f"import pathlib, sys, time; from processes.child import spawn\n"
            f"child = spawn({SLEEP!r}); pathlib.Path({str(told)!r}).write_text(str(child.pid)); time.sleep(60)",
        ]
    )
    wait_for("the child started", lambda: told.exists() and told.read_text() != "", 10)
    child = identity_of(int(told.read_text()))
    time.sleep(0.5)  # until the child has become its command
    parent.kill()
    parent.wait()
    assert wait_until_dead(child, 5)


def test_ending_a_group_takes_the_grandchildren_too(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    stubborn = (
        "import pathlib, signal, subprocess, sys, time\n"
        f"child = subprocess.Popen({SLEEP!r})\n"
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    leader = spawn([sys.executable, "-c", stubborn])
    wait_for("the grandchild started", lambda: told.exists() and told.read_text() != "", 10)
    grandchild = identity_of(int(told.read_text()))
    end_group(identity_of(leader.pid), grace_seconds=0.5)
    assert leader.wait(5) == -signal.SIGKILL
    assert wait_until_dead(grandchild, 5)


def test_ending_a_group_whose_leader_died_takes_the_members_that_are_known(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    parent = (
        f"import pathlib, subprocess, time\nchild = subprocess.Popen({SLEEP!r})\n"
        f"pathlib.Path({str(told)!r}).write_text(str(child.pid)); time.sleep(60)"
    )
    leader = spawn([sys.executable, "-c", parent])
    wait_for("the member started", lambda: told.exists() and told.read_text() != "", 10)
    member = identity_of(int(told.read_text()))
    dead = identity_of(leader.pid)
    os.kill(leader.pid, signal.SIGKILL)
    leader.wait()
    assert member.is_alive()
    end_group(dead, grace_seconds=0)  # nobody it knows lives, so nothing is touched
    assert member.is_alive()
    end_group(dead, member, grace_seconds=0)
    assert wait_until_dead(member, 5)


def test_a_graceful_end_is_no_kill() -> None:
    polite = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(0))\n"
        "print('ready', flush=True); time.sleep(60)"
    )
    child = spawn([sys.executable, "-c", polite], output=subprocess.PIPE)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    end_group(identity_of(child.pid), grace_seconds=5)
    assert child.wait(5) == 0

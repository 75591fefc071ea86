"""A host ends itself when the supervisor ended its run."""

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from bench.rig import wait_for

# A lease that is never lost, so that only the supervisor's word can end it.
HOST = """
import sys, time
from pathlib import Path
from streaming.guard import guard

class Kept:
    def check(self):
        pass

guard(Kept(), Path(sys.argv[1]), sys.argv[2] or None)
print("guarded", flush=True)
time.sleep(60)
"""


def host(revoked: Path, run_id: str) -> "subprocess.Popen[str]":
    command = [sys.executable, "-c", HOST, str(revoked), run_id]
    started = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert started.stdout is not None and started.stdout.readline() == "guarded\n"
    return started


def test_a_host_whose_run_was_ended_ends_itself(tmp_path: Path) -> None:
    revoked = tmp_path / "revoked"
    revoked.write_text("an earlier run")
    guarded = host(revoked, "this run")
    try:
        time.sleep(2.5)
        assert guarded.poll() is None, "it ended though another run was meant"
        revoked.write_text("this run")
        wait_for("it ends itself", lambda: guarded.poll() is not None, 10)
        assert guarded.returncode == -signal.SIGKILL
    finally:
        guarded.kill()
        guarded.wait()


@pytest.mark.parametrize("word", ["", "None"])
def test_a_host_that_was_started_by_hand_has_no_run_that_could_be_ended(tmp_path: Path, word: str) -> None:
    (tmp_path / "revoked").write_text(word)
    guarded = host(tmp_path / "revoked", "")
    try:
        time.sleep(2.5)
        assert guarded.poll() is None
    finally:
        guarded.kill()
        guarded.wait()

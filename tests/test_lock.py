"""The lock around the tables of clicks: one at a time, between processes and between threads."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lake.lock import LockTimeout, tables_locked

HOLD = """
import fcntl, sys
file = open(sys.argv[1], "w")
fcntl.lockf(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""
TRY = """
import fcntl, sys
file = open(sys.argv[1], "w")
try:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("free")
except OSError:
    print("held")
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "silver" / "clicks.lock"


@pytest.fixture
def another(file: Path) -> Iterator["subprocess.Popen[str]"]:
    """A process that holds the lock until it is killed."""
    file.parent.mkdir()
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    yield holder
    holder.kill()
    holder.wait()


def seen_from_outside(file: Path) -> str:
    return subprocess.run(
        [sys.executable, "-c", TRY, str(file)], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_other_processes_see_it_held_and_free(spark: SparkSession, file: Path) -> None:
    with tables_locked(spark, file, 5):
        assert seen_from_outside(file) == "held"
    assert seen_from_outside(file) == "free"
    with pytest.raises(ValueError, match="oops"), tables_locked(spark, file, 5):
        raise ValueError("oops")
    assert seen_from_outside(file) == "free"


def test_it_waits_for_another_process_and_not_for_ever(
    spark: SparkSession, file: Path, another: "subprocess.Popen[str]"
) -> None:
    waits = []
    told = pytest.raises(LockTimeout, match=r"clicks\.lock for more than 0\.3 s")
    with told, tables_locked(spark, file, 0.3, lambda: waits.append(1)):
        pytest.fail("both hold it")
    assert waits
    threading.Timer(0.5, another.kill).start()
    with tables_locked(spark, file, 20):
        assert another.wait(5) != 0, "it was still alive"


def test_threads_of_one_process_take_turns_and_keep_it_from_others(spark: SparkSession, file: Path) -> None:
    inside, most, seen = [0], [0], []

    def work() -> None:
        for _ in range(5):
            with tables_locked(spark, file, 30):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                time.sleep(0.02)
                inside[0] -= 1

    threads = [threading.Thread(target=work) for _ in range(3)]
    with tables_locked(spark, file, 5):
        for thread in threads:
            thread.start()
        with pytest.raises(LockTimeout), tables_locked(spark, file, 0.2):
            pass
        seen.append(seen_from_outside(file))
    for thread in threads:
        thread.join()
    assert (most[0], seen) == (1, ["held"]), "one that gave up must not free it"


def test_an_interrupted_holder_leaves_it_to_its_jvm(spark: SparkSession, tmp_path: Path) -> None:
    file = tmp_path / "lock"
    with pytest.raises(KeyboardInterrupt), tables_locked(spark, file, 5):
        raise KeyboardInterrupt
    assert seen_from_outside(file) == "held", "the JVM may still commit what it was told to"
    with pytest.raises(ValueError, match="wrong"), tables_locked(spark, tmp_path / "other", 5):
        raise ValueError("wrong")
    assert seen_from_outside(tmp_path / "other") == "free"

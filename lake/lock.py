"""A lock between processes for whoever changes the same tables. The JVM holds it, because the JVM is what commits."""

import contextlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lake.java import java_class

BETWEEN_TRIES = 0.05


class LockTimeout(Exception):
    """Another process changes the tables for longer than this one may wait."""


@contextlib.contextmanager
def tables_locked(
    spark: SparkSession, file: Path, wait_seconds: float, while_waiting: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Waits for the lock and holds it. A JVM that dies lets go of it; a Python process that dies before its JVM does
    not, so that no commit of that JVM falls into the time of the next holder."""
    deadline = time.monotonic() + wait_seconds

    def wait_on() -> None:
        if time.monotonic() > deadline:
            raise LockTimeout(f"Another process has held {file} for more than {wait_seconds:g} s. Try again later.")
        while_waiting()
        time.sleep(BETWEEN_TRIES)

    with _this_process(file, wait_on):
        file.parent.mkdir(parents=True, exist_ok=True)
        opened = java_class(spark, "java.io.RandomAccessFile")(str(file), "rw")
        try:
            while opened.getChannel().tryLock() is None:
                wait_on()
            yield
        except Exception:
            opened.close()
            raise
        except BaseException:
            # Interrupted, and the JVM may be about to commit: it holds the lock until it ends.
            _kept_open.append(opened)
            raise
        opened.close()


_kept_open: list[Any] = []
_threads: dict[Path, threading.Lock] = defaultdict(threading.Lock)


@contextlib.contextmanager
def _this_process(file: Path, wait_on: Callable[[], None]) -> Iterator[None]:
    """One thread at a time: where one closes the file, the operating system takes the lock from all of a process."""
    own = _threads[file]
    while not own.acquire(blocking=False):
        wait_on()
    try:
        yield
    finally:
        own.release()

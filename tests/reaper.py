"""Ends every process of a test session once pytest is gone, however it went: `reaper.py MARK` with a pipe as input."""

import contextlib
import os
import sys
import time

import psutil

MARK = "TW_TEST_SESSION"


def marked(mark: str) -> list[psutil.Process]:
    """The processes that inherited the mark, this one left out."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def kill_all(mark: str) -> None:
    for _ in range(20):
        processes = marked(mark)
        if not processes:
            return
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.1)


if __name__ == "__main__":
    sys.stdin.read()
    kill_all(sys.argv[1])

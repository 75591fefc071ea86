"""Chores are done again and again, one that fails keeps nobody from the others, and none is begun after the end."""

import threading
import time

import pytest

from streaming.chores import Chores


def test_chores_are_done_again_whatever_fails(caplog: pytest.LogCaptureFixture) -> None:
    done: list[str] = []
    third = threading.Event()

    def fails() -> None:
        done.append("fails")
        raise OSError("the lake is away")

    def works() -> None:
        done.append("works")
        if done.count("works") == 3:
            third.set()

    chores = Chores(between_seconds=0.01)
    chores.add("clicks", fails)
    chores.add("click_activity", works)
    chores.start()
    assert third.wait(10)
    chores.stop()
    time.sleep(0.1)
    count = len(done)
    time.sleep(0.1)
    assert len(done) == count and done.count("fails") >= 3
    assert "clicks could not be brought up to date between batches: the lake is away" in caplog.text

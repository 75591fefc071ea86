"""`python -m bench.beating SERVERS`: machines that beat once a second, each with pauses, until its input ends.

A line of input says how many machines there are from then on, and how likely each beat is to begin a pause.
"""

import contextlib
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Producer

from hub import HEARTBEATS

TICK_SECONDS = 0.02
# Some are shorter than the silence after which a machine is unhealthy, some hardly longer: false alarms would show.
PAUSE_SECONDS = (2.0, 10.0)


class Beating:
    """A process that beats for some machines; their number can be changed."""

    def __init__(self, servers: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.beating", servers], stdin=subprocess.PIPE, text=True, env=dict(os.environ)
        )

    def set(self, machines: int, pause_chance: float = 0.0) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{machines} {pause_chance}\n")
        self._process.stdin.flush()

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert self._process.wait(30) == 0


@contextlib.contextmanager
def beating(servers: str) -> Iterator[Beating]:
    running = Beating(servers)
    try:
        yield running
    finally:
        running.stop()


def name(machine: int) -> str:
    return f"machine-{machine:06}"


def _bodies(machines: int) -> list[tuple[bytes, bytes]]:
    names = [name(machine) for machine in range(machines)]
    sent_at = "2026-01-01T00:00:00.000Z"
    return [(one.encode(), json.dumps({"machine_name": one, "sent_at": sent_at}).encode()) for one in names]


class Machines:
    """Those that beat in this process."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._draw = random.Random(1)
        self._bodies: list[tuple[bytes, bytes]] = []
        self._silent_until: list[float] = []
        self._pause_chance = 0.0

    def set(self, machines: int, pause_chance: float) -> None:
        self._bodies = _bodies(machines)
        self._silent_until = (self._silent_until + [0.0] * machines)[:machines]
        self._pause_chance = pause_chance

    def beat(self, first: float, end: float, now: float) -> None:
        """Those whose moment in the second is from `first` up to `end`."""
        count, chance, draw = len(self._bodies), self._pause_chance, self._draw
        for machine in range(int(first * count), int(end * count)):
            if self._silent_until[machine] > now:
                continue
            if chance and draw.random() < chance:
                self._silent_until[machine] = now + draw.uniform(*PAUSE_SECONDS)
                continue
            key, body = self._bodies[machine]
            while True:
                try:
                    self._producer.produce(HEARTBEATS, body, key)
                    break
                except BufferError:
                    self._producer.poll(0.05)


def main(servers: str) -> None:
    options = {"bootstrap.servers": servers, "linger.ms": 5, "compression.type": "lz4", "acks": "1"}
    producer = Producer({**options, "queue.buffering.max.messages": 200_000, "log_level": 2})
    machines, ended = Machines(producer), threading.Event()
    wanted: list[tuple[int, float]] = []

    def listen() -> None:
        for line in sys.stdin:
            count, chance = line.split()
            wanted.append((int(count), float(chance)))
        ended.set()

    threading.Thread(target=listen, daemon=True).start()
    beaten = time.monotonic()
    while not ended.is_set():
        if wanted:
            machines.set(*wanted.pop(0))
        now = time.monotonic()
        first, end = beaten % 1.0, now % 1.0
        if int(now) > int(beaten):
            machines.beat(first, 1.0, now)
            first = 0.0
        machines.beat(first, end, now)
        beaten = now
        producer.poll(0)
        time.sleep(max(0.0, TICK_SECONDS - (time.monotonic() - now)))
    producer.flush(30)


if __name__ == "__main__":
    main(sys.argv[1])

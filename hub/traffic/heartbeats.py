"""Machines that beat once a second, fall silent now and then, and come back."""

import heapq
import json
import random
from collections.abc import Iterator
from datetime import datetime

from hub import HEARTBEATS
from hub.publisher import Record
from hub.traffic.planned import Planned, timestamp

MACHINE = "machine-"
BEAT_SECONDS = 1.0
PAUSE_CHANCE = 0.002
SHORTEST_PAUSE = 7.0
LONGEST_PAUSE = 40.0


class Heartbeats:
    """`machines` machines, so about as many records a second. Their names begin with `prefix`."""

    def __init__(self, machines: int, random_source: random.Random, prefix: str = MACHINE) -> None:
        self._random, self._prefix = random_source, prefix
        self._next = [(random_source.random() * BEAT_SECONDS, machine) for machine in range(machines)]
        heapq.heapify(self._next)

    def due(self, elapsed: float, now: datetime) -> Iterator[Planned]:
        while self._next and self._next[0][0] <= elapsed:
            at, machine = self._next[0]
            wait = BEAT_SECONDS
            if self._random.random() < PAUSE_CHANCE:
                wait = self._random.uniform(SHORTEST_PAUSE, LONGEST_PAUSE)
            heapq.heapreplace(self._next, (at + wait, machine))
            name = f"{self._prefix}{machine:05}"
            body = {"machine_name": name, "sent_at": timestamp(now)}
            yield Planned(Record(HEARTBEATS, name.encode(), json.dumps(body).encode()), about={"id": name})

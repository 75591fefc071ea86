"""Sends traffic in real time and keeps the ledger."""

import itertools
import math
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial

from hub import CLICKS, HEARTBEATS, INPUT_HUBS, SENSORS
from hub.ledger import LedgerWriter
from hub.publisher import NotDelivered, Outcome, Publisher
from hub.traffic.clicks import Clicks
from hub.traffic.faults import Faults
from hub.traffic.heartbeats import MACHINE, Heartbeats
from hub.traffic.planned import Planned, Source
from hub.traffic.sensors import Sensors

TICK_SECONDS = 0.02


def sources(hubs: Sequence[str], rate: float, random_source: random.Random, run: str | None = None) -> list[Source]:
    """Generators for these hubs that share `rate` records a second evenly. The machines of a named run are its own, so
    that its ledger has all their heartbeats."""
    machine = f"{MACHINE}{run}-" if run else MACHINE
    share = rate / len(hubs)
    made: dict[str, Callable[[], Source]] = {
        CLICKS: lambda: Clicks(share, random_source),
        HEARTBEATS: lambda: Heartbeats(max(1, round(share)), random_source, machine),
        SENSORS: lambda: Sensors(share, random_source),
    }
    return [made[hub]() for hub in INPUT_HUBS if hub in hubs]


class TrafficRun:
    """One run of traffic: what was acknowledged so far, and a way to end it early."""

    def __init__(self, publisher: Publisher, ledger: LedgerWriter | None) -> None:
        self.acknowledged = 0
        self.failed = 0
        self.stop_requested = False
        self._publisher = publisher
        self._ledger = ledger
        self._numbers = itertools.count(1)

    def run(
        self,
        traffic: Sequence[Source],
        faults: Faults,
        seconds: float = math.inf,
        progress: Callable[[float], None] = lambda elapsed: None,
    ) -> None:
        """Sends until the time is over or a stop is requested, then what is still held back, then waits for the hub.

        A hub that can't keep up slows the sending down; nothing that fell due meanwhile is left out.
        """
        start = time.monotonic()
        elapsed = 0.0
        while elapsed < seconds and not self.stop_requested:
            elapsed = min(time.monotonic() - start, seconds)
            now = datetime.now(UTC)
            for planned in itertools.chain.from_iterable(source.due(elapsed, now) for source in traffic):
                if self.stop_requested:  # a hub that can't keep up makes this turn long
                    break
                for actual in faults.apply(planned, elapsed):
                    self._send(actual)
            for held in faults.due(elapsed):
                self._send(held)
            self._publisher.serve(TICK_SECONDS)
            self._settle()
            progress(elapsed)
        for held in faults.due(math.inf):
            self._send(held)
        self._publisher.flush()
        self._settle()
        progress(elapsed)

    def _send(self, planned: Planned) -> None:
        number = next(self._numbers)
        record = planned.record
        if self._ledger is not None:
            record = replace(record, headers=(*record.headers, self._ledger.trace(number)))
        self._publisher.publish(record, partial(self._told, number, planned))

    def _told(self, number: int, planned: Planned, outcome: Outcome) -> None:
        if self._ledger is not None:
            self._ledger.add(number, outcome, planned.record.body, planned.kind, planned.about)
        elif isinstance(outcome, NotDelivered):
            self.failed += 1
        else:
            self.acknowledged += 1

    def _settle(self) -> None:
        if self._ledger is not None:
            self._ledger.commit()
            self.acknowledged, self.failed = self._ledger.acknowledged, self._ledger.failed

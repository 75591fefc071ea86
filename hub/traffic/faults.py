"""Makes good records bad, repeated or late, in stated shares."""

import heapq
import itertools
import json
import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from hub import CLICKS, HEARTBEATS, SENSORS
from hub.traffic.planned import BAD, DUPLICATE, LATE, Planned

LATEST_SECONDS = 45.0
DUPLICATE_WITHIN_SECONDS = 30.0
OVERSIZED_ARRAY = 1_500

Fields = dict[str, Any]


def _without(name: str) -> Callable[[Fields], Fields]:
    return lambda fields: {key: value for key, value in fields.items() if key != name}


def _with(name: str, value: Any) -> Callable[[Fields], Fields]:
    return lambda fields: {**fields, name: value}


BAD_BYTES: dict[str, Callable[[bytes], bytes | None]] = {
    "not_json": lambda body: b"this is no JSON",
    "cut_short": lambda body: body[: len(body) // 2],
    "invalid_utf8": lambda body: b"\xff\xfe" + body,
    "empty": lambda body: b"",
    "null_body": lambda body: None,
    "no_object": lambda body: b"[1, 2, 3]",
}
BAD_FIELDS: dict[str, dict[str, Callable[[Fields], Fields]]] = {
    CLICKS: {
        "missing_id": _without("eventID"),
        "wrong_type": _with("page_loading_seconds", "fast"),
        "negative_load": _with("page_loading_seconds", -1.5),
        "absurd_load": _with("page_loading_seconds", 1e12),
        "oversized_array": _with(
            "extraPayload", [{"relatedProductId": "product-0001", "relatedProductCategory": "shoes"}] * OVERSIZED_ARRAY
        ),
    },
    HEARTBEATS: {"missing_machine": _without("machine_name"), "wrong_type": _with("machine_name", 7)},
    SENSORS: {
        "missing_device": _without("device_id"),
        "wrong_type": _with("sensor_freq", "high"),
        "no_time": _with("event_time", "yesterday"),
    },
}


class Faults:
    """Takes what a source plans and gives what is to be sent, now or on a later call."""

    def __init__(self, random_source: random.Random, *, bad: float = 0, duplicate: float = 0, late: float = 0) -> None:
        self._random = random_source
        self._bad, self._duplicate, self._late = bad, duplicate, late
        self._held: list[tuple[float, int, Planned]] = []
        self._order = itertools.count()

    def apply(self, planned: Planned, elapsed: float) -> Iterator[Planned]:
        draw = self._random.random()
        if draw < self._bad:
            yield self._spoiled(planned)
        elif draw < self._bad + self._late:
            self._hold(replace(planned, kind=LATE), elapsed + self._random.uniform(1, LATEST_SECONDS))
        else:
            if draw < self._bad + self._late + self._duplicate:
                again = elapsed + self._random.uniform(0, DUPLICATE_WITHIN_SECONDS)
                self._hold(replace(planned, kind=DUPLICATE), again)
            yield planned

    def due(self, elapsed: float) -> Iterator[Planned]:
        """The late and the repeated ones whose time has come; all of them with an infinite `elapsed`."""
        while self._held and self._held[0][0] <= elapsed:
            yield heapq.heappop(self._held)[2]

    def _hold(self, planned: Planned, until: float) -> None:
        heapq.heappush(self._held, (until, next(self._order), planned))

    def _spoiled(self, planned: Planned) -> Planned:
        body, hub = planned.record.body or b"", planned.record.hub
        what = self._random.choice([*BAD_BYTES, *BAD_FIELDS[hub]])
        if what in BAD_BYTES:
            spoiled = BAD_BYTES[what](body)
        else:
            spoiled = json.dumps(BAD_FIELDS[hub][what](json.loads(body))).encode()
        return replace(planned, record=replace(planned.record, body=spoiled), kind=f"{BAD}{what}")

"""What a generator plans to send, and the generators' common form."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol

from hub.publisher import Record

GOOD = "good"
DUPLICATE = "duplicate"
LATE = "late"
BAD = "bad:"
"""Begins the kind of a spoiled record; what is wrong with it follows."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A record, the kind it is meant to be (good, duplicate, late, bad:…) and what is true about it."""

    record: Record
    kind: str = GOOD
    about: dict[str, Any] = field(default_factory=dict)


class Source(Protocol):
    """Produces the records of one hub as time goes on."""

    def due(self, elapsed: float, now: datetime) -> Iterator[Planned]:
        """What falls due from the last call up to `elapsed`, in seconds since the start."""


def timestamp(now: datetime) -> str:
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")

"""How a stream is, as the supervisor last saw it, in one small file for everything that shows it."""

import enum
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Self

from streaming.files import replace_text
from streaming.other_versions import known_fields


class HealthState(enum.StrEnum):
    STARTING = "starting"
    RUNNING = "running"
    CATCHING_UP = "catching up"
    STOPPING = "stopping"
    BACKING_OFF = "backing off"
    HUNG = "hung"
    CRASH_LOOPING = "crash-looping"
    STOPPED = "stopped by you"
    BLOCKED = "blocked"


@dataclass(frozen=True)
class StreamHealth:
    stream: str = ""
    state: HealthState = HealthState.STARTING
    sentence: str = ""
    looked_at: str = "1970-01-01T00:00:00+00:00"
    run_id: str | None = None
    attempt: int = 1
    """The how-manieth try in a row runs or comes next."""
    next_attempt_at: str | None = None
    unread_kept_until: str | None = None
    """While it does not run: when the hub may delete the first record that is not read yet."""
    counts: dict[str, int] = field(default_factory=dict)
    """What the supervisor did since the file was made, by kind."""

    def age_seconds(self, now: datetime) -> float:
        """How long ago the supervisor looked."""
        return (now - datetime.fromisoformat(self.looked_at)).total_seconds()

    def write(self, file: Path) -> None:
        replace_text(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None when there is none yet, or one that can't be read or has a state that this version does not know."""
        try:
            known = known_fields(cls, json.loads(file.read_text()))
            return cls(**{**known, "state": HealthState(known.get("state", HealthState.STARTING))})
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None

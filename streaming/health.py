"""How a stream is, as the supervisor last saw it, in one small file for everything that shows it."""

import enum
import json
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from streaming.files import replace_text


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
    stream: str
    state: HealthState
    sentence: str
    looked_at: str
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
        """None when there is none yet, or only one that another version of the program wrote."""
        try:
            fields: dict[str, Any] = json.loads(file.read_text())
            return cls(**{**fields, "state": HealthState(fields["state"])})
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

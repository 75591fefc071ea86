"""What a stream last did, in one small file that others read: written after every batch, replaced atomically."""

import json
import time
from dataclasses import asdict, dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Self

from processes.identity import boot_id
from streaming.files import replace_text
from streaming.other_versions import known_fields

WAITING = "waiting for its source"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"


@dataclass(frozen=True)
class QueryProgress:
    """The last batch of one query, and totals since the host started."""

    trigger_seconds: float = 0.0
    batch: int | None = None
    batch_at: str | None = None
    idle_at: str | None = None
    """When the query last looked for records and found none."""
    rows: int = 0
    batch_seconds: float = 0.0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    lag_records: int | None = None
    """Records in the hub that are not read yet; None until that is known."""
    lag_seconds: float | None = None
    """How long the oldest of them may have been waiting."""
    end_to_end_seconds: float | None = None
    """How old the newest record of the partition that is furthest behind was when its batch was done."""
    read_to: dict[str, int] = field(default_factory=dict)
    """For each partition of the hub the sequence number to read next; of a table `version` and `files`."""
    read_up_to: dict[str, str] = field(default_factory=dict)
    """For each partition the enqueued time of the newest record read."""
    caught_up_at: dict[str, str] = field(default_factory=dict)
    """For each partition when there was last nothing to read."""
    source_end: int = 0
    """How far the source reached when it was last asked: the sum of a hub's partitions' ends, or of a table's rows."""
    source_asked_at: str | None = None
    arriving_rows_per_second: float = 0.0
    """How fast the hub grows."""
    retention_seconds: float | None = None
    """How long the hub keeps a record, if that is known and limited."""
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None
    watermark_delay_seconds: float | None = None
    """How far the watermark was behind the clock at the end of the last batch."""
    echoed: bool = False
    """It is in real time, and pulses tell how far it is."""
    sign_clock: float = 0.0
    """`time.monotonic()` when the query last did something or found nothing to do."""
    total_rows: int = 0
    total_batches: int = 0

    def seconds_until_caught_up(self) -> float | None:
        """None when the source grows as fast as the query reads."""
        if not self.lag_records:
            return 0.0
        if self.lag_records <= self.rows:  # what a batch takes: how fast it reads does not show in less
            return self.trigger_seconds + self.batch_seconds
        gain = self.rows / max(self.batch_seconds, self.trigger_seconds, 0.001) - self.arriving_rows_per_second
        return self.lag_records / gain if gain > 0 else None

    def retention_left_seconds(self) -> float | None:
        """How long until the hub deletes the oldest record that is still unread, if nothing more were read."""
        if self.retention_seconds is None or self.lag_seconds is None:
            return None
        return self.retention_seconds - self.lag_seconds

    def unread_kept_until(self) -> datetime | None:
        """When the hub may delete the first record that is not read yet, however long nobody reads."""
        if self.retention_seconds is None or not self.read_up_to:
            return None
        oldest = min(datetime.fromisoformat(at) for at in self.read_up_to.values())
        return oldest + timedelta(seconds=self.retention_seconds)


@dataclass(frozen=True)
class StreamProgress:
    stream: str = ""
    phase: str = ""
    started_at: str = ""
    written_at: str = ""
    run_id: str | None = None
    note: str | None = None
    boot: str = ""
    alive_clock: float = 0.0
    """`time.monotonic()` of this boot when the host's Python and its JVM last answered together. It stands still while
    the machine sleeps, and does not jump when its clock is set."""
    hub_away: bool = False
    """The hub did not answer when it was last asked how far it reaches."""
    queries: dict[str, QueryProgress] = field(default_factory=dict)
    kept_before: dict[str, str] = field(default_factory=dict)
    """What `unread_kept_until` said of the host before this one: it holds for a query until this one has read more."""

    def unread_kept_until(self) -> dict[str, str]:
        """For each query until when its hub keeps what it has not read, where that is known."""
        now = {name: query.unread_kept_until() for name, query in self.queries.items()}
        return self.kept_before | {name: at.isoformat() for name, at in now.items() if at}

    def write(self, file: Path) -> None:
        replace_text(file, json.dumps(asdict(self)))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None when there is none yet, or one that can't be read.

        Another version of the program may have written it. Clocks that it does not tell are those of the file, so that
        nobody takes its host for silent.
        """
        try:
            told: dict[str, Any] = json.loads(file.read_text())
            clock = time.monotonic() - seconds_since_written(file)
            queries = {
                name: QueryProgress(**{"sign_clock": clock, **known_fields(QueryProgress, query)})
                for name, query in told.get("queries", {}).items()
            }
            known = {"boot": boot_id(), "alive_clock": clock, **known_fields(cls, told)}
            return cls(**{**known, "queries": queries})
        except (FileNotFoundError, ValueError, TypeError, AttributeError):
            return None


def seconds_since_written(file: Path) -> float:
    """By the machine's clock, so good enough only where the file itself does not tell."""
    return max(0.0, time.time() - file.stat().st_mtime)

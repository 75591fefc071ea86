"""What a stream last did, in one small file that others read: written after every batch, replaced atomically."""

import json
import os
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Self

WAITING = "waiting for the hub"
STARTING = "starting"
RUNNING = "running"
STOPPING = "stopping"


@dataclass(frozen=True)
class QueryProgress:
    """The last batch of one query, and totals since the host started."""

    trigger_seconds: float
    batch: int | None = None
    batch_at: str | None = None
    idle_at: str | None = None
    """When the query last looked for records and found none."""
    rows: int = 0
    batch_seconds: float = 0.0
    input_rows_per_second: float = 0.0
    processed_rows_per_second: float = 0.0
    lag_records: int = 0
    lag_seconds: float = 0.0
    """Age of the newest record read, while there are unread ones; 0 otherwise."""
    state_rows: int = 0
    state_bytes: int = 0
    watermark: str | None = None
    total_rows: int = 0
    total_batches: int = 0

    @property
    def last_sign(self) -> datetime | None:
        """When the query last finished a batch or found nothing to do."""
        times = [datetime.fromisoformat(at) for at in (self.batch_at, self.idle_at) if at]
        return max(times, default=None)


@dataclass(frozen=True)
class StreamProgress:
    stream: str
    phase: str
    started_at: str
    written_at: str
    run_id: str | None = None
    note: str | None = None
    queries: dict[str, QueryProgress] = field(default_factory=dict)

    def write(self, file: Path) -> None:
        """Readers see the old file or the new one, never a part."""
        file.parent.mkdir(parents=True, exist_ok=True)
        temporary = file.with_name(f"{file.name}.{os.getpid()}")
        temporary.write_text(json.dumps(asdict(self)))
        temporary.replace(file)

    @classmethod
    def read(cls, file: Path) -> Self | None:
        """None when there is none yet, or only one that another version of the program wrote."""
        try:
            fields: dict[str, Any] = json.loads(file.read_text())
            queries = {name: QueryProgress(**query) for name, query in fields.pop("queries").items()}
            return cls(**fields, queries=queries)
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return None

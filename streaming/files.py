"""Where a stream's files are in the run folder."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class StreamFiles:
    run_folder: Path
    stream: str

    @property
    def lease(self) -> Path:
        return self.run_folder / self.stream / "lease.json"

    @property
    def progress(self) -> Path:
        return self.run_folder / self.stream / "progress.json"

    @property
    def failure(self) -> Path:
        return self.run_folder / self.stream / "failure.json"

"""Where a stream's files are in the run folder, and how they are written."""

import os
from dataclasses import dataclass
from pathlib import Path


def refusal_file(run_folder: Path) -> Path:
    """Names the last run that the code server refused to launch, because it is about to end."""
    return run_folder / "code-server.refuses"


def replace_text(file: Path, text: str) -> None:
    """Readers see the old text or the new one, never a part."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(f"{file.name}.{os.getpid()}")
    temporary.write_text(text)
    temporary.replace(file)


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

    @property
    def health(self) -> Path:
        return self.run_folder / self.stream / "health.json"

    @property
    def revoked(self) -> Path:
        """Has the run that the supervisor ended last: a host of that run ends itself."""
        return self.run_folder / self.stream / "revoked"

"""Launches that a code server refused because it is about to end: sensors note them, and `tidewatch up` replaces it."""

import os
import tempfile
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from streaming.files import refusal_file

# Sensors are threads of one process.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True)
class Refusal:
    run_id: str
    at: datetime


def note_refusal(run_folder: Path, refusal: Refusal, now: datetime) -> None:
    """Only the newest is kept: the sensor of each stream tells its last one again at every look, however old it is."""
    with _ONE_AT_A_TIME:
        known = newest_refusal(run_folder)
        if known is not None and refusal.at <= known.at <= now:  # one of a later time is of a clock that was wrong
            return
        file = refusal_file(run_folder)
        file.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(prefix=f"{file.name}.", dir=file.parent)
        with os.fdopen(handle, "w") as opened:
            opened.write(refusal.run_id)
        os.utime(temporary, (refusal.at.timestamp(), refusal.at.timestamp()))
        os.replace(temporary, file)


def newest_refusal(run_folder: Path) -> Refusal | None:
    """The file names the run; its own time is when the launch was refused."""
    file = refusal_file(run_folder)
    try:
        at = datetime.fromtimestamp(file.stat().st_mtime, UTC)
        return Refusal(file.read_text(), at)
    except FileNotFoundError:
        return None

"""When `tidewatch up` replaces the code server. Its runs are processes of their own, and go on."""

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from orchestration.command.services import Service, say
from orchestration.new_code import TAKEN, wish_file
from orchestration.refusals import newest_refusal


class CodeServerKeeper:
    def __init__(self, service: Service, run_folder: Path, answers: Callable[[], bool]) -> None:
        self._service = service
        self._run_folder = run_folder
        self._answers = answers
        self._acted_on: set[str] = set()
        self._replaced_pid: int | None = None
        wish_file(run_folder).unlink(missing_ok=True)  # what has just started has the newest code

    def look_after(self) -> None:
        if self._has_refused():
            say("The code server launches no more runs; it is replaced")
            self._service.replace()
        self._take_up_new_code()

    def _has_refused(self) -> bool:
        """Once for each refused run, and only where it was this very server that refused."""
        refusal = newest_refusal(self._run_folder)
        if refusal is None or refusal.run_id in self._acted_on:
            return False
        # By its age, because the clock may have been set since.
        started_at = datetime.now(UTC) - timedelta(seconds=time.monotonic() - self._service.started_at)
        if refusal.at < started_at:
            return False
        self._acted_on.add(refusal.run_id)
        return True

    def _take_up_new_code(self) -> None:
        wish = wish_file(self._run_folder)
        if not wish.exists():
            self._replaced_pid = None
        elif self._replaced_pid is None:
            say("The code server is replaced by one with the newest code")
            self._replaced_pid = self._service.pid
            wish.write_text(TAKEN)
            self._service.replace()
        elif self._service.pid != self._replaced_pid and self._service.is_running and self._answers():
            wish.unlink(missing_ok=True)

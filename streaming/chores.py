"""Work of queries that has to be done even when no batch comes: looked after now and then by a thread of the host."""

import logging
import threading
from collections.abc import Callable

log = logging.getLogger("tidewatch")

BETWEEN_SECONDS = 30.0

Chore = Callable[[], None]


class Chores:
    """Each takes the locks that its query's batches take, and leaves nothing half done when the host ends."""

    def __init__(self, between_seconds: float = BETWEEN_SECONDS) -> None:
        self._between = between_seconds
        self._chores: dict[str, Chore] = {}
        self._stop = threading.Event()

    def add(self, query: str, chore: Chore) -> None:
        self._chores[query] = chore

    def start(self) -> None:
        if self._chores:
            threading.Thread(target=self._work, name="chores", daemon=True).start()

    def stop(self) -> None:
        """None is begun any more."""
        self._stop.set()

    def _work(self) -> None:
        while not self._stop.wait(self._between):
            for query, chore in self._chores.items():
                if self._stop.is_set():
                    return
                try:
                    chore()
                except Exception as error:
                    # The query's next batch does the same, and what can't be done fails there.
                    log.warning("%s could not be brought up to date between batches: %s", query, error)

"""Asks the hub how far it reaches while queries are busy or stuck, so that their lag is known all the time."""

import logging
import threading
from collections.abc import Mapping
from typing import Protocol

from hub.connection import HubConnection
from hub.topics import HubEnds, HubUnreachable

log = logging.getLogger("tidewatch")

ASK_SECONDS = 5.0


class Listener(Protocol):
    def hub_reaches(self, query: str, ends: dict[int, int]) -> None: ...

    def hub_answers(self, answers: bool) -> None: ...


def watch_hubs(connection: HubConnection, hubs: Mapping[str, tuple[str, int]], told: Listener) -> threading.Thread:
    """Tells, for each query, where the partitions of its hub end. `hubs` has a query's hub and its partitions."""
    thread = threading.Thread(target=_watch, args=(HubEnds(connection), hubs, told), name="hub-watch", daemon=True)
    thread.start()
    return thread


def _watch(ends: HubEnds, hubs: Mapping[str, tuple[str, int]], told: Listener) -> None:
    pause, answers = threading.Event(), True
    while not pause.wait(ASK_SECONDS):
        try:
            for query, (hub, partitions) in hubs.items():
                told.hub_reaches(query, ends.ask(hub, partitions))
            if not answers:
                log.info("The hub answers again")
                told.hub_answers(True)
            answers = True
        except HubUnreachable as error:
            if answers:
                log.warning("%s Its queries wait for it.", error)
            told.hub_answers(False)
            answers = False
        except Exception:
            log.exception("The hub can't be asked how far it reaches; tried again")

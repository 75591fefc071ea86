"""`tidewatch traffic`: sends until the time is over or Ctrl-C, with a progress bar on a terminal."""

import contextlib
import math
import random
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import click

from hub import INPUT_HUBS
from hub.connection import HubConnection
from hub.ledger import LedgerError, LedgerWriter
from hub.publisher import KafkaPublisher, PublishError
from hub.topics import HubUnreachable, create_missing_topics
from hub.traffic.faults import Faults
from hub.traffic.run import TrafficRun, sources
from settings import Settings

HUB_WAIT_SECONDS = 60
REPORT_SECONDS = 10


class TrafficError(Exception):
    """Traffic can't be sent; the message says why."""


@dataclass(frozen=True)
class TrafficPlan:
    hub: str
    rate: float
    seconds: float | None
    ledger: Path | None
    bad: float
    duplicate: float
    late: float
    seed: int | None


def send(settings: Settings, plan: TrafficPlan) -> None:
    hubs = INPUT_HUBS if plan.hub == "all" else (plan.hub,)
    connection = HubConnection.from_settings(settings.hub)
    _wait_for_topics(settings, connection, hubs)
    random_source = random.Random(plan.seed)
    faults = Faults(random_source, bad=plan.bad, duplicate=plan.duplicate, late=plan.late)
    with contextlib.ExitStack() as stack:
        try:
            ledger = stack.enter_context(LedgerWriter(plan.ledger, datetime.now(UTC))) if plan.ledger else None
            publisher = stack.enter_context(KafkaPublisher(connection))
            run = TrafficRun(publisher, ledger)
            _stop_on_signals(run)
            progress = stack.enter_context(_progress(run, plan.seconds))
            traffic = sources(hubs, plan.rate, random_source, ledger.run if ledger else None)
            run.run(traffic, faults, plan.seconds or math.inf, progress)
        except (LedgerError, PublishError) as error:
            raise TrafficError(str(error)) from error
    click.echo(f"{run.acknowledged:,} records acknowledged, {run.failed:,} not", err=True)
    if run.failed:
        raise TrafficError("Not every record was acknowledged: check that the hub runs and has room.")


def _wait_for_topics(settings: Settings, connection: HubConnection, hubs: tuple[str, ...]) -> None:
    deadline = time.monotonic() + HUB_WAIT_SECONDS
    while True:
        try:
            create_missing_topics(connection, settings.hub, hubs)
            return
        except HubUnreachable as error:
            if time.monotonic() > deadline:
                raise TrafficError(str(error)) from error
            click.echo(f"Waiting for the hub: {error}", err=True)


def _stop_on_signals(run: TrafficRun) -> None:
    def request_stop(*_: object) -> None:
        run.stop_requested = True

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, request_stop)


@contextlib.contextmanager
def _progress(run: TrafficRun, seconds: float | None) -> Iterator[Callable[[float], None]]:
    """A bar on a terminal, else a line now and then."""
    if seconds is not None and sys.stderr.isatty():
        with click.progressbar(length=round(seconds), file=sys.stderr, label="traffic") as bar:

            def advance(elapsed: float) -> None:
                bar.label = f"{run.acknowledged:,} records"
                bar.update(int(elapsed) - bar.pos)

            yield advance
        return
    reported = 0.0

    def report(elapsed: float) -> None:
        nonlocal reported
        if elapsed - reported >= REPORT_SECONDS:
            reported = elapsed
            click.echo(f"{elapsed:.0f} s: {run.acknowledged:,} records acknowledged, {run.failed:,} not", err=True)

    yield report

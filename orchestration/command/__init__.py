"""The `tidewatch` command. Each call imports what it needs when it is called, so that all of them start fast."""

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from bench import BENCHES
from settings import Settings, SettingsError, load_settings

HUB_CHOICES = click.Choice(["clicks", "heartbeats", "sensors", "all"])
SHARE = click.FloatRange(0, 1)
POSITIVE = click.FloatRange(min=0, min_open=True)
FILE = click.Path(path_type=Path, dir_okay=False)


def settings_or_exit() -> Settings:
    try:
        return load_settings()
    except SettingsError as error:
        raise click.ClickException(str(error)) from None


def _leave(code: int) -> NoReturn:
    """At once: threads that read tables may still be ending, and on a busy machine that aborted the process with what
    it had told still right."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@click.group()
def tidewatch() -> None:
    """A streaming lakehouse that looks after itself."""


@tidewatch.command()
@click.option("--no-traffic", is_flag=True, help="Send no demo traffic.")
def up(no_traffic: bool) -> None:
    """Run everything; Ctrl-C stops it in order."""
    from orchestration.command.up import UpError, run_everything

    try:
        run_everything(settings_or_exit(), traffic=not no_traffic)
    except UpError as error:
        raise click.ClickException(str(error)) from None


@tidewatch.command()
def doctor() -> None:
    """Check Java, jars, ports, home, hub and lake, each with its cure."""
    from orchestration.command.doctor import examine

    findings = list(examine(settings_or_exit()))
    for finding in findings:
        mark = click.style("ok  ", fg="green") if finding.ok else click.style("FAIL", fg="red")
        click.echo(f"{mark} {finding.what:<8} {finding.said}")
    sys.exit(0 if all(finding.ok for finding in findings) else 1)


@tidewatch.command()
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
def status(as_json: bool) -> None:
    """Show every stream: state, age of the last batch, rows a second, lag, state size."""
    from orchestration.command.status import (
        as_table,
        machine_counts,
        machines_line,
        stream_states,
        to_json,
    )

    settings = settings_or_exit()
    if not settings.run_folder.exists():
        raise click.ClickException(
            f"There is no Tidewatch at {settings.home}: call this where `make up` was called, or set TIDEWATCH_HOME."
        )
    states = stream_states(settings)
    if as_json:
        click.echo(to_json(states, machine_counts(settings)))
    else:
        click.echo(as_table(states))
        if machines := machines_line(settings):
            click.echo(machines)
    _leave(0)


@tidewatch.command()
def metrics() -> None:
    """Serve the figures to Prometheus until Ctrl-C, where `tidewatch up` does not run."""
    from orchestration.metrics import serve_metrics

    settings = settings_or_exit()
    try:
        server, thread = serve_metrics(settings)
    except OSError as error:
        raise click.ClickException(
            f"{settings.metrics.host}:{settings.metrics.port} can't be used ({error.strerror}): stop the program that "
            "has it, or set TIDEWATCH_METRICS_PORT."
        ) from None
    click.echo(f"http://{settings.metrics.host}:{settings.metrics.port}/metrics")
    try:
        thread.join()
    except KeyboardInterrupt:
        server.shutdown()


@tidewatch.command()
@click.argument("hub", type=HUB_CHOICES)
@click.option("--rate", type=POSITIVE, default=60, show_default=True, help="Records a second, all hubs together.")
@click.option("--seconds", type=POSITIVE, help="How long; without it until Ctrl-C.")
@click.option("--ledger", type=FILE, help="Write a line for each acknowledged record here.")
@click.option("--bad-fraction", type=SHARE, default=0, show_default=True, help="Share of malformed records.")
@click.option("--duplicate-fraction", type=SHARE, default=0, show_default=True, help="Share of records sent twice.")
@click.option("--late-fraction", type=SHARE, default=0, show_default=True, help="Share held back by up to 45 s.")
@click.option("--seed", type=int, help="Repeat the same records.")
def traffic(
    hub: str,
    rate: float,
    seconds: float | None,
    ledger: Path | None,
    bad_fraction: float,
    duplicate_fraction: float,
    late_fraction: float,
    seed: int | None,
) -> None:
    """Send realistic traffic to the hub."""
    from orchestration.command.traffic import TrafficError, TrafficPlan, send

    if bad_fraction + duplicate_fraction + late_fraction > 1:
        raise click.UsageError("The fractions add up to more than 1.")
    plan = TrafficPlan(hub, rate, seconds, ledger, bad_fraction, duplicate_fraction, late_fraction, seed)
    try:
        send(settings_or_exit(), plan)
    except TrafficError as error:
        raise click.ClickException(str(error)) from None


@tidewatch.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
def machine(name: str, as_json: bool) -> None:
    """What the heartbeat stream remembers of a machine, from its checkpoint."""
    from orchestration.command.machine import MachineError, as_report, look_up, to_json

    try:
        found = look_up(settings_or_exit(), name)
    except MachineError as error:
        raise click.ClickException(str(error)) from None
    click.echo(to_json(found) if as_json else as_report(found))


@tidewatch.group()
def model() -> None:
    """The models that judge page load times."""


@model.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
def list_models(as_json: bool) -> None:
    """All models, the oldest first; a star marks the current one."""
    from orchestration.command.model import as_report, models, to_json

    found = models(settings_or_exit())
    click.echo(to_json(found) if as_json else as_report(found))


@model.command()
@click.argument("version")
@click.option("--why", required=True, help="The reason, for those who look later.")
def promote(version: str, why: str) -> None:
    """Make a model current; no stream is restarted."""
    from orchestration.command.model import ModelError
    from orchestration.command.model import promote as promote_model

    try:
        click.echo(promote_model(settings_or_exit(), version, why))
    except ModelError as error:
        raise click.ClickException(str(error)) from None


@model.command("roll-back")
@click.option("--why", required=True, help="The reason, for those who look later.")
def roll_back(why: str) -> None:
    """Make current what was so before the present one."""
    from orchestration.command.model import ModelError
    from orchestration.command.model import roll_back as roll_model_back

    try:
        click.echo(roll_model_back(settings_or_exit(), why))
    except ModelError as error:
        raise click.ClickException(str(error)) from None


@tidewatch.command("accept-loss")
@click.argument("stream")
@click.argument("query")
def accept_loss(stream: str, query: str) -> None:
    """Go on after the hub lost unread records: pass over them, and say which."""
    from orchestration.command.loss import LossError, accept

    try:
        click.echo(accept(settings_or_exit(), stream, query))
    except LossError as error:
        raise click.ClickException(str(error)) from None


@tidewatch.command()
@click.argument("ledger", type=FILE)
@click.option("--json", "as_json", is_flag=True, help="Print it for programs.")
@click.option(
    "--wait", "wait_seconds", type=float, default=120, show_default=True, help="Seconds for records on their way."
)
def audit(ledger: Path, as_json: bool, wait_seconds: float) -> None:
    """Hold a ledger against the tables; exit 1 unless nothing is lost, duplicated, changed or unexplained."""
    from hub.ledger import LedgerError
    from orchestration.command.audit import as_report, audit_ledger, to_json

    try:
        result = audit_ledger(settings_or_exit(), ledger, wait_seconds, lambda text: click.echo(text, err=True))
    except LedgerError as error:
        raise click.ClickException(str(error)) from None
    click.echo(to_json(result) if as_json else as_report(result))
    _leave(0 if result.clean else 1)


@tidewatch.command()
@click.argument("name", type=click.Choice([*BENCHES, "all"]))
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Measurements of each side.")
@click.option("--json", "json_file", type=FILE, help="Write the figures here.")
def bench(name: str, runs: int, json_file: Path | None) -> None:
    """Measure the system in a temporary home; exit 1 when a figure misses its bar."""
    import importlib
    import json

    results = []
    for each in BENCHES if name == "all" else (name,):
        results.append(importlib.import_module(f"bench.{each}").measure(runs, click.echo))
        click.echo("\n".join(results[-1].lines()))
    if json_file is not None:
        written = [result.to_dict() for result in results]
        json_file.write_text(json.dumps(written if name == "all" else written[0], indent=2))
    sys.exit(0 if all(result.ok for result in results) else 1)

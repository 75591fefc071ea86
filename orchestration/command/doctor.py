"""`tidewatch doctor`: what this machine has and lacks, a line each with its cure."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hub import INPUT_HUBS
from hub.connection import HubConnection
from hub.topics import HUBS_TIME, TIMESTAMP_TYPE, HubUnreachable, partition_counts, stamped_by_senders
from processes.identity import ProcessIdentity
from processes.java import JavaMissing, java_program, java_version
from processes.ports import LOOPBACK, why_taken
from settings import Settings, SettingsError


@dataclass(frozen=True)
class Finding:
    what: str
    ok: bool
    said: str


def examine(settings: Settings) -> Iterator[Finding]:
    yield _java()
    yield from _jars(settings)
    running = _broker_runs(settings)
    yield _writable("home", settings.home, settings, "TIDEWATCH_HOME")
    if "://" in settings.lake_root:
        yield Finding("lake", True, f"{settings.lake_root} (not looked at from here)")
    else:
        yield _writable("lake", Path(settings.lake_root), settings, "TIDEWATCH_LAKE")
    if not settings.hub.embedded or running:
        yield from _hub(settings)
    else:
        yield Finding("hub", True, "embedded, not running now")
        yield _port(settings.hub.port, "TIDEWATCH_HUB_PORT")
        yield _port(settings.hub.controller_port, "TIDEWATCH_HUB_CONTROLLER_PORT")
    if not _up_runs(settings):
        yield _port(settings.dagster.port, "TIDEWATCH_DAGSTER_PORT", settings.dagster.host)
        yield _port(settings.metrics.port, "TIDEWATCH_METRICS_PORT", settings.metrics.host)


def _java() -> Finding:
    try:
        java = java_program()
        return Finding("java", True, f"{java_version(java)} at {java}")
    except JavaMissing as missing:
        return Finding("java", False, str(missing))


def _jars(settings: Settings) -> Iterator[Finding]:
    for kind, sign in (("spark", "delta-spark_*.jar"), ("broker", "kafka_*.jar")):
        found = any((settings.jars / kind).glob(sign))
        said = f"{kind} jars in {settings.jars}" if found else f"No {kind} jars in {settings.jars}: run `make setup`."
        yield Finding("jars", found, said)


def _writable(what: str, folder: Path, settings: Settings, variable: str) -> Finding:
    place = folder
    while not place.exists():
        place = place.parent
    if not place.is_dir() or not os.access(place, os.W_OK | os.X_OK):
        return Finding(what, False, f"{folder} can't be written: correct the rights of {place}, or set {variable}.")
    free_mb = shutil.disk_usage(place).free // 2**20
    if free_mb < settings.stream.disk_floor_mb:
        return Finding(what, False, f"Only {free_mb:,} MB are free in {folder}: free some space, or set {variable}.")
    return Finding(what, True, f"{folder}, {free_mb:,} MB free")


def _broker_runs(settings: Settings) -> bool:
    file = settings.hub_folder / "broker.json"
    identity = ProcessIdentity.from_json(file.read_text()) if file.exists() else None
    return identity is not None and identity.is_alive()


def _hub(settings: Settings) -> Iterator[Finding]:
    try:
        connection = HubConnection.from_settings(settings.hub)
        counts = partition_counts(connection)
    except (HubUnreachable, SettingsError) as error:
        yield Finding("hub", False, str(error))
        return
    there = [hub for hub in INPUT_HUBS if hub in counts]
    known = ", ".join(f"{hub} ({counts[hub]} partitions)" for hub in there)
    missing = ", ".join(hub for hub in INPUT_HUBS if hub not in counts)
    parts = [part for part in (known, f"to be created: {missing}" if missing else "") if part]
    yield Finding("hub", True, f"{connection.servers}: {'; '.join(parts)}")
    for hub in stamped_by_senders(connection, there):
        yield Finding(
            "hub",
            False,
            f"{hub} has the times of its senders' clocks, so that a wrong one changes what is told: call "
            f"`kafka-configs --bootstrap-server {connection.servers} --alter --entity-type topics --entity-name {hub} "
            f"--add-config {TIMESTAMP_TYPE}={HUBS_TIME}`.",
        )


def _up_runs(settings: Settings) -> bool:
    lock = settings.run_folder / "up.lock"
    if not lock.exists():
        return False
    with lock.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _port(port: int, variable: str, host: str = LOOPBACK) -> Finding:
    if reason := why_taken(port, host):
        return Finding("port", False, f"{port} can't be used ({reason}): free it, or set {variable}.")
    return Finding("port", True, f"{port} is free")

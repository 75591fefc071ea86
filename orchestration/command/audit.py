"""`tidewatch audit`: a ledger against bronze, silver and quarantine."""

import json
import math
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

from hub import CLICKS, HEARTBEATS, SENSOR_ALERTS, SENSORS
from hub.alerts import alerts_since
from hub.connection import HubConnection
from hub.ledger import TRACE_HEADER, Entry, LedgerContents, digest, read_ledger
from hub.topics import HubUnreachable
from hub.traffic.planned import BAD
from lake.audit import (
    Acknowledged,
    Place,
    TableAudit,
    add_example,
    audit_bronze,
    places_in_bronze,
    told_place,
)
from lake.click_audit import SentClick, audit_clicks, click_places
from lake.machine_audit import Patience, audit_machines, audit_quarantine
from lake.sensor_audit import (
    MICROS,
    Reading,
    WindowRules,
    audit_readings,
    audit_samples,
    micros,
    reading_places,
)
from lake.tables import bronze_table
from settings import Settings
from streaming.sensor_rules import judge

LOOK_SECONDS = 2
SAY_SECONDS = 15
BATCH_SECONDS = 20
# What a killed sender had sent without an acknowledgement is not in its ledger.
UNACKNOWLEDGED_MS = 10_000


@dataclass(frozen=True)
class AuditResult:
    ledger_closed: bool
    acknowledged: int
    tables: list[TableAudit]
    waited_in_vain: bool = False
    """Records were still missing when the time for rows on their way was over."""

    @property
    def clean(self) -> bool:
        """A ledger without a record proves nothing, so it is not clean."""
        return bool(self.tables) and all(table.clean for table in self.tables)


def audit_ledger(settings: Settings, file: Path, wait_seconds: float, say: Callable[[str], None]) -> AuditResult:
    """Waits for acknowledged records that have not arrived yet, then compares. `say` is told what it waits for."""
    contents = read_ledger(file)
    by_hub: dict[str, list[Acknowledged]] = defaultdict(list)
    for entry in contents.entries:
        by_hub[entry.hub].append(Acknowledged(entry.number, entry.partition, entry.sequence_number, entry.digest))
    wait = Wait(time.monotonic() + wait_seconds, say)
    in_bronze = {
        hub: records
        for hub, records in sorted(by_hub.items())
        if "bronze" in settings.supervisor.streams or places_in_bronze(bronze_table(hub), settings.lake_root)
    }
    for hub, records in in_bronze.items():
        wanted = {(record.partition, record.sequence_number) for record in records}
        wait.for_all(wanted, partial(places_in_bronze, bronze_table(hub), settings.lake_root), f"bronze/{hub}")

    def may_be_unconfirmed(number: int) -> bool:
        return number in contents.unconfirmed or not contents.closed

    def number_of(headers: list[tuple[str, bytes | None]]) -> int | None:
        return _number(contents, headers)

    tables = [
        audit_bronze(bronze_table(hub), settings.lake_root, records, digest, number_of, may_be_unconfirmed)
        for hub, records in in_bronze.items()
    ]
    clicks = [_sent(entry) for entry in contents.entries if entry.hub == CLICKS]
    if clicks and ("silver" in settings.supervisor.streams or click_places(settings.lake_root)):
        wait.for_all({click.place for click in clicks}, partial(click_places, settings.lake_root), "silver")
        of_bronze = partial(places_in_bronze, bronze_table(CLICKS), settings.lake_root)
        horizon = timedelta(minutes=settings.silver.watermark_minutes)
        audit = partial(audit_clicks, settings.lake_root, clicks, of_bronze, horizon)
        tables.append(wait.until_clean(audit, "silver has a batch in all of its tables"))
    if "heartbeat" in settings.supervisor.streams and HEARTBEATS in by_hub:
        tables += _audit_machines(settings, contents, wait)
    if "sensors" in settings.supervisor.streams and SENSORS in by_hub:
        tables += _audit_sensors(settings, contents, wait)
    return AuditResult(contents.closed, len(contents.entries), tables, wait.in_vain)


def _audit_machines(settings: Settings, contents: LedgerContents, wait: "Wait") -> list[TableAudit]:
    chosen, root = settings.heartbeat, settings.lake_root
    patience = Patience(round(chosen.silence_seconds * 1000), round(chosen.retirement_hours * 3_600_000))
    beats: dict[str, list[int]] = defaultdict(list)
    good, spoiled = set(), set()
    for entry in contents.entries:
        if entry.hub == HEARTBEATS and entry.kind.startswith(BAD):
            spoiled.add((entry.partition, entry.sequence_number))
        elif entry.hub == HEARTBEATS:
            good.add((entry.partition, entry.sequence_number))
            beats[entry.about["id"]].append(entry.enqueued_ms)
    for about in contents.unconfirmed.values():  # the hub may have them, and nobody knows when
        beats.pop(about.get("id", ""), None)
    last = max((times[-1] for times in beats.values()), default=0)
    # The clock of silence goes on beyond the last heartbeat only while pulses do.
    told_up_to = last + patience.silence if chosen.pulse_seconds else last - patience.silence
    of_machines = partial(
        audit_machines,
        root,
        beats,
        patience,
        told_up_to=told_up_to,
        sure_up_to=math.inf if contents.closed else last - UNACKNOWLEDGED_MS,
    )
    of_quarantine = partial(audit_quarantine, HEARTBEATS, root, good, spoiled)
    return [
        wait.until_clean(of_machines, "every change of a machine's health is in silver"),
        wait.until_clean(of_quarantine, "every spoiled heartbeat is in quarantine"),
    ]


def _audit_sensors(settings: Settings, contents: LedgerContents, wait: "Wait") -> list[TableAudit]:
    chosen, root = settings.sensors, settings.lake_root
    entries = [entry for entry in contents.entries if entry.hub == SENSORS]
    spoiled = {(entry.partition, entry.sequence_number) for entry in entries if entry.kind.startswith(BAD)}
    anomalous = judge(chosen)
    sent = [_sent_reading(entry, anomalous) for entry in entries if not entry.kind.startswith(BAD)]
    good = {reading.place for reading in sent}
    wait.for_all(good, partial(reading_places, root), "silver/sensor_readings")
    rules = WindowRules(
        chosen.window_seconds * MICROS,
        chosen.slide_seconds * MICROS,
        chosen.lateness_seconds * MICROS,
        chosen.per_device,
    )
    of_samples = partial(
        audit_samples,
        root,
        rules,
        first=min((reading.event_time for reading in sent), default=0),
        # Each partition's newest record closes what is over by then.
        closed_by=min(_newest_of_each_partition(entries), default=0) - rules.lateness,
    )
    of_alerts = partial(_audit_alerts, settings, sent, spoiled)
    return [
        wait.until_clean(partial(audit_readings, root, sent, spoiled), "every reading is in silver"),
        wait.until_clean(partial(audit_quarantine, SENSORS, root, good, spoiled), "spoiled readings are in quarantine"),
        wait.until_clean(of_samples, "every window that is over is sampled"),
        wait.until_clean(of_alerts, "every anomaly is told on the hub"),
    ]


def _audit_alerts(settings: Settings, sent: list[Reading], spoiled: set[Place]) -> TableAudit:
    """Alerts may be told twice, with the same id, but none may be missing, and none be of another record."""
    anomalies = [reading for reading in sent if reading.anomalous]
    normal = spoiled | {reading.place for reading in sent if not reading.anomalous}
    audit = TableAudit(f"hub/{SENSOR_ALERTS}", len(anomalies))
    if not anomalies:
        return audit
    first = datetime.fromtimestamp(min(reading.enqueued for reading in anomalies) / MICROS, UTC)
    try:
        alerts = alerts_since(HubConnection.from_settings(settings.hub), first)
    except HubUnreachable as error:
        audit.lost = len(anomalies)
        add_example(audit, f"lost, as far as is known: {error}")
        return audit
    told = {alert.place: alert.alert_id for alert in alerts}
    for reading in anomalies:
        if reading.place not in told:
            audit.lost += 1
            add_example(audit, f"lost: the alert of {told_place(reading.place)}")
    for alert in alerts:
        if told[alert.place] != alert.alert_id:
            audit.changed += 1
            add_example(audit, f"changed: {told_place(alert.place)} has alerts of several ids")
        if alert.place in normal:
            audit.unexplained += 1
            add_example(audit, f"unexplained: {told_place(alert.place)} is no anomaly")
    return audit


def _sent_reading(entry: Entry, anomalous: Callable[[str, float], bool]) -> Reading:
    device, frequency = entry.about["id"], entry.about["frequency"]
    return Reading(
        micros(datetime.fromisoformat(entry.about["at"])),
        device,
        frequency,
        (entry.partition, entry.sequence_number),
        entry.enqueued_ms * 1000,
        anomalous(device, frequency),
    )


def _newest_of_each_partition(entries: list[Entry]) -> list[int]:
    newest: dict[int, int] = {}
    for entry in entries:
        newest[entry.partition] = max(newest.get(entry.partition, 0), entry.enqueued_ms * 1000)
    return list(newest.values())


def as_report(result: AuditResult) -> str:
    lines = [f"{'table':<24} {'acknowledged':>12} {'lost':>8} {'duplicated':>10} {'changed':>8} {'unexplained':>11}"]
    for table in result.tables:
        lines.append(
            f"{table.table:<24} {table.acknowledged:>12,} {table.lost:>8,} {table.duplicated:>10,} "
            f"{table.changed:>8,} {table.unexplained:>11,}"
        )
        lines += [f"  {example}" for example in table.examples]
        if table.unconfirmed:
            lines.append(f"  {table.unconfirmed:,} more rows are of records that were sent without an acknowledgement")
    if result.waited_in_vain:
        lines.append(
            "Not all records were there in time. If `tidewatch status` says that a stream is behind or does not run, "
            "those counted as lost may still come: audit again, or with a longer --wait."
        )
    if not result.ledger_closed:
        lines.append("The ledger was not closed: its writer was killed or still runs.")
    if not result.tables:
        lines.append("The ledger has no acknowledged record, so there is nothing to hold against the tables.")
    lines.append("clean" if result.clean else "NOT CLEAN")
    return "\n".join(lines)


def to_json(result: AuditResult) -> str:
    totals = {
        name: sum(getattr(table, name) for table in result.tables)
        for name in ("lost", "duplicated", "changed", "unexplained", "unconfirmed")
    }
    return json.dumps(
        {
            "clean": result.clean,
            "acknowledged": result.acknowledged,
            **totals,
            "waited_in_vain": result.waited_in_vain,
            "ledger_closed": result.ledger_closed,
            "tables": [asdict(table) for table in result.tables],
        },
        indent=2,
    )


def _sent(entry: Entry) -> SentClick:
    return SentClick(
        entry.number,
        (entry.partition, entry.sequence_number),
        None if entry.kind.startswith(BAD) else entry.about["id"],
        datetime.fromtimestamp(entry.enqueued_ms / 1000, UTC),
    )


class Wait:
    def __init__(self, deadline: float, say: Callable[[str], None]) -> None:
        self._deadline, self._say = deadline, say
        self.in_vain = False

    def for_all(self, wanted: set[Place], found: Callable[[], set[Place]], where: str) -> None:
        said = 0.0
        while missing := len(wanted - found()):
            if time.monotonic() >= self._deadline:
                self.in_vain = True
                return
            if time.monotonic() - said >= SAY_SECONDS:
                self._say(f"Waiting for {missing:,} records on their way to {where}")
                said = time.monotonic()
            time.sleep(LOOK_SECONDS)

    def until_clean(self, audit: Callable[[], TableAudit], when: str) -> TableAudit:
        """What is found of a batch in work is gone when it is done; what is wrong stays."""
        deadline = max(self._deadline, time.monotonic() + BATCH_SECONDS)
        found = audit()
        if not found.clean and not self.in_vain:
            self._say(f"Looking again, until {when}")
        while not found.clean and not self.in_vain and time.monotonic() < deadline:
            time.sleep(LOOK_SECONDS)
            found = audit()
        return found


def _number(contents: LedgerContents, headers: list[tuple[str, bytes | None]]) -> int | None:
    for name, value in headers:
        if name == TRACE_HEADER and value is not None:
            run, _, number = value.partition(b"/")
            if run == contents.run.encode() and number.isdigit():
                return int(number)
    return None

"""What is checked of sensors: that alerts on the hub and anomalies in silver are the same, that every record is
accounted for, and that few readings come late."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

from dagster import AssetCheckResult, AssetChecksDefinition, AssetCheckSeverity, asset_check

from assets.streams import table_key
from lake.audit import told_place
from lake.sensor_books import Agreement
from lake.sensor_entries import sensor_books
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES
from lake.tables import Table
from settings import Settings, load_settings
from streaming.alert_agreement import NobodyKnows, alert_agreement

RECENT = timedelta(hours=1)
# Alerts may be late for a while after a crash, while what came before is told again.
PATIENCE = timedelta(minutes=2)
EXAMPLES = 5


def sensor_checks() -> list[AssetChecksDefinition]:
    return [
        _check(
            SENSOR_SAMPLES,
            "alerts_agree",
            "Every anomaly of silver was told on the hub, and every alert's reading is in silver and sampled",
            alerts_agree,
        ),
        _check(
            SENSOR_READINGS,
            "books_balanced",
            "Every record of bronze is a reading, in quarantine or a pulse, once",
            books_balanced,
        ),
        _check(SENSOR_READINGS, "few_late", "Few readings come too late for a window", few_late),
    ]


def _check(
    table: Table, name: str, description: str, look: Callable[[Settings, datetime], AssetCheckResult]
) -> AssetChecksDefinition:
    @asset_check(asset=table_key(table.name), name=name, description=description)
    def check() -> AssetCheckResult:
        return look(load_settings(), datetime.now(UTC))

    return check


def books_balanced(settings: Settings, now: datetime) -> AssetCheckResult:
    found = sensor_books(settings.lake_root, now - RECENT)
    wrong = {"are in bronze alone": found.missing, "are there twice, or not in bronze": found.surplus}
    problems = [
        f"{len(places):,} {where} ({', '.join(map(told_place, places[:EXAMPLES]))})"
        for where, places in wrong.items()
        if places
    ]
    return AssetCheckResult(
        passed=found.balanced,
        severity=AssetCheckSeverity.ERROR,
        description=f"Of the records of the last hour {'; '.join(problems)}." if problems else "balanced",
        metadata={
            "bronze": found.bronze,
            "readings": found.readings,
            "quarantined": found.quarantine,
            "pulses": found.pulses,
        },
    )


def few_late(settings: Settings, now: datetime) -> AssetCheckResult:
    found, most = sensor_books(settings.lake_root, now - RECENT), settings.sensors.most_late
    share = found.late / found.readings if found.readings else 0.0
    return AssetCheckResult(
        passed=share <= most,
        severity=AssetCheckSeverity.WARN,
        description=f"{share:.2%} of the readings of the last hour came too late for a window; {most:.2%} are taken "
        "for normal. Where devices are slow by nature, raise TIDEWATCH_SENSORS_LATENESS_SECONDS.",
        metadata={"share": share},
    )


def alerts_agree(settings: Settings, now: datetime) -> AssetCheckResult:
    try:
        found, alerts = alert_agreement(settings, now - RECENT, now - PATIENCE)
    except NobodyKnows as error:
        return AssetCheckResult(passed=False, severity=AssetCheckSeverity.WARN, description=str(error))
    return AssetCheckResult(
        passed=found.agrees,
        severity=AssetCheckSeverity.ERROR,
        description=_told(found),
        metadata={"anomalies of the last hour": found.anomalies, "alerts of the last hour": alerts},
    )


def _told(found: Agreement) -> str:
    if found.agrees:
        return f"{found.anomalies:,} anomalies of the last hour agree"
    missing = {
        "were not told on the hub": found.not_told,
        "were told, but are not in silver": found.not_in_silver,
        "are in no sample": found.not_sampled,
    }
    parts = [f"{len(ids):,} {where} ({', '.join(ids[:EXAMPLES])})" for where, ids in missing.items() if ids]
    return f"Of the anomalies of the last hour {'; '.join(parts)}. The check stream_health says how the stream is."

"""What is checked of sensors: that alerts on the hub and anomalies in silver are the same."""

from datetime import UTC, datetime, timedelta

from dagster import AssetCheckResult, AssetChecksDefinition, AssetCheckSeverity, asset_check

from assets.streams import table_key
from lake.sensor_books import Agreement
from lake.sensors import SENSOR_SAMPLES
from settings import Settings, load_settings
from streaming.alert_agreement import NobodyKnows, alert_agreement

RECENT = timedelta(hours=1)
# Alerts may be late for a while after a crash, while what came before is told again.
PATIENCE = timedelta(minutes=2)
EXAMPLES = 5


def sensor_checks() -> list[AssetChecksDefinition]:
    @asset_check(
        asset=table_key(SENSOR_SAMPLES.name),
        name="alerts_agree",
        description="Every anomaly of silver was told on the hub, and every alert's reading is in silver and sampled",
    )
    def check() -> AssetCheckResult:
        return alerts_agree(load_settings(), datetime.now(UTC))

    return [check]


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

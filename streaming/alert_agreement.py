"""Whether the alerts on the hub are those of the anomalies in silver."""

from datetime import datetime, timedelta

from hub.alerts import alerts_since
from hub.connection import HubConnection
from hub.topics import HubUnreachable
from lake.sensor_books import Agreement, agreement
from settings import Settings

# Brokers do not agree on the time to the second, and a reading's alert may be on another one.
OF_ANOTHER_CLOCK = timedelta(minutes=5)


class NobodyKnows(Exception):
    """The alerts can't be read; the message says why."""


def alert_agreement(settings: Settings, since: datetime, told_up_to: datetime) -> tuple[Agreement, int]:
    """Of what the hub took since then, with the number of alerts; anomalies up to `told_up_to` have to be told."""
    chosen = settings.sensors
    try:
        alerts = alerts_since(HubConnection.from_settings(settings.hub), since - OF_ANOTHER_CLOCK)
    except HubUnreachable as error:
        raise NobodyKnows(str(error)) from error
    found = agreement(
        settings.lake_root,
        [(alert.alert_id, alert.place) for alert in alerts],
        since,
        told_up_to,
        window=timedelta(seconds=chosen.window_seconds),
        windows_of_one=chosen.window_seconds // chosen.slide_seconds,
    )
    return found, len(alerts)

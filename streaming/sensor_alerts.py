"""Anomalous readings to the hub at once: in real time, or in micro-batches where the hub or the machine can't."""

from pyspark.sql import DataFrame

from hub import SENSOR_ALERTS, SENSOR_ECHOES
from streaming.appended import onto_hub
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sensor_readings import anomalous_readings
from streaming.sources import observe_newest, planned_records
from streaming.strict_json import TIMES, sql_text

# `current_timestamp` is one for a whole batch, which lasts for minutes in real time.
NOW = "java_method('java.time.Instant', 'now')"
ALERT = f"""named_struct(
    'alert_id', alert_id, 'device_id', device_id, 'sensor_freq', sensor_freq, 'event_time', event_time,
    'raised_at', {NOW}, 'anomaly', anomaly, 'partition', partition, 'sequence_number', sequence_number)"""
ECHO = """named_struct(
    'sender', {sender}, 'partition', partition, 'sequence_number', sequence_number, 'enqueued_time', enqueued_time)"""


def alerts_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    assert query.hub is not None
    settings = context.settings.sensors
    if settings.alerts == "real-time":
        records = planned_records(context, query.hub, generation, None)
        rows = with_echoes(anomalous_readings(records, settings), context.sender)
        return QueryPlan(rows, None, real_time_seconds=settings.alert_interval_seconds)
    records = planned_records(context, query.hub, generation, settings.max_records)
    read = observe_newest(records, context.partitions[query.hub], "timestamp")
    return QueryPlan(as_alerts(anomalous_readings(read, settings)), onto_hub(context, SENSOR_ALERTS))


def as_alerts(anomalous: DataFrame) -> DataFrame:
    """For the hub: the key is the device."""
    return anomalous.where("NOT pulse").selectExpr(
        "cast(device_id AS BINARY) AS key", f"to_json({ALERT}, map({TIMES})) AS value"
    )


def with_echoes(anomalous: DataFrame, sender: str) -> DataFrame:
    """Alerts, and a word of each pulse that passed by, each for its own hub; see `streaming.echoes`."""
    echo = ECHO.format(sender=sql_text(sender))
    return anomalous.selectExpr(
        f"CASE WHEN pulse THEN '{SENSOR_ECHOES}' ELSE '{SENSOR_ALERTS}' END AS topic",
        "cast(device_id AS BINARY) AS key",
        f"CASE WHEN pulse THEN to_json({echo}, map({TIMES})) ELSE to_json({ALERT}, map({TIMES})) END AS value",
    )

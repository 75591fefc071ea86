"""From the hub's records to sensors' readings, told from pulses and from what is malformed.

`readings` and `anomalous_readings` judge by the same rules, so that samples and alerts say the same of every record.
"""

from pyspark.sql import DataFrame

from settings import SensorSettings
from streaming.sensor_rules import anomaly
from streaming.strict_json import (
    BODY_FAULTS,
    PULSE,
    TEXT,
    WHOLE_VALUE,
    Fault,
    is_other_type,
    sql_text,
    type_at,
    verdict,
)

LONGEST_DEVICE = 256
_TIME = r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(?:\.\d{1,9})?(?:Z|[+-]\d{2}:\d{2})?"
# Most readings are written like this, and need not be read as JSON: nothing is escaped, and nothing else is there.
_PLAIN = (
    r'^\{"device_id": ?"[^"\\\p{Cntrl}\s][^"\\\p{Cntrl}]{0,254}", ?'
    r'"sensor_freq": ?-?(?:0|[1-9]\d{0,14})(?:\.\d{1,15})?, ?'
    rf'"event_time": ?"{_TIME}"\}}\z'
)
_BLANK = sql_text(r"^\s*$")
_NUMBER = "^(BIGINT|DOUBLE|FLOAT|DECIMAL.*)$"


def readings(records: DataFrame, settings: SensorSettings) -> DataFrame:
    """A row for each record of the hub: the fields of a reading, `anomaly` and `alert_id`; for a malformed one `reason`
    and `sentence`, and its `body`. A `pulse` has none of them."""
    return (
        _parsed(records)
        .selectExpr("*", f"CASE WHEN NOT pulse THEN {_verdict(settings)} END AS verdict")
        .selectExpr("*", "NOT pulse AND verdict IS NULL AS valid")
        .selectExpr("*", f"CASE WHEN valid THEN {anomaly(settings)} END AS anomaly")
        .selectExpr(
            *(f"CASE WHEN valid THEN {name} END AS {name}" for name in ("device_id", "sensor_freq", "event_time")),
            "anomaly",
            f"CASE WHEN anomaly IS NOT NULL THEN {_ALERT_ID} END AS alert_id",
            "verdict.reason",
            "verdict.sentence",
            "CASE WHEN verdict IS NOT NULL THEN body END AS body",
            "pulse",
            "partition",
            "sequence_number",
            "enqueued_time",
        )
    )


def anomalous_readings(records: DataFrame, settings: SensorSettings) -> DataFrame:
    """Of the rows of `readings` those that are anomalous, and pulses. Spark plans this in a third of the time, which
    alerts in real time wait for whenever they note how far they are."""
    return (
        _parsed(records)
        .selectExpr("*", f"{anomaly(settings)} AS anomaly")
        .where(f"pulse OR (anomaly IS NOT NULL AND {_is_valid(settings)})")
        .selectExpr(
            *("device_id", "sensor_freq", "event_time", "anomaly"),
            f"{_ALERT_ID} AS alert_id",
            *("pulse", "partition", "sequence_number", "enqueued_time"),
        )
    )


def _parsed(records: DataFrame) -> DataFrame:
    """With what each record says, right or wrong, as far as it can be read."""
    plain = f"coalesce(is_valid_utf8({TEXT}) AND {TEXT} RLIKE {sql_text(_PLAIN)}, false)"
    return (
        records.selectExpr("value AS body", "partition", "offset AS sequence_number", "timestamp AS enqueued_time")
        .selectExpr("*", f"{plain} AS plain", f"coalesce({TEXT} RLIKE {sql_text(PULSE)}, false) AS pulse")
        .selectExpr(
            "*",
            f"CASE WHEN plain THEN split({TEXT}, '\"') END AS parts",
            f"CASE WHEN NOT plain AND NOT pulse THEN {WHOLE_VALUE} END AS variant",
        )
        .selectExpr(
            "*",
            f"CASE WHEN plain THEN parts[3] ELSE {_field('device_id', 'string')} END AS device_id",
            f"CASE WHEN plain THEN {_number_of('parts[6]')} ELSE {_field('sensor_freq', 'double')} END AS sensor_freq",
            f"CASE WHEN plain THEN parts[9] ELSE {_field('event_time', 'string')} END AS time_text",
            "schema_of_variant(variant) AS shape",
        )
        .selectExpr(
            "*", f"CASE WHEN time_text RLIKE {sql_text(f'^{_TIME}$')} THEN {_time('time_text')} END AS event_time"
        )
    )


# The same for a reading that is sent twice, and whenever it is read. What has no | comes first, so that no two
# readings give the same text.
_ALERT_ID = "md5(concat_ws('|', unix_micros(event_time), format_string('%a', sensor_freq), device_id))"


def _field(name: str, kind: str) -> str:
    return f"try_variant_get(variant, '$.{name}', '{kind}')"


def _number_of(text: str) -> str:
    return f"try_cast(trim(BOTH ':, ' FROM {text}) AS DOUBLE)"


def _time(text: str) -> str:
    """Without a zone it is UTC, the session's."""
    return f"try_cast({text} AS TIMESTAMP)"


def _verdict(settings: SensorSettings) -> str:
    """Types are right in a plain record."""
    of_values = _value_faults(settings)
    return f"CASE WHEN plain THEN {verdict(of_values)} ELSE {verdict([*BODY_FAULTS, *_TYPE_FAULTS, *of_values])} END"


def _is_valid(settings: SensorSettings) -> str:
    """True where there is no verdict."""
    of_body = " OR ".join(f"coalesce({fault.condition}, false)" for fault in (*BODY_FAULTS, *_TYPE_FAULTS))
    of_values = " OR ".join(f"coalesce({fault.condition}, false)" for fault in _value_faults(settings))
    return f"NOT ((NOT plain AND ({of_body})) OR {of_values})"


def _wrong_type(name: str, pattern: str, wanted: str) -> Fault:
    found = type_at("variant", f"$.{name}")
    return Fault(
        is_other_type(found, pattern),
        "wrong_type",
        f"format_string('{name} is %s, not {wanted}.', substring({found}, 1, 60))",
    )


_TYPE_FAULTS = (
    _wrong_type("device_id", "^STRING$", "STRING"),
    _wrong_type("sensor_freq", _NUMBER, "a number"),
    _wrong_type("event_time", "^STRING$", "STRING"),
)


def _value_faults(settings: SensorSettings) -> list[Fault]:
    ahead = settings.ahead_seconds
    return [
        Fault(
            f"device_id IS NULL OR device_id RLIKE {_BLANK}",
            "missing_device",
            sql_text("device_id is missing or blank, so that nobody knows which device read it."),
        ),
        Fault(
            f"char_length(device_id) > {LONGEST_DEVICE}",
            "device_too_long",
            f"format_string('device_id has %s characters; {LONGEST_DEVICE} are allowed.', char_length(device_id))",
        ),
        Fault("sensor_freq IS NULL", "missing_frequency", sql_text("sensor_freq is missing.")),
        Fault(
            "isnan(sensor_freq) OR abs(sensor_freq) = double('Infinity')",
            "frequency_not_finite",
            sql_text("sensor_freq is no finite number."),
        ),
        Fault("time_text IS NULL", "missing_time", sql_text("event_time is missing.")),
        Fault(
            "event_time IS NULL OR unix_micros(event_time) < 0",
            "impossible_time",
            "format_string('event_time is no time since 1970 like 2026-03-01T12:00:00.000Z: %s', "
            "substring(time_text, 1, 60))",
        ),
        Fault(
            f"unix_micros(event_time) - unix_micros(enqueued_time) > {ahead * 1_000_000}",
            "time_ahead",
            f"format_string('event_time %s is more than {ahead} s ahead of the time when the hub took the record.', "
            "substring(time_text, 1, 60))",
        ),
    ]

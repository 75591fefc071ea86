"""From the hub's records to heartbeats, told from pulses and from what is malformed.

`beats` and `malformed` say of every record the same: it is a heartbeat, a pulse or malformed. What counts is the
machine's name alone; times that a machine sends change nothing, since the hub's rule.
"""

from pyspark.sql import DataFrame

from streaming.strict_json import (
    BODY_FAULTS,
    PROVENANCE,
    PULSE,
    TEXT,
    WHOLE_VALUE,
    Fault,
    is_other_type,
    sql_text,
    type_at,
    verdict,
)

LONGEST_NAME = 256
# Most heartbeats are written like this, and need not be read as JSON: nothing is escaped, and nothing else is there.
_PLAIN = r'^\{"machine_name": ?"([^"\\\p{Cntrl}\s][^"\\\p{Cntrl}]{0,254})", ?"sent_at": ?"[^"\\\p{Cntrl}]*"\}\z'
_PLAIN_NAME = f"CASE WHEN is_valid_utf8({TEXT}) THEN nullif(regexp_extract({TEXT}, {sql_text(_PLAIN)}, 1), '') END"
_BLANK = sql_text(r"^\s*$")
_NAME = "try_variant_get(variant, '$.machine_name', 'string')"
_FAULTS = (
    *BODY_FAULTS,
    Fault(
        is_other_type(type_at("variant", "$.machine_name"), "^STRING$"),
        "wrong_type",
        f"format_string('machine_name is %s, not STRING.', substring({type_at('variant', '$.machine_name')}, 1, 60))",
    ),
    Fault(
        f"{_NAME} IS NULL OR {_NAME} RLIKE {_BLANK}",
        "missing_machine",
        sql_text("machine_name is missing or blank, so that nobody knows which machine lives."),
    ),
    Fault(
        f"char_length({_NAME}) > {LONGEST_NAME}",
        "name_too_long",
        f"format_string('machine_name has %s characters; {LONGEST_NAME} are allowed.', char_length({_NAME}))",
    ),
)


def beats(records: DataFrame) -> DataFrame:
    """A row for each record of the hub: `machine`, null unless it is a heartbeat, `partition`, `at` in microseconds,
    `sequence_number` and `enqueued_time`."""
    return (
        _read(records)
        .selectExpr("*", f"CASE WHEN plain_name IS NULL AND NOT pulse THEN {WHOLE_VALUE} END AS variant")
        .selectExpr("*", "schema_of_variant(variant) AS shape")
        .selectExpr(
            f"coalesce(plain_name, CASE WHEN variant IS NOT NULL AND {verdict(_FAULTS)} IS NULL THEN {_NAME} END) "
            "AS machine",
            "partition",
            "unix_micros(enqueued_time) AS at",
            "sequence_number",
            "enqueued_time",
        )
    )


def malformed(records: DataFrame) -> DataFrame:
    """Those that are neither heartbeats nor pulses, as rows of quarantine."""
    return (
        _read(records)
        .where("plain_name IS NULL AND NOT pulse")
        .selectExpr("*", f"{WHOLE_VALUE} AS variant")
        .selectExpr("*", "schema_of_variant(variant) AS shape")
        .selectExpr("*", f"{verdict(_FAULTS)} AS verdict")
        .where("verdict IS NOT NULL")
        .selectExpr(
            "body",
            "verdict.reason",
            "verdict.sentence",
            *PROVENANCE,
        )
    )


def _read(records: DataFrame) -> DataFrame:
    return records.selectExpr(
        "value AS body", "partition", "offset AS sequence_number", "timestamp AS enqueued_time"
    ).selectExpr("*", f"{_PLAIN_NAME} AS plain_name", f"coalesce({TEXT} RLIKE {sql_text(PULSE)}, false) AS pulse")

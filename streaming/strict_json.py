"""What every parser asks of a record's body: that it is one whole JSON object, and what is wrong where it is not.

All of it is SQL over a column `body`: made of single calls from Python, expressions would take longer to build than a
small batch to run.
"""

from collections.abc import Sequence
from dataclasses import dataclass

TEXT = "cast(body AS STRING)"
# Of a record of the hub, as columns of quarantine.
PROVENANCE = (
    "enqueued_time AS processing_time",
    "partition",
    "sequence_number",
    "to_date(enqueued_time) AS date",
)
# How times are written into records of the hub, as an option of JSON functions.
TIMES = "'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\""
# What `hub.pulses` sends.
PULSE = r'^\{"pulse": "[^"\\\p{Cntrl}]*", "sent_at": "[^"\\\p{Cntrl}]*"\}\z'
# Spark stops reading at a value's end. So the text has to be a whole value inside an array and inside an object:
# nothing that could follow it closes both.
IN_ARRAY = f"try_parse_json('[' || {TEXT} || ']')"
IN_OBJECT = f"""try_parse_json('{{"value":' || {TEXT} || '}}')"""
WHOLE_VALUE = f"""
    CASE WHEN is_valid_utf8({TEXT}) AND size(try_variant_get({IN_ARRAY}, '$', 'array<variant>')) = 1
        AND {IN_OBJECT} IS NOT NULL
    THEN try_variant_get({IN_ARRAY}, '$[0]', 'variant') END"""


@dataclass(frozen=True)
class Fault:
    """What may be wrong with a record. Condition and sentence are SQL, the reason is a code."""

    condition: str
    reason: str
    sentence: str


def verdict(faults: Sequence[Fault]) -> str:
    """Null for a record that passes, or else reason and sentence of the first thing that is wrong with it."""
    cases = [
        f"WHEN {fault.condition} THEN named_struct('reason', {sql_text(fault.reason)}, 'sentence', {fault.sentence})"
        for fault in faults
    ]
    return f"CASE {' '.join(cases)} END"


def type_at(variant: str, path: str) -> str:
    return f"schema_of_variant(try_variant_get({variant}, '{path}', 'variant'))"


def is_other_type(found: str, pattern: str) -> str:
    """Null values are of any type."""
    return f"{found} != 'VOID' AND NOT {found} RLIKE '{pattern}'"


def sql_text(value: str) -> str:
    """As a literal of SQL."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"


BODY_FAULTS = (
    Fault(f"body IS NULL OR octet_length({TEXT}) = 0", "empty_body", sql_text("The record has no body.")),
    Fault(f"NOT is_valid_utf8({TEXT})", "invalid_utf8", sql_text("The body is not UTF-8 text.")),
    Fault("variant IS NULL", "malformed_json", sql_text("The body is not one whole JSON value.")),
    Fault(
        "NOT startswith(shape, 'OBJECT<')",
        "not_an_object",
        "format_string('The body is JSON of the type %s, not an object.', substring_index(shape, '<', 1))",
    ),
)
"""Of records that have their `WHOLE_VALUE` as `variant` and the type of it as `shape`."""

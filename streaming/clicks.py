"""From bronze's bytes to clicks: parsed with an explicit schema, judged, and kept whole where they fail.

`plain_clicks` tells the many records that need no closer look: writing out what was read from them gives their own text
again, spaces aside, so that they have exactly the known fields, each of its own type. `judged_clicks` looks at all
others field by field. For a plain record both say the same.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from pyspark.sql import DataFrame

from lake.silver import clicks_table
from streaming.click_schema import DOUBLE, RELATED, STRING, USER_AGENT, ClickSchema
from streaming.strict_json import BODY_FAULTS, TEXT, WHOLE_VALUE, Fault, is_other_type, sql_text, type_at, verdict

TYPES = {
    STRING: "^STRING$",
    DOUBLE: "^(BIGINT|DOUBLE|FLOAT|DECIMAL.*)$",
    "BIGINT": "^BIGINT$",
    "BOOLEAN": "^BOOLEAN$",
}
PROVENANCE = ("processing_time", "partition", "sequence_number", "date")
OF_BRONZE = ("body", "partition", "sequence_number", "enqueued_time", "ingest_time", "date")
BACKSLASH = "\\"
ELEMENTS = "try_variant_get(variant, '$.extraPayload', 'array<variant>')"


@dataclass(frozen=True)
class ClickRules:
    """What a click must be like beyond its types."""

    longest_page_seconds: float
    most_related: int


def plain_clicks(bronze: DataFrame, schema: ClickSchema, rules: ClickRules) -> DataFrame:
    """A row for each bronze row: the click's fields, and whether it is `plain`; where not, its `body` too."""
    # Where nothing is escaped, a text that equals what is written of it has been read whole.
    same = f"NOT contains({TEXT}, {sql_text(BACKSLASH)}) AND {_spaceless(TEXT)} = {_spaceless(_written(schema))}"
    sound = [f"NOT coalesce({fault.condition}, false)" for fault in _faults(rules)]
    return (
        bronze.withColumnRenamed("enqueued_time", "processing_time")
        .selectExpr("body", f"{_read(schema)} AS json", "ingest_time", *PROVENANCE)
        .selectExpr("*", f"coalesce({' AND '.join([same, *sound])}, false) AS plain")
        .selectExpr(*_fields(schema), "plain", "CASE WHEN NOT plain THEN body END AS body", "ingest_time", *PROVENANCE)
    )


def judged_clicks(records: DataFrame, schema: ClickSchema, rules: ClickRules) -> DataFrame:
    """A row for each record: the click's fields, those unknown to the schema, and `reason` and `sentence` where it
    fails. `records` need `body` and `ingest_time`, and the columns of `PROVENANCE`."""
    return (
        records.selectExpr("body", "ingest_time", *PROVENANCE, f"{_read(schema)} AS json", f"{WHOLE_VALUE} AS variant")
        .selectExpr("*", f"{_wrong_types(schema, rules)} AS wrong_types", "schema_of_variant(variant) AS shape")
        .selectExpr("*", f"{verdict(_all_faults(rules))} AS verdict")
        .selectExpr(
            *_fields(schema),
            f"CASE WHEN verdict IS NULL THEN {_unknown_fields(schema)} END AS unknown_fields",
            "verdict.reason",
            "verdict.sentence",
            "body",
            *PROVENANCE,
        )
    )


def clicks(good: DataFrame, schema: ClickSchema) -> DataFrame:
    """Silver's rows."""
    made = {
        "related_products": "coalesce(size(extraPayload), 0) AS related_products",
        "schema_version": f"{sql_text(schema.version)} AS schema_version",
    }
    columns = clicks_table(schema.promoted).columns
    return good.selectExpr(*(made.get(column.name, f"`{column.name}`") for column in columns))


def clickpath(good: DataFrame) -> DataFrame:
    """A row for each element of extraPayload; clicks without any have none."""
    of_click = ("eventID", "eventType", "productId")
    return good.selectExpr(*of_click, "posexplode(extraPayload) AS (position, related)", *PROVENANCE).select(
        *of_click, "position", "related.relatedProductId", "related.relatedProductCategory", *PROVENANCE
    )


def quarantined(failed: DataFrame, schema: ClickSchema) -> DataFrame:
    return failed.selectExpr("body", "reason", "sentence", f"{sql_text(schema.version)} AS schema_version", *PROVENANCE)


def _read(schema: ClickSchema) -> str:
    strict = "map('allowNonNumericNumbers', 'false', 'allowSingleQuotes', 'false')"
    return f"from_json({TEXT}, {sql_text(schema.ddl)}, {strict})"


def _written(schema: ClickSchema) -> str:
    """What was read, as JSON of the known fields in their order, without those that are missing. `to_json` of it all
    takes twice the time."""
    agent = ", ".join(_member(name, f"json.userAgent.{name}", kind) for name, kind in USER_AGENT.items())
    nested = {
        "userAgent": f"""CASE WHEN json.userAgent IS NOT NULL
            THEN '"userAgent":{{' || concat_ws(',', {agent}) || '}}' END""",
        # The option has its default: with no option at all, Spark takes writing what was read for the text itself.
        "extraPayload": """'"extraPayload":' || to_json(json.extraPayload, map('ignoreNullFields', 'true'))""",
    }
    scalars = schema.scalars
    members = [nested.get(name) or _member(name, f"json.`{name}`", scalars[name]) for name in schema.written_order]
    return f"'{{' || concat_ws(',', {', '.join(members)}) || '}}'"


def _member(name: str, value: str, kind: str) -> str:
    """Null for a missing one."""
    return f"""'"{name}":"' || {value} || '"'""" if kind == STRING else f"""'"{name}":' || cast({value} AS STRING)"""


def _fields(schema: ClickSchema) -> list[str]:
    return [
        *(f"json.{name}" for name in ("eventID", "eventType", "productId")),
        *(f"json.userAgent.{name}" for name in USER_AGENT),
        *(f"json.`{name}`" for name in ("page_loading_seconds", "extraPayload", *schema.promoted)),
    ]


def _faults(rules: ClickRules) -> list[Fault]:
    """What may be wrong with a record whose types are right."""
    seconds, longest = "json.page_loading_seconds", f"{rules.longest_page_seconds:g}"
    return [
        Fault(
            "json.eventID IS NULL OR trim(json.eventID) = ''",
            "missing_event_id",
            sql_text("eventID is missing or blank, so that a repeat could not be told."),
        ),
        Fault(
            f"isnan({seconds}) OR abs({seconds}) = double('Infinity')",
            "load_time_not_finite",
            sql_text("page_loading_seconds is no finite number."),
        ),
        Fault(
            f"{seconds} < 0",
            "load_time_negative",
            f"format_string('page_loading_seconds is %s; no page loads in less than 0.', {seconds})",
        ),
        Fault(
            f"{seconds} > {rules.longest_page_seconds!r}D",
            "load_time_absurd",
            f"format_string('page_loading_seconds is %s; more than {longest} is taken for an error.', {seconds})",
        ),
        _oversized("json.extraPayload", rules),
        Fault(
            "processing_time IS NULL OR processing_time < timestamp'2000-01-01 00:00:00Z' "
            "OR processing_time > ingest_time + INTERVAL 1 HOUR",
            "impossible_time",
            "format_string('The record''s time is %s.', coalesce(cast(processing_time AS STRING), 'missing'))",
        ),
    ]


def _oversized(array: str, rules: ClickRules) -> Fault:
    told = f"extraPayload has %s elements; more than {rules.most_related} are taken for an error."
    return Fault(f"size({array}) > {rules.most_related}", "oversized_array", f"format_string('{told}', size({array}))")


def reasons() -> list[str]:
    """All that a record can be in quarantine for."""
    return list(dict.fromkeys(fault.reason for fault in _all_faults(ClickRules(0, 0))))


def _all_faults(rules: ClickRules) -> list[Fault]:
    """In the order in which they are looked for."""
    return [
        *BODY_FAULTS,
        _oversized(ELEMENTS, rules),  # before its elements are looked at, of which only so many are
        Fault("size(wrong_types) > 0", "wrong_type", "array_join(wrong_types, ' ')"),
        Fault(
            "json IS NULL OR json._corrupt_record IS NOT NULL",
            "malformed_json",
            sql_text("The body can't be read as a click."),
        ),
        *_faults(rules),
    ]


def _wrong_types(schema: ClickSchema, rules: ClickRules) -> str:
    """A sentence for each known field whose value is of another type; null values are fine."""
    found = [
        *(_type_fault(name, f"$.{name}", TYPES[kind], kind) for name, kind in schema.scalars.items()),
        _type_fault("userAgent", "$.userAgent", "^OBJECT<", "an object"),
        *(_type_fault(f"userAgent.{name}", f"$.userAgent.{name}", TYPES[of], of) for name, of in USER_AGENT.items()),
        _type_fault("extraPayload", "$.extraPayload", "^ARRAY<", "an array"),
        _element_fault("$", "^OBJECT<", "An element of extraPayload is not an object.", rules),
        *(
            _element_fault(f"$.{name}", TYPES[kind], f"A {name} of extraPayload is not {kind}.", rules)
            for name, kind in RELATED.items()
        ),
    ]
    return f"array_compact(array({', '.join(found)}))"


def _type_fault(name: str, path: str, pattern: str, wanted: str) -> str:
    found = type_at("variant", path)
    return (
        f"CASE WHEN {is_other_type(found, pattern)} "
        f"THEN format_string('{name} is %s, not {wanted}.', substring({found}, 1, 60)) END"
    )


def _element_fault(path: str, pattern: str, sentence: str, rules: ClickRules) -> str:
    """Looks at no more elements than are allowed: an array with more fails anyway."""
    elements = f"slice({ELEMENTS}, 1, {rules.most_related})"
    return (
        f"CASE WHEN exists({elements}, one -> coalesce({is_other_type(type_at('one', path), pattern)}, false)) "
        f"THEN {sql_text(sentence)} END"
    )


def _unknown_fields(schema: ClickSchema) -> str:
    """A JSON object of the fields that the schema does not have, each where it was; null where there is none."""
    fields = "map<string,variant>"
    agent = _others(f"try_variant_get(variant, '$.userAgent', '{fields}')", USER_AGENT)
    elements = f"try_variant_get(variant, '$.extraPayload', 'array<{fields}>')"
    related = f"transform({elements}, one -> coalesce({_others('one', RELATED)}, cast(map() AS {fields})))"
    unknown = f"""map_concat(
        {_others(f"try_variant_get(variant, '$', '{fields}')", schema.names)},
        CASE WHEN size({agent}) > 0 THEN map('userAgent', to_variant_object({agent})) ELSE cast(map() AS {fields}) END,
        CASE WHEN exists({related}, one -> size(one) > 0) THEN map('extraPayload', to_variant_object({related}))
            ELSE cast(map() AS {fields}) END)"""
    return f"CASE WHEN size({unknown}) > 0 THEN to_json({unknown}) END"


def _others(fields: str, known: Iterable[str]) -> str:
    """The entries of a map that are not known."""
    names = ", ".join(sql_text(name) for name in known)
    return f"map_filter({fields}, (name, value) -> name NOT IN ({names}))"


def _spaceless(text: str) -> str:
    return f"replace({text}, ' ', '')"

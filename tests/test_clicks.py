"""Clicks read from bronze's bytes: what passes, what fails and why, and what is kept of what nobody knows."""

import itertools
import json
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession

from lake.silver import CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import bronze_table
from streaming.click_schema import ClickSchema
from streaming.clicks import ClickRules, clickpath, clicks, judged_clicks, plain_clicks, quarantined

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
SCHEMA = ClickSchema({})
RULES = ClickRules(longest_page_seconds=3600, most_related=3)
GOOD: dict[str, Any] = {
    "eventType": "view",
    "eventID": "e1",
    "productId": "p1",
    "userAgent": {"platform": "ios", "browser": "safari"},
    "extraPayload": [{"relatedProductId": "r1", "relatedProductCategory": "shoes"}],
    "page_loading_seconds": 1.5,
}


def body(**changes: Any) -> bytes:
    return json.dumps({**GOOD, **changes}).encode()


def without(name: str) -> bytes:
    return json.dumps({key: value for key, value in GOOD.items() if key != name}).encode()


def bronze(spark: SparkSession, bodies: Iterable[bytes | None], at: datetime | None = NOW) -> DataFrame:
    rows = [
        (None if each is None else bytearray(each), None, None, "clicks", 0, number, at, NOW, NOW.date())
        for number, each in enumerate(bodies)
    ]
    return spark.createDataFrame(rows, bronze_table("clicks").ddl)


def judged(spark: SparkSession, bodies: Iterable[bytes | None], schema: ClickSchema = SCHEMA) -> list[Row]:
    records = bronze(spark, bodies).withColumnRenamed("enqueued_time", "processing_time")
    return judged_clicks(records, schema, RULES).orderBy("sequence_number").collect()


FAILING: dict[str, tuple[bytes | None, str, str]] = {
    "null": (None, "empty_body", "no body"),
    "empty": (b"", "empty_body", "no body"),
    "no UTF-8": (b"\xff\xfe" + body(), "invalid_utf8", "not UTF-8"),
    "words": (b"this is no JSON", "malformed_json", "not one whole JSON value"),
    "cut short": (body()[:60], "malformed_json", "not one whole JSON value"),
    "more behind it": (body() + b" xyz", "malformed_json", "not one whole JSON value"),
    "a brace behind it": (body() + b"}", "malformed_json", "not one whole JSON value"),
    "a bracket behind it": (body() + b"]", "malformed_json", "not one whole JSON value"),
    "a second one behind it": (body() + b"," + body(), "malformed_json", "not one whole JSON value"),
    "a key twice": (b'{"eventID": "a", "eventID": "b"}', "malformed_json", "not one whole JSON value"),
    "single quotes": (b"{'eventID': 'a'}", "malformed_json", "not one whole JSON value"),
    "too deep": (b'{"a":' * 2000 + b"1" + b"}" * 2000, "malformed_json", "not one whole JSON value"),
    "an array": (b"[1, 2]", "not_an_object", "ARRAY"),
    "an array of it": (b"[" + body() + b"]", "not_an_object", "ARRAY"),
    "a string": (b'"x"', "not_an_object", "STRING"),
    "a JSON null": (b"null", "not_an_object", "VOID"),
    "a number for a string": (body(eventType=5), "wrong_type", "eventType is BIGINT, not STRING."),
    "a truth for a string": (body(productId=True), "wrong_type", "productId is BOOLEAN, not STRING."),
    "an object for a string": (body(productId={"a": 1}), "wrong_type", "productId is OBJECT<a: BIGINT>, not STRING."),
    "an array for a string": (body(eventID=["a"]), "wrong_type", "eventID is ARRAY<STRING>, not STRING."),
    "a string for a number": (body(page_loading_seconds="fast"), "wrong_type", "page_loading_seconds is STRING"),
    "NaN in quotes": (body(page_loading_seconds="NaN"), "wrong_type", "page_loading_seconds is STRING"),
    "a string for an object": (body(userAgent="x"), "wrong_type", "userAgent is STRING, not an object."),
    "a number in an object": (body(userAgent={"platform": 1}), "wrong_type", "userAgent.platform is BIGINT"),
    "an object for an array": (body(extraPayload={}), "wrong_type", "extraPayload is OBJECT<>, not an array."),
    "a number in an array": (body(extraPayload=[7]), "wrong_type", "An element of extraPayload is not an object."),
    "a number in an element": (
        body(extraPayload=[{"relatedProductId": 7}]),
        "wrong_type",
        "A relatedProductId of extraPayload is not STRING.",
    ),
    "two wrong ones": (body(eventType=5, productId=6), "wrong_type", "not STRING. productId is BIGINT"),
    "no id": (without("eventID"), "missing_event_id", "missing or blank"),
    "a null id": (body(eventID=None), "missing_event_id", "missing or blank"),
    "a blank id": (body(eventID="  "), "missing_event_id", "missing or blank"),
    "NaN": (b'{"eventID": "a", "page_loading_seconds": NaN}', "malformed_json", "not one whole JSON value"),
    "infinite": (b'{"eventID": "a", "page_loading_seconds": 1e999}', "load_time_not_finite", "no finite number"),
    "negative": (body(page_loading_seconds=-1.5), "load_time_negative", "is -1.5; no page loads in less than 0."),
    "absurd": (body(page_loading_seconds=3601), "load_time_absurd", "is 3601.0; more than 3600 is"),
    "oversized": (body(extraPayload=[{}] * 4), "oversized_array", "has 4 elements; more than 3 are"),
    "oversized and wrong": (body(extraPayload=[{}] * 4 + [7] * 4), "oversized_array", "has 8 elements"),
}


def test_what_fails_gets_a_reason_and_a_sentence(spark: SparkSession) -> None:
    rows = judged(spark, [each for each, _, _ in FAILING.values()])
    found = {name: (row.reason, row.sentence) for name, row in zip(FAILING, rows, strict=True)}
    assert {name: reason for name, (reason, _) in found.items()} == {name: case[1] for name, case in FAILING.items()}
    for name, (_, _, words) in FAILING.items():
        assert words in found[name][1], (name, found[name][1])


@pytest.mark.parametrize("at", [None, datetime(1999, 12, 31, tzinfo=UTC), NOW + timedelta(days=2)])
def test_a_record_of_an_impossible_time_fails(spark: SparkSession, at: datetime | None) -> None:
    records = bronze(spark, [body()], at)
    assert not plain_clicks(records, SCHEMA, RULES).first().plain  # type: ignore[union-attr]
    row = judged_clicks(records.withColumnRenamed("enqueued_time", "processing_time"), SCHEMA, RULES).first()
    assert row is not None and row.reason == "impossible_time"


PASSING: dict[str, tuple[bytes, dict[str, Any] | None]] = {
    "as agreed": (body(), None),
    "compact": (json.dumps(GOOD, separators=(",", ":")).encode(), None),
    "with spaces around": (b" " + body() + b"\n", None),
    "in another order": (json.dumps(dict(reversed(GOOD.items()))).encode(), None),
    "with escapes": (body(productId='é"\\ \u2028'), None),
    "a whole number": (body(page_loading_seconds=2), None),
    "nothing but an id": (b'{"eventID": "e1"}', None),
    "nulls": (body(eventType=None, userAgent=None, extraPayload=None, page_loading_seconds=None), None),
    "a null element": (body(extraPayload=[None]), None),
    "unknown": (body(campaign={"name": "x", "n": [1, None]}), {"campaign": {"name": "x", "n": [1, None]}}),
    "unknown null": (body(campaign=None), {"campaign": None}),
    "unknown in the agent": (body(userAgent={"platform": "ios", "version": 17}), {"userAgent": {"version": 17}}),
    "unknown in elements": (body(extraPayload=[{}, {"rank": 1}]), {"extraPayload": [{}, {"rank": 1}]}),
    "names like paths": (
        body(**{"userAgent.x": 1, "userAgent": {"x": 2}, "extraPayload[0].y": 3, "extraPayload": [{"y": 4}]}),
        {"userAgent.x": 1, "userAgent": {"x": 2}, "extraPayload[0].y": 3, "extraPayload": [{"y": 4}]},
    ),
    "other case": (body(eventid="x"), {"eventid": "x"}),
}


def test_what_passes_keeps_every_field_that_nobody_knows(spark: SparkSession) -> None:
    rows = judged(spark, [each for each, _ in PASSING.values()])
    assert {name: row.reason for name, row in zip(PASSING, rows, strict=True)} == dict.fromkeys(PASSING)
    for (name, (_, unknown)), row in zip(PASSING.items(), rows, strict=True):
        assert (json.loads(row.unknown_fields) if row.unknown_fields else None) == unknown, name
    assert {row.eventID for row in rows} == {"e1"}


def test_clicks_in_the_agreed_form_need_no_closer_look(spark: SparkSession) -> None:
    bodies = [body(), PASSING["compact"][0], body(extraPayload=[]), body(productId="two words"), without("userAgent")]
    assert all(row.plain for row in plain_clicks(bronze(spark, bodies), SCHEMA, RULES).collect())


scalars = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8))
anything = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)),
)
text = st.text(max_size=8)


def mostly(right: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(*[right] * 9, anything)


fields = st.fixed_dictionaries(
    {"eventID": mostly(st.one_of(st.just("e1"), text))},
    optional={
        "eventType": mostly(text),
        "productId": mostly(st.sampled_from(["true", "12", "p1"])),
        "userAgent": mostly(
            st.fixed_dictionaries({}, optional={"platform": mostly(text), "browser": mostly(text), "x": anything})
        ),
        "extraPayload": mostly(
            st.lists(
                mostly(st.fixed_dictionaries({"relatedProductId": mostly(text)}, optional={"rank": anything})),
                max_size=4,
            )
        ),
        "page_loading_seconds": mostly(st.one_of(st.floats(0, 3600), st.floats(0, 3600), st.floats(), st.integers())),
        "more": anything,
        "userAgent.x": anything,
        "extraPayload[0].rank": anything,
    },
)
STYLES: list[dict[str, Any]] = [{}, {"separators": (",", ":")}, {"indent": 1}, {"ensure_ascii": False}]


@st.composite
def hostile_bodies(draw: st.DrawFn) -> bytes | None:
    """Bytes that are almost a click, or not at all."""
    kind = draw(st.integers(0, 9))
    if kind == 0:
        return draw(st.one_of(st.none(), st.binary(max_size=60)))
    made = json.dumps(draw(mostly(fields)), **draw(st.sampled_from(STYLES))).encode("utf-8", "surrogatepass")
    if kind == 1:
        cut = draw(st.integers(0, len(made)))
        return made[:cut] + draw(st.binary(max_size=3)) + made[cut + draw(st.integers(0, 2)) :]
    return made + draw(st.sampled_from([b"", b"", b"", b" ", b"\n", b"}", b"]", b"x", b"\x00"]))


def corpus(count: int) -> list[bytes | None]:
    found: list[bytes | None] = []

    @settings(
        max_examples=count,
        database=None,
        derandomize=True,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(hostile_bodies())
    def collect(each: bytes | None) -> None:
        found.append(each)

    collect()
    return found


def passes(each: bytes | None) -> bool | None:
    """A plain reading of the rules, without Spark; None where Python's JSON and Spark's may differ with good reason."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({name for name, _ in pairs}) < len(pairs):
            raise ValueError("a key twice")
        return dict(pairs)

    def no_constant(name: str) -> Any:
        raise ValueError(name)

    if not each:
        return False
    try:
        click = json.loads(each.decode(), object_pairs_hook=unique, parse_constant=no_constant)
    except ValueError:
        return False
    if not isinstance(click, dict):
        return False
    if "\\ud" in each.decode().lower():
        return None
    agent, related, seconds = (click.get(name) for name in ("userAgent", "extraPayload", "page_loading_seconds"))
    texts = [click.get(name) for name in ("eventType", "eventID", "productId")]
    if not isinstance(agent, dict | None) or not isinstance(related, list | None):
        return False
    texts += [(agent or {}).get(name) for name in ("platform", "browser")]
    if any(not isinstance(one, dict | None) for one in related or []):
        return False
    for one in related or []:
        texts += [(one or {}).get(name) for name in ("relatedProductId", "relatedProductCategory")]
    if any(not isinstance(text, str | None) for text in texts) or isinstance(seconds, bool):
        return False
    if not isinstance(seconds, int | float | None) or not (click.get("eventID") or "").strip(" "):
        return False
    return (seconds is None or 0 <= seconds <= RULES.longest_page_seconds) and len(related or []) <= RULES.most_related


def test_hostile_bodies_are_judged_alike_by_both_ways_and_by_a_plain_reading(spark: SparkSession) -> None:
    bodies = corpus(5_000)
    assert len(bodies) >= 5_000 and len(set(bodies)) > 3_000
    records = bronze(spark, bodies).repartition(2).persist()
    plain = {row.sequence_number: row for row in plain_clicks(records, SCHEMA, RULES).collect()}
    close = {
        row.sequence_number: row
        for row in judged_clicks(records.withColumnRenamed("enqueued_time", "processing_time"), SCHEMA, RULES).collect()
    }
    records.unpersist()
    assert len(plain) == len(close) == len(bodies)
    wrong: list[tuple[object, ...]] = []
    for number, each in enumerate(bodies):
        fast, slow = plain[number], close[number]
        if fast.plain and (slow.reason or slow.unknown_fields):
            wrong.append(("plain, but", slow.reason, slow.unknown_fields, each))
        if fast.plain and any(fast[name] != slow[name] for name in ("eventID", "productId", "extraPayload")):
            wrong.append(("read otherwise", each))
        expected = passes(each)
        if expected is not None and expected != (slow.reason is None):
            wrong.append(("expected", expected, "not", slow.reason, slow.sentence, each))
    assert not wrong[:10]
    assert 300 < sum(row.reason is None for row in close.values()) < 4_700, "the corpus has both kinds"


def test_promoted_fields_are_judged_alike_by_both_ways(spark: SparkSession) -> None:
    schema = ClickSchema({"more": "STRING", "score": "DOUBLE", "count": "BIGINT", "flag": "BOOLEAN"})
    values = 'NaN Infinity -Infinity -0 0 1 -1.5 1E3 1E400 12345678901234567890 true null \'x\' "x" "1" "" [] {}'
    tried = list(itertools.product(schema.promoted, values.split()))
    bodies = [body()[:-1] + f', "{name}": {value}}}'.encode() for name, value in tried]
    records = bronze(spark, bodies)
    plain = {row.sequence_number: row for row in plain_clicks(records, schema, RULES).collect()}
    close = {
        row.sequence_number: row
        for row in judged_clicks(records.withColumnRenamed("enqueued_time", "processing_time"), schema, RULES).collect()
    }
    fast = [(*tried[number], plain[number], close[number]) for number in plain if plain[number].plain]
    assert not [(name, value, slow.reason) for name, value, _, slow in fast if slow.reason or slow.unknown_fields]
    assert not [(name, value) for name, value, one, slow in fast if one[name] != slow[name]]
    assert {name for name, *_ in fast} == set(schema.promoted), "some of each are plain"


def test_the_rows_have_the_columns_of_their_tables(spark: SparkSession) -> None:
    schema = ClickSchema({"referrer": "STRING"})
    (row,) = judged(spark, [body(referrer="r", extraPayload=[{"relatedProductId": "a"}, {}])], schema)
    assert row.referrer == "r" and row.unknown_fields is None
    records = bronze(spark, [body(referrer="r", extraPayload=[{"relatedProductId": "a"}, {}]), b"no"])
    both = judged_clicks(records.withColumnRenamed("enqueued_time", "processing_time"), schema, RULES)
    good = both.where("reason IS NULL")
    for made, table in (
        (clicks(good, schema), clicks_table(schema.promoted)),
        (clickpath(good), CLICKPATH),
        (quarantined(both.where("reason IS NOT NULL"), schema), CLICK_QUARANTINE),
    ):
        wanted = spark.createDataFrame([], table.ddl)
        assert [(f.name, f.dataType) for f in made.schema] == [(f.name, f.dataType) for f in wanted.schema]
    (click,) = clicks(good, schema).collect()
    assert (click.related_products, click.referrer, click.schema_version) == (2, "r", "1+referrer:STRING")
    path = clickpath(good).orderBy("position").collect()
    assert [(r.position, r.relatedProductId, r.sequence_number) for r in path] == [(0, "a", 0), (1, None, 0)]

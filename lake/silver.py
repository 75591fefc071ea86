"""What clicks become: typed, validated and deduplicated rows, their duplicates, and what failed."""

from collections.abc import Mapping

from lake.tables import Column, Table, streamed

# Which hub record a row came from. With bronze's columns of the same names it leads back to the record's bytes.
PLACE = (
    Column("partition", "INT", "The hub's partition of the record"),
    Column("sequence_number", "BIGINT", "The record's place in the partition"),
)
PROCESSING_TIME = Column("processing_time", "TIMESTAMP", "When the hub took the record: the event's time")
DATE = Column("date", "DATE", "The day (UTC) of processing_time")

BY_RECORD = ("processing_time", "partition", "sequence_number")

CLICK_FIELDS = (
    Column("eventID", "STRING", "The event's own id"),
    Column("eventType", "STRING", "What happened: view, click, add_to_cart, purchase, …"),
    Column("productId", "STRING", "The product that the page showed"),
    Column("platform", "STRING", "The platform of the user agent"),
    Column("browser", "STRING", "The browser of the user agent"),
    Column("page_loading_seconds", "DOUBLE", "How long the page took to load"),
)


def clicks_table(promoted: Mapping[str, str]) -> Table:
    """One row an event. `promoted` has further fields of the events, with their types, as columns at the end."""
    return Table(
        "silver/clicks",
        "Clicks, one row an event: typed, validated and deduplicated",
        (
            *CLICK_FIELDS,
            Column("related_products", "INT", "How many elements extraPayload had; each is a row of silver/clickpath"),
            Column("unknown_fields", "STRING", "Fields that the schema does not have, as a JSON object; mostly null"),
            Column("schema_version", "STRING", "The schema that the record was read with"),
            PROCESSING_TIME,
            *PLACE,
            DATE,
            *(Column(name, kind, f"Field {name} of the event") for name, kind in promoted.items()),
        ),
        partitioned_by=("date",),
        properties=streamed(*BY_RECORD),
    )


CLICKPATH = Table(
    "silver/clickpath",
    "Products related to a click, one row for each element of extraPayload",
    (
        Column("eventID", "STRING", "The click's id"),
        Column("eventType", "STRING", "The click's type"),
        Column("productId", "STRING", "The click's product"),
        Column("position", "INT", "The element's place in extraPayload, from 0"),
        Column("relatedProductId", "STRING", "The related product"),
        Column("relatedProductCategory", "STRING", "Its category"),
        PROCESSING_TIME,
        *PLACE,
        DATE,
    ),
    partitioned_by=("date",),
    properties=streamed(*BY_RECORD),
)

CLICK_DUPLICATES = Table(
    "silver/click_duplicates",
    "Records of clicks that repeat a click, so that the books balance for any range",
    (
        Column("eventID", "STRING", "The id that was there already"),
        Column("kept_partition", "INT", "The hub's partition of the record that is in silver/clicks"),
        Column("kept_sequence_number", "BIGINT", "Its place in the partition"),
        PROCESSING_TIME,
        *PLACE,
        DATE,
    ),
    partitioned_by=("date",),
    properties=streamed(*BY_RECORD),
)

QUARANTINED = (
    Column("body", "BINARY", "The record's bytes, unchanged"),
    Column("reason", "STRING", "Why it is here, as a code"),
    Column("sentence", "STRING", "Why it is here, for people"),
)


def quarantine_table(hub: str) -> Table:
    return Table(
        f"quarantine/{hub.replace('-', '_')}",
        f"Records of the hub {hub} that can't be read, with the reason",
        (*QUARANTINED, PROCESSING_TIME, *PLACE, DATE),
        partitioned_by=("date",),
        properties=streamed(*BY_RECORD),
    )


CLICK_QUARANTINE = Table(
    "quarantine/clicks",
    "Records of the hub clicks that are no valid clicks, with the reason",
    (
        *QUARANTINED,
        Column("schema_version", "STRING", "The schema that the record was read with"),
        PROCESSING_TIME,
        *PLACE,
        DATE,
    ),
    partitioned_by=("date",),
    properties=streamed(*BY_RECORD),
)

CLICK_ACTIVITY = Table(
    "silver/click_activity",
    "Clicks in windows of event time, by type and platform; open windows are kept up to date",
    (
        Column("window_start", "TIMESTAMP", "The window's first moment"),
        Column("window_end", "TIMESTAMP", "The first moment after the window"),
        Column("eventType", "STRING", "What happened; null where the events do not say"),
        Column("platform", "STRING", "The user's platform; null where the events do not say"),
        Column("clicks", "BIGINT", "Events, exactly"),
        Column("products", "BIGINT", "Different products, with a relative standard deviation of at most 2%"),
        Column("page_loading_mean", "DOUBLE", "Mean page load time in seconds"),
        Column("page_loading_p50", "DOUBLE", "Median page load time in seconds, its rank within 0.1%"),
        Column("page_loading_p95", "DOUBLE", "95th percentile of the page load time in seconds, its rank within 0.1%"),
        Column("closed", "BOOLEAN", "Past the watermark: from then on only a replay or a rebuild changes the row"),
        Column("date", "DATE", "The day (UTC) of window_start"),
    ),
    partitioned_by=("date",),
    properties=streamed("window_start", "window_end"),
)

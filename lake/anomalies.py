"""What the model says of clicks' page load times."""

from lake.silver import BY_RECORD, DATE, PLACE, PROCESSING_TIME
from lake.tables import Column, Table, streamed

COLUMNS = (
    Column("eventID", "STRING", "The click's id"),
    Column("eventType", "STRING", "The click's type"),
    Column("platform", "STRING", "The click's platform"),
    Column("browser", "STRING", "The click's browser"),
    Column("page_loading_seconds", "DOUBLE", "How long the page took to load"),
    Column("model_version", "STRING", "The model that judged it"),
    Column("cluster", "INT", "The cluster that it is nearest to; null for a click without a page load time"),
    Column("distance", "DOUBLE", "How far it is from that cluster's centroid, between scaled features"),
    Column("threshold", "DOUBLE", "A click of this cluster that is further away is anomalous"),
    Column("anomalous", "BOOLEAN", "The verdict; null for a click without a page load time"),
    PROCESSING_TIME,
    *PLACE,
    DATE,
)

PAGE_LOAD_ANOMALIES = Table(
    "silver/page_load_anomalies",
    "What the model says of each click's page load time, one row a click",
    COLUMNS,
    partitioned_by=("date",),
    properties=streamed(*BY_RECORD),
)
PAGE_LOAD_RESCORES = Table(
    "silver/page_load_rescores",
    "What chosen models say of the clicks of chosen days, one row a click and model",
    COLUMNS,
    partitioned_by=("model_version", "date"),
    properties=streamed(*BY_RECORD),
)

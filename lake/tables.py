"""The tables of the lake. A table's name is also its path below the lake's root."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Column:
    name: str
    type: str
    """In Spark's DDL."""
    description: str


@dataclass(frozen=True)
class Table:
    name: str
    description: str
    columns: tuple[Column, ...]
    partitioned_by: tuple[str, ...] = ()
    properties: Mapping[str, str] = field(default_factory=dict)

    @property
    def ddl(self) -> str:
        return ", ".join(f"`{column.name}` {column.type}" for column in self.columns)

    def path(self, lake_root: str) -> str:
        return f"{lake_root.rstrip('/')}/{self.name}"


# A log checkpoint reads and writes the table's whole state: after every tenth commit, which is Delta's default, it
# would cost a stream more than the commits themselves.
STREAMED = {"delta.checkpointInterval": "100"}


def streamed(*looked_up_by: str) -> dict[str, str]:
    """Properties of a table that a stream writes. Delta keeps the least and the greatest value a file has of these
    columns, by which readers pass over files; of all columns it would cost about as much as writing them."""
    return {**STREAMED, "delta.dataSkippingStatsColumns": ",".join(looked_up_by)}


BRONZE_COLUMNS = (
    Column("body", "BINARY", "The record's bytes, unchanged; null where the hub had none"),
    Column("key", "BINARY", "The partition key's bytes, unchanged; null where the record had none"),
    Column("headers", "ARRAY<STRUCT<key: STRING, value: BINARY>>", "The record's headers, in their order"),
    Column("hub", "STRING", "The hub (topic) the record was read from"),
    Column("partition", "INT", "The hub's partition"),
    Column("sequence_number", "BIGINT", "The record's place in the partition"),
    Column("enqueued_time", "TIMESTAMP", "When the hub took the record"),
    Column("ingest_time", "TIMESTAMP", "When the batch that wrote the row began"),
    Column("date", "DATE", "The day (UTC) of enqueued_time"),
)


def bronze_table(hub: str) -> Table:
    """The raw truth of one hub: append only, nothing parsed, nothing dropped."""
    return Table(
        f"bronze/{hub}",
        f"Every record of the hub {hub}, as it came",
        BRONZE_COLUMNS,
        partitioned_by=("date",),
        properties=streamed("partition", "sequence_number", "enqueued_time"),
    )

"""Which streams there are, which queries each hosts, and what they read and write. Plain data: no Spark here."""

from dataclasses import dataclass

from hub import INPUT_HUBS
from lake.tables import Table, bronze_table


@dataclass(frozen=True)
class QuerySpec:
    name: str
    hub: str
    table: Table
    plan: int
    """Raised with a change that Spark can't resume from; the query then starts a new checkpoint generation."""


@dataclass(frozen=True)
class StreamSpec:
    name: str
    description: str
    queries: tuple[QuerySpec, ...]


BRONZE = StreamSpec(
    "bronze",
    "Every record of every hub into bronze, bytes unchanged",
    tuple(QuerySpec(hub, hub, bronze_table(hub), plan=1) for hub in INPUT_HUBS),
)

STREAMS = {stream.name: stream for stream in (BRONZE,)}

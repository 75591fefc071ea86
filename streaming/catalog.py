"""Which streams there are, which queries each hosts, and what they read and write. Plain data: no Spark here."""

from collections.abc import Callable
from dataclasses import dataclass

from hub import CLICKS, INPUT_HUBS
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, CLICKPATH, clicks_table
from lake.tables import Table, bronze_table
from settings import Settings


@dataclass(frozen=True)
class QuerySpec:
    name: str
    source: "str | Table"
    """The hub or the table that it reads."""
    table: Table
    """Whose commits tell which batches are done: the last that a batch is written to."""
    plan: int
    """Raised with a change that Spark can't resume from; the query then starts a new checkpoint generation."""
    trigger_seconds: Callable[[Settings], float]
    also_writes: tuple[Table, ...] = ()
    may_read_again: bool = False
    """True when records that it reads a second time change nothing, so that it can begin anew at any time."""

    @property
    def hub(self) -> str | None:
        return self.source if isinstance(self.source, str) else None

    @property
    def source_name(self) -> str:
        return self.source if isinstance(self.source, str) else self.source.name

    @property
    def tables(self) -> tuple[Table, ...]:
        return (self.table, *self.also_writes)


@dataclass(frozen=True)
class StreamSpec:
    name: str
    description: str
    queries: tuple[QuerySpec, ...]

    @property
    def hubs(self) -> list[str]:
        return [query.hub for query in self.queries if query.hub is not None]


def bronze_query(hub: str) -> QuerySpec:
    return QuerySpec(
        hub, hub, bronze_table(hub), plan=1, trigger_seconds=lambda settings: settings.bronze.trigger_seconds
    )


BRONZE = StreamSpec(
    "bronze",
    "Every record of every hub into bronze, bytes unchanged",
    tuple(bronze_query(hub) for hub in INPUT_HUBS),
)

SILVER = StreamSpec(
    "silver",
    "Clicks from bronze: validated, deduplicated, exploded, and counted in windows",
    (
        QuerySpec(
            "clicks",
            bronze_table(CLICKS),
            clicks_table({}),
            plan=1,
            trigger_seconds=lambda settings: settings.silver.trigger_seconds,
            also_writes=(CLICKPATH, CLICK_DUPLICATES, CLICK_QUARANTINE),
            may_read_again=True,
        ),
        QuerySpec(
            "click_activity",
            clicks_table({}),
            CLICK_ACTIVITY,
            plan=1,
            trigger_seconds=lambda settings: settings.silver.activity_trigger_seconds,
            may_read_again=True,
        ),
    ),
)

STREAMS = {stream.name: stream for stream in (BRONZE, SILVER)}

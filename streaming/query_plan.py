"""What a query is made of: the rows it reads, and what is done with a batch of them."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Self

from pyspark.sql import DataFrame, SparkSession

from hub.connection import HubConnection
from settings import Settings
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation


@dataclass(frozen=True)
class QueryContext:
    spark: SparkSession
    settings: Settings
    connection: HubConnection
    partitions: dict[str, int]
    """How many partitions each topic has now; empty for a stream that reads no hub."""
    stopping: Callable[[], bool]
    check_lease: Callable[[], None]
    """Does not return when this host may write no more."""
    now: datetime
    rows_of_last_batch: Callable[[str], int | None] | None = None
    """Of a query, None before its first batch; not there where nobody watches."""
    do_between_batches: Callable[[str, Callable[[], None]], None] = lambda query, chore: None
    """Has a query's chore done now and then, also when no batch comes. By nobody where there is no host."""
    sender: str = "nobody"
    """Whom the stream's own records on the hub are of, another one at every start."""

    @classmethod
    def without_host(
        cls, spark: SparkSession, settings: Settings, connection: HubConnection, partitions: dict[str, int]
    ) -> Self:
        """For a query that nobody stops in order, and that needs no lease."""
        return cls(
            spark, settings, connection, partitions, lambda: False, check_lease=lambda: None, now=datetime.now(UTC)
        )


@dataclass(frozen=True)
class QueryPlan:
    rows: DataFrame
    commit: Callable[[DataFrame, int], None] | None
    """Writes a batch exactly once, whenever and however often it is called with it; to a hub at least once. None for
    rows in real time."""
    tasks: int | None = None
    """After a shuffle, where the settings do not say."""
    straight_from_hub: bool = False
    """Whether rows are as they were read, without a shuffle: a task for each partition of the hub is then too much for
    few of them."""
    real_time_seconds: float | None = None
    """For rows that go to hubs one by one as they come, each to its `topic`: how often it is noted how far that is."""


Planner = Callable[[QueryContext, QuerySpec, Generation], QueryPlan]

"""The hubs and the tables that streams write, as assets; a stream's progress and health as what is seen of them."""

from collections.abc import Iterator
from datetime import UTC, datetime

from dagster import (
    AssetCheckEvaluation,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    AssetKey,
    AssetObservation,
    AssetSpec,
    MetadataValue,
    asset_check,
)

from settings import Settings, load_settings
from streaming.catalog import STREAMS, QuerySpec, StreamSpec
from streaming.files import StreamFiles
from streaming.health import HealthState, StreamHealth
from streaming.lease import is_held
from streaming.progress import QueryProgress, StreamProgress

HEALTH_CHECK = "stream_health"
WELL = {HealthState.STARTING, HealthState.RUNNING, HealthState.CATCHING_UP, HealthState.STOPPING}
WARNING = {HealthState.BACKING_OFF, HealthState.STOPPED}
"""Not well, but either by a person's will or to be tried again by itself."""
LOOK_AGE_SECONDS = 120.0


def stream_asset_specs() -> list[AssetSpec]:
    hubs = {hub for stream in STREAMS.values() for hub in stream.hubs}
    queries = [query for stream in STREAMS.values() for query in stream.queries]
    return [
        *(
            AssetSpec(
                hub_key(hub),
                deps=[source_key(query) for query in queries if query.target == hub],
                group_name="hub",
                kinds={"kafka"},
                description=f"The hub {hub}: records as they come",
            )
            for hub in sorted(hubs)
        ),
        *(
            AssetSpec(
                table_key(table.name),
                deps=[source_key(query)],
                group_name=stream.name,
                kinds={"delta", "spark"},
                description=table.description,
            )
            for stream in STREAMS.values()
            for query in stream.queries
            for table in query.tables
        ),
    ]


def observations(stream: StreamSpec, progress: StreamProgress) -> Iterator[AssetObservation]:
    """The figures of every query that has done a batch; Dagster plots the numbers."""
    for query in stream.queries:
        done = progress.queries.get(query.name)
        if done is not None and done.batch is not None:
            yield AssetObservation(target_key(query), metadata=_metadata(done))


def stream_checks() -> list[AssetChecksDefinition]:
    """One a query, on what it writes. The supervisor reports them by itself; executed in the UI they tell what it saw
    last."""
    return [_health_check(stream, query) for stream in STREAMS.values() for query in stream.queries]


def health_evaluations(stream: StreamSpec, state: HealthState, sentence: str) -> Iterator[AssetCheckEvaluation]:
    for query in stream.queries:
        yield AssetCheckEvaluation(
            asset_key=target_key(query),
            check_name=HEALTH_CHECK,
            passed=state in WELL,
            severity=_severity(state),
            description=_description(state, sentence),
            metadata={"state": str(state)},
        )


def _health_check(stream: StreamSpec, query: QuerySpec) -> AssetChecksDefinition:
    @asset_check(
        asset=target_key(query),
        name=HEALTH_CHECK,
        description=f"How the stream {stream.name}, which writes here, is; the supervisor reports it",
    )
    def check() -> AssetCheckResult:
        health = StreamHealth.read(StreamFiles(load_settings().run_folder, stream.name).health)
        if health is None or health.age_seconds(datetime.now(UTC)) > LOOK_AGE_SECONDS:
            return AssetCheckResult(
                passed=False,
                severity=AssetCheckSeverity.WARN,
                description="The supervisor does not look: see that its sensor is on and the daemon runs",
            )
        return AssetCheckResult(
            passed=health.state in WELL,
            severity=_severity(health.state),
            description=_description(health.state, health.sentence),
            metadata={"state": str(health.state), "looked at": health.looked_at},
        )

    return check


def _severity(state: HealthState) -> AssetCheckSeverity:
    return AssetCheckSeverity.WARN if state in WARNING else AssetCheckSeverity.ERROR


def _description(state: HealthState, sentence: str) -> str:
    return f"{state}: {sentence}" if sentence else str(state)


def running_query(settings: Settings, stream: StreamSpec, query: str) -> QueryProgress | None:
    """Of a running host only: what a dead one left says nothing about now."""
    files = StreamFiles(settings.run_folder, stream.name)
    progress = StreamProgress.read(files.progress) if is_held(files.lease) else None
    return progress.queries.get(query) if progress else None


def hub_key(hub: str) -> AssetKey:
    return AssetKey(["hub", hub])


def source_key(query: QuerySpec) -> AssetKey:
    return hub_key(query.hub) if query.hub is not None else table_key(query.source_name)


def target_key(query: QuerySpec) -> AssetKey:
    """What shows how the query does: the hub, or the last table, that it writes to."""
    return hub_key(query.target) if isinstance(query.target, str) else table_key(query.target.name)


def table_key(name: str) -> AssetKey:
    return AssetKey(name.split("/"))


def figures(query: QueryProgress) -> dict[str, float | int | None]:
    """What is told of a query, by name; None where there is nothing to tell."""
    return {
        "rows since start": query.total_rows,
        "input rows per second": query.input_rows_per_second,
        "processed rows per second": query.processed_rows_per_second,
        "arriving rows per second": query.arriving_rows_per_second,
        "lag in records": query.lag_records,
        "lag in seconds": query.lag_seconds,
        "end to end in seconds": query.end_to_end_seconds,
        "seconds until retention overtakes": query.retention_left_seconds(),
        "batch": query.batch,
        "batch in seconds": query.batch_seconds,
        "rows of last batch": query.rows,
        "state rows": query.state_rows,
        "state bytes": query.state_bytes,
        "watermark delay in seconds": query.watermark_delay_seconds,
    }


def _metadata(query: QueryProgress) -> dict[str, MetadataValue]:
    return {
        name: MetadataValue.int(value) if isinstance(value, int) else MetadataValue.float(round(value, 3))
        for name, value in figures(query).items()
        if value is not None
    }

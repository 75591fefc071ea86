"""The hubs and the tables that streams write, as assets, and a stream's progress as observations of them."""

from collections.abc import Iterator

from dagster import AssetKey, AssetObservation, AssetSpec, MetadataValue

from streaming.catalog import STREAMS, StreamSpec
from streaming.progress import QueryProgress, StreamProgress


def stream_asset_specs() -> list[AssetSpec]:
    hubs = {query.hub for stream in STREAMS.values() for query in stream.queries}
    return [
        *(
            AssetSpec(
                hub_key(hub), group_name="hub", kinds={"kafka"}, description=f"The hub {hub}: records as they come"
            )
            for hub in sorted(hubs)
        ),
        *(
            AssetSpec(
                table_key(query.table.name),
                deps=[hub_key(query.hub)],
                group_name=stream.name,
                kinds={"delta", "spark"},
                description=query.table.description,
            )
            for stream in STREAMS.values()
            for query in stream.queries
        ),
    ]


def observations(stream: StreamSpec, progress: StreamProgress) -> Iterator[AssetObservation]:
    """The figures of every query that has done a batch; Dagster plots the numbers."""
    for query in stream.queries:
        done = progress.queries.get(query.name)
        if done is not None and done.batch is not None:
            yield AssetObservation(table_key(query.table.name), metadata=_figures(done))


def hub_key(hub: str) -> AssetKey:
    return AssetKey(["hub", hub])


def table_key(name: str) -> AssetKey:
    return AssetKey(name.split("/"))


def _figures(query: QueryProgress) -> dict[str, MetadataValue]:
    figures: dict[str, MetadataValue] = {
        "rows since start": MetadataValue.int(query.total_rows),
        "input rows per second": MetadataValue.float(query.input_rows_per_second),
        "processed rows per second": MetadataValue.float(query.processed_rows_per_second),
        "lag in records": MetadataValue.int(query.lag_records),
        "lag in seconds": MetadataValue.float(query.lag_seconds),
        "batch": MetadataValue.int(query.batch or 0),
        "batch in seconds": MetadataValue.float(query.batch_seconds),
        "rows of last batch": MetadataValue.int(query.rows),
    }
    return figures

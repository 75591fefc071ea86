"""Everything Dagster loads."""

from dagster import Definitions

from assets.streams import stream_asset_specs
from orchestration.sensors import stream_sensor
from orchestration.stream_jobs import stream_job
from streaming.catalog import STREAMS

defs = Definitions(
    assets=stream_asset_specs(),
    jobs=[stream_job(stream) for stream in STREAMS.values()],
    sensors=[stream_sensor(stream) for stream in STREAMS.values()],
)

"""Everything Dagster loads."""

from dagster import Definitions

from assets.streams import stream_asset_specs, stream_checks
from orchestration.alerts import failure_alert
from orchestration.restart_job import restart_job
from orchestration.sensors import stream_sensor
from orchestration.stream_jobs import stream_job
from streaming.catalog import STREAMS

defs = Definitions(
    assets=stream_asset_specs(),
    asset_checks=stream_checks(),
    jobs=[*(stream_job(stream) for stream in STREAMS.values()), restart_job()],
    sensors=[*(stream_sensor(stream) for stream in STREAMS.values()), failure_alert()],
)

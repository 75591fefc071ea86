"""Everything Dagster loads."""

from dagster import Definitions

from assets.anomaly_checks import anomaly_checks
from assets.batch_spark import BatchSpark
from assets.model import model_assets, model_specs
from assets.sensor_checks import sensor_checks
from assets.silver_checks import silver_checks
from assets.streams import stream_asset_specs, stream_checks
from orchestration.alerts import failure_alert
from orchestration.check_job import check_schedule
from orchestration.lost_runs import lost_run_sensor
from orchestration.model_jobs import promote_job, rescore_job
from orchestration.rebuild_job import rebuild_job
from orchestration.replay_job import replay_job
from orchestration.restart_job import restart_job
from orchestration.retrain_job import retrain_job, retrain_schedule, retrain_sensor
from orchestration.sensors import stream_sensor
from orchestration.stream_jobs import stream_job
from streaming.catalog import STREAMS

of_silver, of_sensors, of_anomalies = silver_checks(), sensor_checks(), anomaly_checks()
of_model = model_assets()
retrain = retrain_job(of_model)

defs = Definitions(
    assets=[*stream_asset_specs(), *of_model, *model_specs()],
    asset_checks=[*stream_checks(), *of_silver, *of_sensors, *of_anomalies],
    jobs=[
        *(stream_job(stream) for stream in STREAMS.values()),
        restart_job(),
        replay_job(),
        rebuild_job(),
        retrain,
        promote_job(),
        rescore_job(),
    ],
    sensors=[
        *(stream_sensor(stream) for stream in STREAMS.values()),
        failure_alert(),
        lost_run_sensor(),
        retrain_sensor(retrain),
    ],
    schedules=[
        retrain_schedule(retrain),
        check_schedule("check_silver", "Books, freshness, shares and unknown fields of silver", of_silver),
        check_schedule("check_sensors", "Alerts against silver, books, and late readings", of_sensors),
        check_schedule(
            "check_anomalies", "Whether the current model judges, and clicks are as it knows them", of_anomalies
        ),
    ],
    resources={"spark": BatchSpark()},
)

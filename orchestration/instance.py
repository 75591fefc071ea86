"""Dagster's own configuration, written into the home folder."""

from pathlib import Path
from typing import Any

import yaml
from dagster import DagsterInstance, DagsterRunStatus, RunsFilter

from orchestration.stream_jobs import BATCH_KIND, KIND_TAG
from settings import Settings
from streaming.catalog import STREAMS
from streaming.files import StreamFiles
from streaming.lease import is_held

START_TIMEOUT_SECONDS = 180
CANCEL_TIMEOUT_SECONDS = 180
LAUNCHED = [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING]


def write_instance(settings: Settings) -> None:
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    _write(settings.dagster_home / "dagster.yaml", instance_configuration(settings))


def write_workspace(settings: Settings, port: int) -> Path:
    """A workspace of the one code server that webserver and daemon share."""
    file = settings.dagster_home / "workspace.yaml"
    server = {"host": "127.0.0.1", "port": port, "location_name": "tidewatch"}
    _write(file, {"load_from": [{"grpc_server": server}]})
    return file


def settle_lost_runs(settings: Settings) -> list[str]:
    """Ends the runs of streams that stand as active although nothing of them lives, as after a crash of the machine.

    Call it while no daemon and no code server runs. A run that a person was terminating ends as canceled.
    """
    lost = []
    with DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        for stream in STREAMS:
            if is_held(StreamFiles(settings.run_folder, stream).lease):
                continue
            for run in instance.get_runs(RunsFilter(job_name=stream, statuses=LAUNCHED)):
                if run.status is DagsterRunStatus.CANCELING:
                    instance.report_run_canceled(run, "Its processes were gone when Tidewatch started again.")
                else:
                    instance.report_run_failed(run, "Its processes were gone when Tidewatch started again.")
                    lost.append(run.run_id)
    return lost


def instance_configuration(settings: Settings) -> dict[str, Any]:
    """No maximum run time: a stream runs for as long as nobody stops it."""
    ticks = settings.dagster.tick_days
    return {
        "telemetry": {"enabled": False},
        "storage": {"sqlite": {"base_dir": str(settings.dagster_home / "storage")}},
        "run_queue": {"dequeue_use_threads": True, "dequeue_num_workers": 4, "dequeue_interval_seconds": 1},
        "concurrency": {
            "runs": {
                # Every stream finds a slot beside all the batch runs that may be active.
                "max_concurrent_runs": 2 * len(STREAMS) + settings.dagster.batch_runs,
                "tag_concurrency_limits": [
                    {"key": KIND_TAG, "value": BATCH_KIND, "limit": settings.dagster.batch_runs}
                ],
            }
        },
        "run_monitoring": {
            "enabled": True,
            "start_timeout_seconds": START_TIMEOUT_SECONDS,
            "cancel_timeout_seconds": CANCEL_TIMEOUT_SECONDS,
        },
        "retention": {kind: {"purge_after_days": ticks} for kind in ("sensor", "schedule", "auto_materialize")},
        "sensors": {"use_threads": True, "num_workers": 4},
    }


def _write(file: Path, content: dict[str, Any]) -> None:
    file.write_text(yaml.safe_dump(content, sort_keys=False))

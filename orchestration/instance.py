"""Dagster's own configuration, written into the home folder."""

from pathlib import Path
from typing import Any

import yaml

from orchestration import tags
from settings import Settings

START_TIMEOUT_SECONDS = 180
CANCEL_TIMEOUT_SECONDS = 180


def write_instance(settings: Settings) -> None:
    settings.dagster_home.mkdir(parents=True, exist_ok=True)
    _write(settings.dagster_home / "dagster.yaml", instance_configuration(settings))


def write_workspace(settings: Settings, port: int) -> Path:
    """A workspace of the one code server that webserver and daemon share."""
    file = settings.dagster_home / "workspace.yaml"
    server = {"host": "127.0.0.1", "port": port, "location_name": "tidewatch"}
    _write(file, {"load_from": [{"grpc_server": server}]})
    return file


def instance_configuration(settings: Settings) -> dict[str, Any]:
    """No maximum run time: a stream runs for as long as nobody stops it."""
    ticks = settings.dagster.tick_days
    return {
        "telemetry": {"enabled": False},
        "nux": {"enabled": False},  # no invitation to a newsletter over the first page
        "storage": {"sqlite": {"base_dir": str(settings.dagster_home / "storage")}},
        "run_queue": {"dequeue_use_threads": True, "dequeue_num_workers": 4, "dequeue_interval_seconds": 1},
        "concurrency": {
            "runs": {
                # Only what is of a kind waits for others of it: whatever else runs, a stream is launched at once.
                "max_concurrent_runs": -1,
                "tag_concurrency_limits": [
                    {"key": tags.KIND, "value": tags.BATCH_KIND, "limit": settings.dagster.batch_runs},
                    {"key": tags.KIND, "value": tags.CHECK_KIND, "limit": 1},
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

"""The sensor on a real Dagster instance: what it asks for in each case, and what it reports."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import (
    AssetObservation,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    SensorResult,
    build_sensor_context,
)

from orchestration.definitions import defs
from orchestration.instance import settle_lost_runs, write_instance
from orchestration.sensors import stream_sensor
from settings import Settings
from streaming.catalog import BRONZE
from streaming.files import StreamFiles
from streaming.progress import RUNNING, QueryProgress, StreamProgress

JOB = "bronze"


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    with DagsterInstance.ephemeral() as made:
        yield made


def tick(instance: DagsterInstance, cursor: str | None = None, seconds_later: float = 0) -> SensorResult:
    context = build_sensor_context(instance=instance, cursor=cursor, definitions=defs)
    result = stream_sensor(BRONZE, lambda: datetime.now(UTC) + timedelta(seconds=seconds_later))(context)
    assert isinstance(result, SensorResult)
    return result


def add_run(instance: DagsterInstance, status: DagsterRunStatus) -> DagsterRun:
    return instance.create_run_for_job(defs.resolve_job_def(JOB), status=status)


def requested(result: SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


def test_a_stream_that_was_never_started_is_started(instance: DagsterInstance) -> None:
    assert requested(tick(instance)) == ["bronze:first"]


@pytest.mark.parametrize(
    "status",
    [DagsterRunStatus.STARTING, DagsterRunStatus.STARTED, DagsterRunStatus.CANCELING],
)
def test_an_active_run_is_left_alone_even_behind_a_newer_failed_one(
    instance: DagsterInstance, status: DagsterRunStatus
) -> None:
    active = add_run(instance, status)
    add_run(instance, DagsterRunStatus.FAILURE)
    result = tick(instance)
    assert requested(result) == []
    assert result.skip_reason is not None
    assert result.skip_reason.skip_message == f"run {active.run_id[:8]} is active"


def test_a_failed_run_is_followed_by_another_after_a_wait_that_grows(instance: DagsterInstance) -> None:
    failed = add_run(instance, DagsterRunStatus.FAILURE)
    waiting = tick(instance)
    assert requested(waiting) == []
    assert waiting.skip_reason is not None and "failure 1 in a row" in str(waiting.skip_reason.skip_message)
    assert requested(tick(instance, seconds_later=6)) == [f"bronze:{failed.run_id}"]
    again = add_run(instance, DagsterRunStatus.FAILURE)
    assert requested(tick(instance, seconds_later=6)) == []
    assert requested(tick(instance, seconds_later=11)) == [f"bronze:{again.run_id}"]


def test_what_a_person_canceled_stays_stopped(instance: DagsterInstance) -> None:
    add_run(instance, DagsterRunStatus.FAILURE)
    add_run(instance, DagsterRunStatus.CANCELED)
    result = tick(instance)
    assert requested(result) == []
    assert result.skip_reason is not None and "a person terminated it" in str(result.skip_reason.skip_message)


def test_a_stream_that_was_stopped_with_the_system_is_started(instance: DagsterInstance) -> None:
    ended = add_run(instance, DagsterRunStatus.SUCCESS)
    assert requested(tick(instance)) == [f"bronze:{ended.run_id}"]


def test_figures_are_reported_now_and_then_and_only_of_the_run_that_is_active(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    now = datetime.now(UTC).isoformat()
    queries = {
        "clicks": QueryProgress(5, batch=3, batch_at=now, total_rows=7, lag_records=2),
        "sensors": QueryProgress(5),
    }
    file = StreamFiles(tmp_path / "run", JOB).progress
    StreamProgress(JOB, RUNNING, now, now, run.run_id, queries=queries).write(file)
    first = tick(instance)
    (seen,) = first.asset_events
    assert isinstance(seen, AssetObservation)
    assert seen.asset_key.path == ["bronze", "clicks"]
    assert seen.metadata["rows since start"].value == 7
    assert seen.metadata["lag in records"].value == 2
    assert not tick(instance, first.cursor).asset_events
    StreamProgress(JOB, RUNNING, now, now, "another run", queries=queries).write(file)
    assert not tick(instance).asset_events
    StreamProgress(JOB, RUNNING, now, now, run.run_id, queries=queries).write(file)
    instance.report_run_failed(run)
    assert not tick(instance).asset_events


def test_dagster_shows_the_way_from_each_hub_to_its_table() -> None:
    graph = defs.resolve_asset_graph()
    for hub in ("clicks", "heartbeats", "sensors"):
        (table,) = [key for key in graph.get_all_asset_keys() if key.path == ["bronze", hub]]
        assert [parent.path for parent in graph.get(table).parent_keys] == [["hub", hub]]


def test_runs_that_a_crash_left_as_active_are_settled_at_the_next_start(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    write_instance(settings)
    with DagsterInstance.from_config(str(settings.dagster_home)) as instance:
        started, canceling = add_run(instance, DagsterRunStatus.STARTED), add_run(instance, DagsterRunStatus.CANCELING)
        done = add_run(instance, DagsterRunStatus.SUCCESS)
        assert settle_lost_runs(settings) == [started.run_id]
        statuses = {run.run_id: run.status for run in instance.get_runs()}
    assert statuses == {
        started.run_id: DagsterRunStatus.FAILURE,
        canceling.run_id: DagsterRunStatus.CANCELED,
        done.run_id: DagsterRunStatus.SUCCESS,
    }

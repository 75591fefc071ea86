"""Batch runs whose process is gone, and the process that a batch run notes of itself."""

import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from dagster import (
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    MetadataValue,
    execute_job,
    job,
    op,
    reconstructable,
)
from dagster._core.events import EngineEventData

from orchestration import tags
from orchestration.definitions import defs
from orchestration.lost_runs import end_lost
from orchestration.worker import noting_executor
from processes.identity import ProcessIdentity
from tests.test_sensors import JOB, add_run


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    with DagsterInstance.local_temp(str(tmp_path), overrides={"telemetry": {"enabled": False}}) as made:
        yield made


def started(instance: DagsterInstance, pid: int, **noted: str) -> DagsterRun:
    """With the number that Dagster notes of every run's process."""
    run = add_run(instance, DagsterRunStatus.STARTED, {tags.KIND: tags.BATCH_KIND}, **noted)
    data = EngineEventData(metadata={"pid": MetadataValue.text(str(pid))})
    instance.report_dagster_event(
        DagsterEvent(DagsterEventType.ENGINE_EVENT.value, JOB, event_specific_data=data), run.run_id
    )
    return run


def test_a_clock_that_is_set_ends_no_run(instance: DagsterInstance, monkeypatch: pytest.MonkeyPatch) -> None:
    started(instance, os.getpid(), worker=ProcessIdentity.current().to_json())
    started(instance, os.getpid())
    monkeypatch.setattr(psutil.Process, "create_time", lambda _: time.time() + 3600)
    assert end_lost(instance) == []


def test_a_run_is_lost_though_another_process_has_its_number(instance: DagsterInstance) -> None:
    gone = ProcessIdentity(os.getpid(), "1", ProcessIdentity.current().boot)
    lost = started(instance, os.getpid(), worker=gone.to_json())
    assert [run.run_id for run in end_lost(instance)] == [lost.run_id]


def test_a_run_that_ended_before_it_noted_its_process_is_lost_by_its_number(instance: DagsterInstance) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    lost = started(instance, gone.pid)
    assert [run.run_id for run in end_lost(instance)] == [lost.run_id]


@op
def look_around() -> None:
    pass


@job(executor_def=noting_executor)
def batch() -> None:
    look_around()


def test_a_batch_run_notes_its_process(instance: DagsterInstance) -> None:
    with execute_job(reconstructable(batch), instance) as result:
        assert result.success
        run = instance.get_run_by_id(result.run_id)
    assert run is not None
    assert ProcessIdentity.from_json(tags.noted(run)[tags.WORKER]) == ProcessIdentity.current()


def test_every_job_but_those_of_streams_notes_its_process() -> None:
    for each in defs.resolve_all_job_defs():
        if each.tags.get(tags.KIND) != tags.STREAM_KIND and not each.name.startswith("__"):
            assert each.executor_def is noting_executor, each.name

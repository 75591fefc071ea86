"""What the supervisor makes of files of other versions, and of other runs beside the one it looks after."""

import json
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRun, DagsterRunStatus

from orchestration import tags
from processes.identity import ProcessIdentity
from streaming.files import StreamFiles
from tests.test_sensors import JOB, add_run, happens, health, progress_of, requested, skipped, tick


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    with DagsterInstance.ephemeral() as made:
        yield made


def status(instance: DagsterInstance, run: DagsterRun) -> DagsterRunStatus:
    found = instance.get_run_by_id(run.run_id)
    assert found is not None
    return found.status


@pytest.fixture
def alive() -> Iterator[str]:
    """The identity of a process that runs. Not of this one, which a mistake would end."""
    process = subprocess.Popen(["sleep", "600"])
    identity = ProcessIdentity.of(process.pid)
    assert identity is not None
    yield identity.to_json()
    process.kill()
    process.wait()


DEAD = replace(ProcessIdentity.current(), boot="an earlier boot").to_json()


def test_a_host_of_a_newer_version_is_left_alone(instance: DagsterInstance, tmp_path: Path) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    file = StreamFiles(tmp_path / "run", JOB).progress
    file.parent.mkdir(parents=True)
    newer = asdict(progress_of(run)) | {"a_new_field": 1}
    newer["queries"]["clicks"]["another"] = 1
    file.write_text(json.dumps(newer))
    assert "is active" in skipped(tick(instance, seconds_later=1000))
    assert "restarts_hung" not in health().counts


def test_a_host_whose_progress_can_not_be_read_lives_while_it_writes(instance: DagsterInstance, tmp_path: Path) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    file = StreamFiles(tmp_path / "run", JOB).progress
    file.parent.mkdir(parents=True)
    file.write_text("what nobody here understands")
    assert "is active" in skipped(tick(instance, seconds_later=1000))
    os.utime(file, (time.time() - 500, time.time() - 500))
    tick(instance, seconds_later=1000)
    assert status(instance, run) is DagsterRunStatus.FAILURE


def test_what_an_earlier_host_left_unreadable_is_no_sign_of_life(instance: DagsterInstance, tmp_path: Path) -> None:
    file = StreamFiles(tmp_path / "run", JOB).progress
    file.parent.mkdir(parents=True)
    file.write_text("what nobody here understands")
    os.utime(file, (time.time() - 10, time.time() - 10))
    add_run(instance, DagsterRunStatus.STARTED)
    assert "is starting" in skipped(tick(instance, seconds_later=1))


def test_a_run_that_was_lost_beside_another_does_not_start_what_a_person_stopped(
    instance: DagsterInstance, alive: str
) -> None:
    running = add_run(instance, DagsterRunStatus.STARTED, worker=alive)
    lost = add_run(instance, DagsterRunStatus.STARTED, worker=DEAD)
    canceling = add_run(instance, DagsterRunStatus.CANCELING, worker=DEAD)
    assert skipped(tick(instance)) == f"run {running.run_id[:8]} is starting"
    assert status(instance, lost) is DagsterRunStatus.FAILURE
    assert status(instance, canceling) is DagsterRunStatus.CANCELED
    happens(instance, running, DagsterEventType.RUN_CANCELING)
    happens(instance, running, DagsterEventType.RUN_CANCELED)
    assert "a person terminated it" in skipped(tick(instance, seconds_later=10**6))
    assert health().counts == {}


def test_a_run_that_was_lost_beside_another_takes_nothing_from_its_failure(instance: DagsterInstance) -> None:
    running = add_run(instance, DagsterRunStatus.STARTED, {tags.ATTEMPT: "3"})
    canceling = add_run(instance, DagsterRunStatus.CANCELING, worker=DEAD)
    tick(instance)
    happens(instance, running, DagsterEventType.RUN_FAILURE)
    result = tick(instance, seconds_later=100)
    assert requested(result) == [f"bronze:{canceling.run_id}"]  # the newest run names the key
    (request,) = result.run_requests or ()
    assert request.tags[tags.ATTEMPT] == "4"


def test_a_run_beside_another_is_lost_without_a_process_but_not_while_it_waits(
    instance: DagsterInstance, tmp_path: Path, alive: str
) -> None:
    well = add_run(instance, DagsterRunStatus.STARTED, worker=alive)
    progress_of(well).write(StreamFiles(tmp_path / "run", JOB).progress)
    waiting = add_run(instance, DagsterRunStatus.STARTED, worker=alive)
    unknown = add_run(instance, DagsterRunStatus.NOT_STARTED)
    tick(instance, seconds_later=100)
    assert status(instance, unknown) is DagsterRunStatus.NOT_STARTED
    assert "is active" in skipped(tick(instance, seconds_later=130))
    assert status(instance, unknown) is DagsterRunStatus.FAILURE
    assert status(instance, waiting) is DagsterRunStatus.STARTED

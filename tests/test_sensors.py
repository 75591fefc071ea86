"""The sensor on a real Dagster instance: what it asks for in each case, and what it reports."""

import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dagster import (
    AssetCheckEvaluation,
    AssetCheckSeverity,
    AssetObservation,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    DagsterRun,
    DagsterRunStatus,
    MetadataValue,
    SensorResult,
    build_sensor_context,
)
from dagster._core.events import EngineEventData

from orchestration import tags
from orchestration.definitions import defs
from orchestration.lost_runs import end_lost
from orchestration.sensors import stream_sensor
from orchestration.sight import PAGE, REFUSED
from processes.identity import ProcessIdentity, boot_id
from settings import load_settings
from streaming.catalog import BRONZE
from streaming.files import StreamFiles, refusal_file
from streaming.health import HealthState, StreamHealth
from streaming.progress import RUNNING, QueryProgress, StreamProgress
from streaming.watch import ProgressWriter

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


EVENTS = {
    DagsterRunStatus.NOT_STARTED: (),
    DagsterRunStatus.STARTING: (DagsterEventType.RUN_STARTING,),
    DagsterRunStatus.STARTED: (DagsterEventType.RUN_START,),
    DagsterRunStatus.CANCELING: (DagsterEventType.RUN_START, DagsterEventType.RUN_CANCELING),
    DagsterRunStatus.CANCELED: (DagsterEventType.RUN_START, DagsterEventType.RUN_CANCELED),
    DagsterRunStatus.SUCCESS: (DagsterEventType.RUN_START, DagsterEventType.RUN_SUCCESS),
    DagsterRunStatus.FAILURE: (DagsterEventType.RUN_START, DagsterEventType.RUN_FAILURE),
}


def add_run(
    instance: DagsterInstance, status: DagsterRunStatus, planned: dict[str, str] | None = None, **noted: str
) -> DagsterRun:
    """A run that went through what a run of this status goes through."""
    run = instance.create_run_for_job(defs.resolve_job_def(JOB), tags=planned)
    for kind in EVENTS[status]:
        happens(instance, run, kind)
    if noted:
        tags.note(instance, run.run_id, **noted)
    made = instance.get_run_by_id(run.run_id)
    assert made is not None and made.status is status
    return made


def happens(instance: DagsterInstance, run: DagsterRun, kind: DagsterEventType, message: str = "") -> None:
    instance.report_dagster_event(DagsterEvent(kind.value, JOB, message=message), run.run_id)


def requested(result: SensorResult) -> list[str | None]:
    return [request.run_key for request in result.run_requests or ()]


def skipped(result: SensorResult) -> str:
    assert result.skip_reason is not None
    return str(result.skip_reason.skip_message)


def checks(result: SensorResult) -> list[AssetCheckEvaluation]:
    return [event for event in result.asset_events if isinstance(event, AssetCheckEvaluation)]


def observed(result: SensorResult) -> list[AssetObservation]:
    return [event for event in result.asset_events if isinstance(event, AssetObservation)]


def health() -> StreamHealth:
    """As the last tick left it."""
    found = StreamHealth.read(StreamFiles(load_settings().run_folder, JOB).health)
    assert found is not None
    return found


def test_a_stream_that_was_never_started_is_started(instance: DagsterInstance) -> None:
    assert requested(tick(instance)) == ["bronze:first"]


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (DagsterRunStatus.NOT_STARTED, "is being launched"),
        (DagsterRunStatus.STARTING, "is being launched"),
        (DagsterRunStatus.STARTED, "is starting"),
        (DagsterRunStatus.CANCELING, "is stopping"),
    ],
)
def test_an_active_run_is_left_alone_even_behind_a_newer_failed_one(
    instance: DagsterInstance, status: DagsterRunStatus, said: str
) -> None:
    active = add_run(instance, status)
    add_run(instance, DagsterRunStatus.FAILURE)
    result = tick(instance)
    assert requested(result) == []
    assert skipped(result) == f"run {active.run_id[:8]} {said}"


def test_a_failed_run_is_followed_by_another_after_a_wait_that_grows(instance: DagsterInstance) -> None:
    failed = add_run(instance, DagsterRunStatus.FAILURE)
    first = tick(instance, seconds_later=2)
    assert requested(first) == [f"bronze:{failed.run_id}"]
    (request,) = first.run_requests or ()
    assert request.tags[tags.ATTEMPT] == "2" and request.tags[tags.FRUITLESS] == "1"
    wait = datetime.fromisoformat(request.tags[tags.NOT_BEFORE]) - datetime.now(UTC)
    assert 0 < wait.total_seconds() < 6.1
    again = add_run(instance, DagsterRunStatus.FAILURE, dict(request.tags))
    assert requested(tick(instance, seconds_later=2)) == []
    assert health().state is HealthState.BACKING_OFF
    assert health().attempt == 3
    assert requested(tick(instance, seconds_later=8)) == [f"bronze:{again.run_id}"]


def test_what_a_person_terminated_stays_stopped(instance: DagsterInstance) -> None:
    add_run(instance, DagsterRunStatus.FAILURE)
    add_run(instance, DagsterRunStatus.CANCELED)
    add_run(instance, DagsterRunStatus.FAILURE, failure="LEASE_HELD")
    result = tick(instance, seconds_later=10**6)
    assert requested(result) == []
    assert "a person terminated it" in skipped(result)
    assert health().state is HealthState.STOPPED


def test_the_run_that_ended_last_counts_not_the_one_that_was_launched_last(instance: DagsterInstance) -> None:
    """Beside a running stream somebody launches another run, and thinks better of it."""
    running = add_run(instance, DagsterRunStatus.STARTED)
    add_run(instance, DagsterRunStatus.CANCELED)
    happens(instance, running, DagsterEventType.RUN_FAILURE)
    assert len(requested(tick(instance, seconds_later=10))) == 1
    again = add_run(instance, DagsterRunStatus.STARTED)
    add_run(instance, DagsterRunStatus.FAILURE)
    happens(instance, again, DagsterEventType.RUN_CANCELING)
    happens(instance, again, DagsterEventType.RUN_CANCELED)
    assert "a person terminated it" in skipped(tick(instance, seconds_later=10**6))


def test_a_batch_run_whose_process_is_gone_is_ended_and_one_that_lives_is_not(instance: DagsterInstance) -> None:
    def started(pid: int, kind: str = tags.BATCH_KIND) -> DagsterRun:
        run = add_run(instance, DagsterRunStatus.STARTED, {tags.KIND: kind})
        data = EngineEventData(metadata={"pid": MetadataValue.text(str(pid))})
        event = DagsterEvent(DagsterEventType.ENGINE_EVENT.value, JOB, event_specific_data=data)
        instance.report_dagster_event(event, run.run_id)
        return run

    gone = subprocess.Popen(["true"])
    gone.wait()
    lost, living, stream = started(gone.pid), started(os.getpid()), started(gone.pid, tags.STREAM_KIND)
    assert [run.run_id for run in end_lost(instance)] == [lost.run_id]
    statuses = [instance.get_run_by_id(run.run_id) for run in (lost, living, stream)]
    assert [run.status.value for run in statuses if run] == ["FAILURE", "STARTED", "STARTED"]


def test_a_code_server_that_refuses_launches_is_reported(instance: DagsterInstance, tmp_path: Path) -> None:
    run = add_run(instance, DagsterRunStatus.NOT_STARTED)
    happens(instance, run, DagsterEventType.RUN_FAILURE, f"Tried to start a run on a server {REFUSED}")
    tick(instance)
    assert refusal_file(tmp_path / "run").read_text() == run.run_id


@pytest.mark.parametrize("ended", [DagsterEventType.RUN_FAILURE, DagsterEventType.RUN_SUCCESS])
def test_what_ended_otherwise_while_a_person_was_terminating_it_stays_stopped(
    instance: DagsterInstance, ended: DagsterEventType
) -> None:
    run = add_run(instance, DagsterRunStatus.CANCELING)
    assert "is stopping" in skipped(tick(instance))
    happens(instance, run, ended)
    assert "a person terminated it" in skipped(tick(instance, seconds_later=10**6))


def test_a_stream_that_was_stopped_with_the_system_is_started(instance: DagsterInstance) -> None:
    ended = add_run(instance, DagsterRunStatus.SUCCESS)
    assert requested(tick(instance)) == [f"bronze:{ended.run_id}"]


@pytest.mark.parametrize("kind", ["SETTINGS", "CHECKPOINT", "SOURCE_DATA_LOST"])
def test_what_no_restart_cures_is_held_with_its_cure_until_a_person_launches(
    instance: DagsterInstance, kind: str
) -> None:
    add_run(instance, DagsterRunStatus.FAILURE, failure=kind, reason="It broke. Mend it.")
    held = tick(instance, seconds_later=10**6)
    assert requested(held) == []
    assert health().state is HealthState.BLOCKED
    assert health().sentence == "It broke. Mend it. Then launch it again."
    assert {check.severity for check in checks(held)} == {AssetCheckSeverity.ERROR}
    assert not any(check.passed for check in checks(held))
    assert "Mend it." in str(checks(held)[0].description)
    launched = add_run(instance, DagsterRunStatus.FAILURE)
    assert requested(tick(instance, seconds_later=10)) == [f"bronze:{launched.run_id}"]


def test_a_crash_loop_is_held_but_not_one_that_the_hub_causes(instance: DagsterInstance) -> None:
    loop = {tags.ATTEMPT: "12", tags.FRUITLESS: "9"}
    away = add_run(instance, DagsterRunStatus.FAILURE, loop, failure="SURROUNDINGS", reason="It is away.")
    assert requested(tick(instance, seconds_later=400)) == [f"bronze:{away.run_id}"]
    add_run(instance, DagsterRunStatus.FAILURE, loop, failure="TRANSIENT", reason="It broke.")
    assert requested(tick(instance, seconds_later=10**6)) == []
    assert health().state is HealthState.CRASH_LOOPING
    assert "10 runs in a row failed without any progress. The last: It broke." in health().sentence
    assert health().counts == {"starts": 1, "holds": 1}


def test_a_run_whose_process_is_gone_is_failed_and_followed_at_once(instance: DagsterInstance) -> None:
    gone = subprocess.Popen(["sleep", "100"])
    identity = ProcessIdentity.of(gone.pid)
    assert identity is not None
    run = add_run(instance, DagsterRunStatus.STARTED, worker=identity.to_json())
    assert "is starting" in skipped(tick(instance))
    gone.kill()
    gone.wait()
    result = tick(instance, seconds_later=2)
    assert requested(result) == [f"bronze:{run.run_id}"]
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None and ended.status is DagsterRunStatus.FAILURE
    assert ended.tags[tags.FAILURE] == tags.LOST
    assert ended.tags[tags.REASON] == "the process of its run is gone"
    assert health().counts == {"restarts_lost": 1, "starts": 1}


def test_a_run_of_an_earlier_boot_is_failed_though_its_numbers_live_again(instance: DagsterInstance) -> None:
    earlier = replace(ProcessIdentity.current(), boot="an earlier boot")
    run = add_run(instance, DagsterRunStatus.STARTED, worker=earlier.to_json())
    assert requested(tick(instance, seconds_later=2)) == [f"bronze:{run.run_id}"]


def test_any_number_of_refused_launches_hides_neither_a_running_stream_nor_a_stopped_one(
    instance: DagsterInstance,
) -> None:
    active = add_run(instance, DagsterRunStatus.STARTED)
    for _ in range(2 * PAGE + 1):
        add_run(instance, DagsterRunStatus.FAILURE, failure="LEASE_HELD")
    assert skipped(tick(instance)) == f"run {active.run_id[:8]} is starting"
    happens(instance, active, DagsterEventType.RUN_CANCELED)
    assert "a person terminated it" in skipped(tick(instance, seconds_later=100))


def test_a_run_that_was_re_executed_is_not_judged_by_the_tags_of_its_parent(instance: DagsterInstance) -> None:
    earlier = replace(ProcessIdentity.current(), boot="an earlier boot").to_json()
    loop = {tags.ATTEMPT: "10", tags.FRUITLESS: "9"}
    parent = add_run(instance, DagsterRunStatus.FAILURE, loop, worker=earlier, failure="SETTINGS", reason="It broke.")
    assert health_after(instance) is HealthState.BLOCKED
    again = add_run(instance, DagsterRunStatus.STARTED, {**parent.tags, tags.PARENT: parent.run_id})
    assert skipped(tick(instance)) == f"run {again.run_id[:8]} is starting"
    happens(instance, again, DagsterEventType.RUN_FAILURE)
    (request,) = tick(instance, seconds_later=2).run_requests or ()
    assert request.tags[tags.ATTEMPT] == "2" and request.tags[tags.FRUITLESS] == "1"


def health_after(instance: DagsterInstance) -> HealthState:
    tick(instance)
    return health().state


def test_a_run_that_was_never_queued_is_given_up(instance: DagsterInstance) -> None:
    forgotten = add_run(instance, DagsterRunStatus.NOT_STARTED)
    assert "is being launched" in skipped(tick(instance, seconds_later=110))
    tick(instance, seconds_later=130)
    ended = instance.get_run_by_id(forgotten.run_id)
    assert ended is not None and ended.status is DagsterRunStatus.FAILURE


def test_a_run_that_could_not_be_launched_says_why_and_is_no_crash(instance: DagsterInstance) -> None:
    run = add_run(instance, DagsterRunStatus.NOT_STARTED, {tags.ATTEMPT: "12", tags.FRUITLESS: "9"})
    happens(instance, run, DagsterEventType.RUN_FAILURE, "The code server did not answer.")
    assert requested(tick(instance, seconds_later=10)) == []
    assert health().state is HealthState.BACKING_OFF
    assert "The code server did not answer." in health().sentence


def test_a_stream_that_is_down_tells_until_when_the_hub_keeps_what_it_has_not_read(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    run = add_run(instance, DagsterRunStatus.FAILURE, failure="CHECKPOINT", reason="It broke.")
    read = {"0": "2026-01-02T00:00:00+00:00", "1": "2026-01-01T00:00:00+00:00"}
    progress = progress_of(run, read_up_to=read, retention_seconds=3600.0)
    progress.write(StreamFiles(tmp_path / "run", JOB).progress)
    tick(instance)
    assert health().unread_kept_until == "2026-01-01T01:00:00+00:00"
    # A start that fails before its first batch has read nothing, and takes nothing of it back.
    ProgressWriter(StreamFiles(tmp_path / "run", JOB).progress, JOB, "another run").expect("clicks", 5, 3600.0)
    tick(instance)
    assert health().unread_kept_until == "2026-01-01T01:00:00+00:00"


def test_while_the_hub_is_away_no_query_is_called_stuck(instance: DagsterInstance, tmp_path: Path) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    file = StreamFiles(tmp_path / "run", JOB).progress
    long_ago = progress_of(run)
    stuck = {name: replace(query, sign_clock=time.monotonic() - 500) for name, query in long_ago.queries.items()}
    replace(long_ago, queries=stuck, hub_away=True).write(file)
    assert "is active" in skipped(tick(instance))
    assert health().sentence == "it waits for the hub, which does not answer"
    replace(long_ago, queries=stuck).write(file)
    tick(instance)
    assert health().counts["restarts_hung"] == 1
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None and tags.noted(ended)[tags.QUERY] == "clicks"
    assert StreamFiles(tmp_path / "run", JOB).revoked.read_text() == run.run_id


def test_a_run_that_was_being_terminated_when_its_process_ended_is_canceled(instance: DagsterInstance) -> None:
    earlier = replace(ProcessIdentity.current(), boot="an earlier boot")
    run = add_run(instance, DagsterRunStatus.CANCELING, worker=earlier.to_json())
    assert requested(tick(instance)) == []
    ended = instance.get_run_by_id(run.run_id)
    assert ended is not None and ended.status is DagsterRunStatus.CANCELED


def progress_of(run: DagsterRun, **figures: Any) -> StreamProgress:
    now, clock = datetime.now(UTC).isoformat(), time.monotonic()
    queries = {
        "clicks": QueryProgress(5, batch=3, batch_at=now, total_rows=7, sign_clock=clock, **figures),
        "sensors": QueryProgress(5, sign_clock=clock),
    }
    return StreamProgress(JOB, RUNNING, now, now, run.run_id, boot=boot_id(), alive_clock=clock, queries=queries)


def test_figures_are_reported_now_and_then_and_only_of_the_run_that_is_active(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    file = StreamFiles(tmp_path / "run", JOB).progress
    progress = progress_of(run, lag_records=2, lag_seconds=100.0, retention_seconds=3600.0)
    progress.write(file)
    first = tick(instance)
    (seen,) = observed(first)
    assert seen.asset_key.path == ["bronze", "clicks"]
    assert seen.metadata["rows since start"].value == 7
    assert seen.metadata["lag in records"].value == 2
    assert seen.metadata["seconds until retention overtakes"].value == 3500
    assert "watermark delay in seconds" not in seen.metadata
    assert not observed(tick(instance, first.cursor))
    replace(progress, run_id="another run").write(file)
    assert not observed(tick(instance))
    progress.write(file)
    instance.report_run_failed(run)
    assert not observed(tick(instance))


def test_a_check_is_reported_when_the_state_changes_and_not_for_new_figures(
    instance: DagsterInstance, tmp_path: Path
) -> None:
    run = add_run(instance, DagsterRunStatus.STARTED)
    file = StreamFiles(tmp_path / "run", JOB).progress
    progress_of(run).write(file)
    first = tick(instance)
    assert [(check.asset_key.path[1], check.passed) for check in checks(first)] == [
        (hub, True) for hub in ("clicks", "heartbeats", "sensors")
    ]
    assert checks(first)[0].description == "running"
    assert not checks(tick(instance, first.cursor))
    behind = {"lag_seconds": 600.0, "rows": 500, "arriving_rows_per_second": 50.0}
    progress_of(run, lag_records=6000, **behind).write(file)
    second = tick(instance, first.cursor)
    assert checks(second)[0].passed
    said = "catching up: clicks is 6,000 records (10 min) behind, about 2 min to go"
    assert checks(second)[0].description == said
    progress_of(run, lag_records=5000, **behind).write(file)
    assert not checks(tick(instance, second.cursor))
    assert "5,000 records" in health().sentence
    assert checks(tick(instance, second.cursor, seconds_later=601))


def test_dagster_shows_the_way_from_each_hub_to_its_table() -> None:
    graph = defs.resolve_asset_graph()
    for hub in ("clicks", "heartbeats", "sensors"):
        (table,) = [key for key in graph.get_all_asset_keys() if key.path == ["bronze", hub]]
        assert [parent.path for parent in graph.get(table).parent_keys] == [["hub", hub]]

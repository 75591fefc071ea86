"""A code server that launches no more is replaced once, and one with new code when a run asks for it."""

import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import DagsterEventType, DagsterInstance, DagsterRunStatus

from bench.rig import wait_for
from orchestration import restart_job, tags
from orchestration.command.code_server import CodeServerKeeper
from orchestration.command.services import Service
from orchestration.lost_runs import refused
from orchestration.new_code import NoCodeServer, replace_code_server, wish_file
from orchestration.refusals import Refusal, newest_refusal, note_refusal
from orchestration.sight import REFUSED
from settings import Settings
from streaming.catalog import STREAMS
from tests.test_sensors import add_run, happens

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
OLD = Refusal("old", NOW - timedelta(minutes=5))
NEW = Refusal("new", NOW - timedelta(minutes=1))


def test_an_old_refusal_that_is_told_again_does_not_hide_a_newer_one(tmp_path: Path) -> None:
    assert newest_refusal(tmp_path) is None
    for refusal in (OLD, NEW, OLD, NEW, OLD):
        note_refusal(tmp_path, refusal, NOW)
    assert newest_refusal(tmp_path) == NEW


def test_a_refusal_from_a_clock_that_was_ahead_does_not_hide_the_next(tmp_path: Path) -> None:
    note_refusal(tmp_path, Refusal("ahead", NOW + timedelta(days=1)), NOW + timedelta(days=1))
    note_refusal(tmp_path, NEW, NOW)
    assert newest_refusal(tmp_path) == NEW


def test_sensors_that_note_at_the_same_time_do_not_get_into_each_others_way(tmp_path: Path) -> None:
    refusals = [Refusal(f"run {number}", NOW - timedelta(seconds=number % 50)) for number in range(400)]
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda refusal: note_refusal(tmp_path, refusal, NOW), refusals))
    newest = newest_refusal(tmp_path)
    assert newest is not None and newest.at == NOW
    assert [file.name for file in tmp_path.iterdir()] == ["code-server.refuses"]


@pytest.fixture
def instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DagsterInstance]:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    with DagsterInstance.ephemeral() as made:
        yield made


def test_a_refused_launch_of_any_job_is_noticed(instance: DagsterInstance) -> None:
    now = datetime.now(UTC)
    words = f"Tried to start a run on a server {REFUSED}"
    batch = add_run(instance, DagsterRunStatus.NOT_STARTED, {tags.KIND: tags.BATCH_KIND})
    happens(instance, batch, DagsterEventType.RUN_FAILURE, words)
    other = add_run(instance, DagsterRunStatus.NOT_STARTED, {tags.KIND: tags.BATCH_KIND})
    happens(instance, other, DagsterEventType.RUN_FAILURE, "The code server did not answer.")
    failed_later = add_run(instance, DagsterRunStatus.STARTED)
    happens(instance, failed_later, DagsterEventType.RUN_FAILURE, words)
    assert [refusal.run_id for refusal in refused(instance, now)] == [batch.run_id]
    assert refused(instance, now + timedelta(hours=1)) == []


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Service]:
    """A process in the place of the code server."""
    command = [sys.executable, "-c", "import time; time.sleep(600)"]
    service = Service("code-server", command, tmp_path / "log", {})
    service.start()
    yield service
    service.stop()


def looks(keeper: CodeServerKeeper, server: Service, seconds: float) -> set[int]:
    """What `up` does, and the processes that were seen doing so."""
    seen = set()
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        keeper.look_after()
        server.look_after()
        seen.add(server.pid)
        time.sleep(0.1)
    return seen


def test_streams_that_were_refused_together_replace_it_once(tmp_path: Path, server: Service) -> None:
    keeper = CodeServerKeeper(server, tmp_path, lambda: True)
    note_refusal(tmp_path, Refusal("of an earlier session", datetime.now(UTC) - timedelta(hours=1)), datetime.now(UTC))
    assert len(looks(keeper, server, 1)) == 1, "it was replaced for what another had refused"
    refusals = [Refusal("a", datetime.now(UTC)), Refusal("b", datetime.now(UTC))]
    over = threading.Event()

    def sensors() -> None:
        while not over.wait(0.05):
            for refusal in refusals:
                note_refusal(tmp_path, refusal, datetime.now(UTC))

    thread = threading.Thread(target=sensors)
    thread.start()
    try:
        # It takes 2 s to start again; any further replacement would come within the rest.
        assert len(looks(keeper, server, 6)) == 2
    finally:
        over.set()
        thread.join()
    note_refusal(tmp_path, Refusal("c", datetime.now(UTC)), datetime.now(UTC))
    assert len(looks(keeper, server, 6)) == 2, "it was not replaced although it refused again"


def test_a_run_gets_a_code_server_with_new_code_before_it_goes_on(tmp_path: Path, server: Service) -> None:
    wish_file(tmp_path).touch()  # left by a run that was killed
    keeper = CodeServerKeeper(server, tmp_path, lambda: True)
    old = server.pid
    assert looks(keeper, server, 0.5) == {old}
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(replace_code_server, tmp_path)
        wait_for("the wish", wish_file(tmp_path).exists, 10)
        assert len(looks(keeper, server, 5)) == 2
        assert asked.result(1) is True
    assert server.is_running and server.pid != old and not wish_file(tmp_path).exists()


def test_new_code_that_can_not_be_loaded_is_told(tmp_path: Path, server: Service) -> None:
    keeper = CodeServerKeeper(server, tmp_path, lambda: False)
    with ThreadPoolExecutor(1) as threads:
        asked = threads.submit(replace_code_server, tmp_path, 15, 1)
        wait_for("the wish", wish_file(tmp_path).exists, 10)
        looks(keeper, server, 3)
        with pytest.raises(NoCodeServer, match="No code server with the new code answers"):
            asked.result(10)


def test_where_nobody_replaces_it_nothing_is_left_behind(tmp_path: Path) -> None:
    assert replace_code_server(tmp_path / "run", 0.2) is False
    assert not wish_file(tmp_path / "run").exists()


@pytest.mark.parametrize("answer", [True, False, NoCodeServer("No code server with the new code answers after 120 s")])
def test_streams_are_restarted_unless_nobody_could_start_them_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: bool | NoCodeServer
) -> None:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    drained: list[str] = []

    def replaces(_: Path) -> bool:
        assert not drained, "a stream was stopped before there was new code to supervise it"
        if isinstance(answer, NoCodeServer):
            raise answer
        return answer

    def drain(_: Settings, stream: str) -> str:
        drained.append(stream)
        return "done"

    monkeypatch.setattr(restart_job, "replace_code_server", replaces)
    monkeypatch.setattr(restart_job, "drain_stream", drain)
    result = restart_job.restart_job().execute_in_process(raise_on_error=False)
    if isinstance(answer, NoCodeServer):
        assert not result.success and not drained
        assert "The streams run on" in str(result.all_events)
    else:
        assert result.success and drained == list(STREAMS)

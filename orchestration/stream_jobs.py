"""One Dagster job a stream. Its op is a thin parent of the stream host: it relays its log and answers for its end."""

import contextlib
import logging
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime

from dagster import (
    DagsterExecutionInterruptedError,
    DagsterInstance,
    DagsterRunStatus,
    Failure,
    JobDefinition,
    OpExecutionContext,
    in_process_executor,
    job,
    op,
)

from orchestration import tags
from orchestration.sight import CLOSING_SECONDS, OVER, run_status
from processes.child import end_group, spawn
from processes.identity import ProcessIdentity
from settings import Settings, SettingsError, load_settings
from streaming import failures
from streaming.catalog import StreamSpec
from streaming.files import StreamFiles
from streaming.lease import Holder, is_held

HOST_LINE = re.compile(r"\S+Z (?P<level>INFO|WARNING|ERROR) (?P<message>.*)")
RUN_LOOK_SECONDS = 5.0
RELAY_SECONDS = 10.0
ENDING = OVER | {DagsterRunStatus.CANCELING}

log = logging.getLogger("tidewatch")


def stream_job(stream: StreamSpec) -> JobDefinition:
    @op(name=f"host_{stream.name}", description=stream.description)
    def host_stream(context: OpExecutionContext) -> None:
        host_until_it_ends(context, stream.name)

    @job(
        name=stream.name,
        description=f"{stream.description}. Runs until it is terminated; a failed run is started again.",
        executor_def=in_process_executor,
        tags={tags.KIND: tags.STREAM_KIND, tags.STREAM: stream.name, "dagster/priority": "10"},
    )
    def hosted() -> None:
        host_stream()

    return hosted


def host_until_it_ends(context: OpExecutionContext, stream: str) -> None:
    """Returns when the host stopped in order; raises its failure, or the interruption after the host is gone."""
    instance, run_id = context.instance, context.run_id
    tags.note(instance, run_id, worker=ProcessIdentity.current().to_json())
    try:
        settings = load_settings()
        _wait_for_its_time(context, settings)
        _wait_for_one_that_is_ending(context, settings, stream)
        code = _host(context, settings, stream)
    except SettingsError as error:
        reason = f"{error} Correct the setting and launch the stream again."
        tags.note(instance, run_id, failure=failures.FailureClass.SETTINGS.name, reason=reason)
        raise Failure(reason, metadata={"class": "SETTINGS"}, allow_retries=False) from None
    except Failure:
        raise
    except Exception as error:
        reason = f"The run of {stream} failed before or beside its host: {type(error).__name__}: {error}"
        tags.note(instance, run_id, failure=tags.LOST, reason=reason)
        raise
    if code != 0:
        raise _failure(instance, settings, stream, run_id, code)
    if run_status(instance, run_id) is DagsterRunStatus.CANCELING:
        # Terminated through a code server that did not know this process: it ends as if the signal had come.
        raise DagsterExecutionInterruptedError


def _host(context: OpExecutionContext, settings: Settings, stream: str) -> int:
    """The exit code of the host, which is gone when this returns or raises."""
    instance, run_id = context.instance, context.run_id
    if run_status(instance, run_id) in OVER:
        raise Failure(f"Run {run_id} was ended before its host was started.", allow_retries=False)
    command = [sys.executable, "-m", "streaming", stream, "--run-id", run_id]
    environment = {"TIDEWATCH_HOME": str(settings.home)}
    child = spawn(command, environment=environment, output=subprocess.PIPE, parent_death_signal=signal.SIGKILL)
    identity = ProcessIdentity.of(child.pid)
    grace = settings.stream.stop_seconds + CLOSING_SECONDS
    # Also while the host is being stopped, so that it never waits for somebody to read what it says.
    relay = threading.Thread(target=_relay, args=(context, child), name="relay", daemon=True)
    relay.start()
    try:
        with _ended_with_its_run(instance, run_id, identity, grace):
            return child.wait()
    except DagsterExecutionInterruptedError:
        context.log.info(f"{stream} is told to stop; it may finish its running batch")
        raise
    finally:
        if identity is not None:
            end_group(identity, grace_seconds=grace)
        child.wait()
        relay.join(RELAY_SECONDS)


def _wait_for_its_time(context: OpExecutionContext, settings: Settings) -> None:
    if not_before := tags.planned(context.run).get(tags.NOT_BEFORE):
        seconds = (datetime.fromisoformat(not_before) - datetime.now(UTC)).total_seconds()
        # A clock that was set back meanwhile must not make it wait for longer than any wait can be.
        seconds = min(seconds, 2 * settings.supervisor.longest_wait_seconds)
        if seconds > 0:
            context.log.info(f"The host starts in {seconds:.1f} s, because the run before failed")
            time.sleep(seconds)


def _wait_for_one_that_is_ending(context: OpExecutionContext, settings: Settings, stream: str) -> None:
    """Who launches a stream that is just stopping means it: the run waits until the other is gone."""
    lease = StreamFiles(settings.run_folder, stream).lease
    deadline = time.monotonic() + settings.stream.stop_seconds + 2 * CLOSING_SECONDS
    while is_held(lease) and time.monotonic() < deadline:
        holder = Holder.read(lease)
        if holder is None or holder.run_id is None or run_status(context.instance, holder.run_id) not in ENDING:
            return
        time.sleep(0.2)


@contextlib.contextmanager
def _ended_with_its_run(
    instance: DagsterInstance, run_id: str, host: ProcessIdentity | None, grace_seconds: float
) -> Iterator[None]:
    """Ends the host when Dagster holds the run for finished or to be canceled, whether or not a signal comes."""
    over = threading.Event()

    def watch() -> None:
        while host is not None and not over.wait(RUN_LOOK_SECONDS):
            try:
                ending = run_status(instance, run_id) in ENDING
            except Exception:
                log.exception("Run %s can't be looked up; tried again", run_id)
                continue
            if ending:
                end_group(host, grace_seconds=grace_seconds)
                return

    threading.Thread(target=watch, name="run-watch", daemon=True).start()
    try:
        yield
    finally:
        over.set()


def _relay(context: OpExecutionContext, child: "subprocess.Popen[str]") -> None:
    """All lines to the run's output; those that the host wrote for people to Dagster's log too."""
    assert child.stdout is not None
    levels = {"INFO": context.log.info, "WARNING": context.log.warning, "ERROR": context.log.error}
    failed: set[str] = set()

    def tell(where: str, write: Callable[[str], object], text: str) -> None:
        """A host whose lines nobody reads blocks, and would be killed as hung: what can't be written is let go."""
        try:
            write(text)
        except Exception as error:
            if where not in failed:
                log.error("Lines of the host can't be written to %s: %s. It goes on without.", where, error)
            failed.add(where)

    for line in child.stdout:
        tell("the run's output", _print, line)
        if said := HOST_LINE.match(line):
            tell("Dagster's log", levels[said["level"]], said["message"])


def _print(line: str) -> None:
    sys.stdout.write(line)
    sys.stdout.flush()


def _failure(instance: DagsterInstance, settings: Settings, stream: str, run_id: str, code: int) -> Failure:
    """Also leaves the class and the reason in the run's tags, where the supervisor finds them."""
    run = instance.get_run_by_id(run_id)
    noted = tags.noted(run) if run is not None else {}
    if code < 0 and tags.REASON in noted:  # the supervisor ended the host
        kind, reason = noted.get(tags.FAILURE, tags.KILLED), noted[tags.REASON]
    else:
        kind, reason = _class_and_reason(settings, stream, code)
        tags.note(instance, run_id, failure=kind, reason=reason)
    return Failure(reason, metadata={"class": kind}, allow_retries=False)


def _class_and_reason(settings: Settings, stream: str, code: int) -> tuple[str, str]:
    known = {int(kind): kind for kind in failures.FailureClass}
    if code not in known:
        return tags.KILLED, f"The host of {stream} {_end(code)}."
    kind = known[code]
    left = failures.Failure.read(StreamFiles(settings.run_folder, stream).failure)
    return kind.name, str(
        left
    ) if left and left.kind is kind else f"The host of {stream} ended with {kind.name}; its log says why."


def _end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}, its log says why"

"""One Dagster job a stream. Its op is a thin parent of the stream host: it relays its log and answers for its end."""

import re
import signal
import subprocess
import sys

from dagster import (
    DagsterExecutionInterruptedError,
    Failure,
    JobDefinition,
    OpExecutionContext,
    in_process_executor,
    job,
    op,
)

from processes.child import end_group, spawn
from processes.identity import ProcessIdentity
from settings import Settings, load_settings
from streaming import failures
from streaming.catalog import StreamSpec
from streaming.files import StreamFiles

KIND_TAG = "tidewatch/kind"
STREAM_TAG = "tidewatch/stream"
STREAM_KIND = "stream"
BATCH_KIND = "batch"

HOST_LINE = re.compile(r"\S+Z (?P<level>INFO|WARNING|ERROR) (?P<message>.*)")
# Beyond what the host itself allows its last batch, for the session to close.
CLOSING_SECONDS = 15


def stream_job(stream: StreamSpec) -> JobDefinition:
    @op(name=f"host_{stream.name}", description=stream.description)
    def host_stream(context: OpExecutionContext) -> None:
        host_until_it_ends(context, load_settings(), stream.name)

    @job(
        name=stream.name,
        description=f"{stream.description}. Runs until it is terminated; a failed run is started again.",
        executor_def=in_process_executor,
        tags={KIND_TAG: STREAM_KIND, STREAM_TAG: stream.name, "dagster/priority": "10"},
    )
    def hosted() -> None:
        host_stream()

    return hosted


def host_until_it_ends(context: OpExecutionContext, settings: Settings, stream: str) -> None:
    """Returns when the host stopped in order; raises its failure, or the interruption after the host is gone."""
    command = [sys.executable, "-m", "streaming", stream, "--run-id", context.run_id]
    environment = {"TIDEWATCH_HOME": str(settings.home)}
    child = spawn(command, environment=environment, output=subprocess.PIPE, parent_death_signal=signal.SIGKILL)
    identity = ProcessIdentity.of(child.pid)
    try:
        _relay(context, child)
        code = child.wait()
    except DagsterExecutionInterruptedError:
        context.log.info(f"{stream} is told to stop; it may finish its running batch")
        raise
    finally:
        if identity is not None:
            end_group(identity, grace_seconds=settings.stream.stop_seconds + CLOSING_SECONDS)
        child.wait()
    if code != 0:
        raise _failure(settings, stream, code)


def _relay(context: OpExecutionContext, child: "subprocess.Popen[str]") -> None:
    """All lines to the run's output; those that the host wrote for people to Dagster's log too."""
    assert child.stdout is not None
    for line in child.stdout:
        sys.stdout.write(line)
        sys.stdout.flush()
        if said := HOST_LINE.match(line):
            {"INFO": context.log.info, "WARNING": context.log.warning, "ERROR": context.log.error}[said["level"]](
                said["message"]
            )


def _failure(settings: Settings, stream: str, code: int) -> Failure:
    known = {int(kind): kind for kind in failures.FailureClass}
    if code not in known:
        return Failure(
            f"The host of {stream} {_end(code)}.",
            metadata={"class": "KILLED"},
            allow_retries=False,
        )
    kind = known[code]
    left = None
    if kind is not failures.FailureClass.LEASE_HELD:
        left = failures.Failure.read(StreamFiles(settings.run_folder, stream).failure)
    described = str(left) if left else f"The host of {stream} ended with {kind.name}; its log says why."
    return Failure(described, metadata={"class": kind.name}, allow_retries=False)


def _end(code: int) -> str:
    return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}, its log says why"

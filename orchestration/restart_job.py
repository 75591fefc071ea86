"""A job that lets everything that is supervised take up new code: first the code server, which supervises, then each
stream, which stops after its running batch and is started again."""

import os
import signal

from dagster import Config, Failure, JobDefinition, OpExecutionContext, job, op
from pydantic import Field

from orchestration.new_code import NoCodeServer, replace_code_server
from orchestration.sight import CLOSING_SECONDS
from orchestration.worker import noting_executor
from processes.child import wait_until
from settings import Settings, load_settings
from streaming.catalog import STREAMS
from streaming.files import StreamFiles
from streaming.lease import Holder, is_held


class RestartConfig(Config):
    streams: list[str] = Field(list(STREAMS), description="The streams to restart; all if left out")


def restart_job() -> JobDefinition:
    @op(description="Stops the running ones of the streams in order; streams that do not run are left alone.")
    def drain(context: OpExecutionContext, config: RestartConfig) -> None:
        unknown = [stream for stream in config.streams if stream not in STREAMS]
        if unknown:
            raise Failure(f"There is no stream {', '.join(unknown)}: there are {', '.join(STREAMS)}.")
        settings = load_settings()
        try:
            if replace_code_server(settings.run_folder):
                context.log.info("The code server has taken up the new code")
            else:
                context.log.warning("The code server keeps its code: no `tidewatch up` runs here that replaces it")
        except NoCodeServer as error:
            # Stopped now, a stream would have nobody to start it again.
            raise Failure(f"{error}: its log says why. The streams run on; mend the code and restart again.") from None
        for stream in config.streams:
            context.log.info(drain_stream(settings, stream))

    @job(
        name="restart",
        description="Lets the code server and then streams take up new code: each stream stops after its running batch "
        "and is started again.",
        executor_def=noting_executor,
    )
    def restart() -> None:
        drain()

    return restart


def drain_stream(settings: Settings, stream: str) -> str:
    """Returns when the stream has stopped; what was done, in a sentence."""
    lease = StreamFiles(settings.run_folder, stream).lease
    holder = Holder.read(lease) if is_held(lease) else None
    if holder is None or not holder.host.is_alive():
        return f"{stream} does not run, so it is left alone"
    if holder.run_id is None:
        return f"{stream} is held by process {holder.host.pid}, which was started by hand, so it is left alone"
    os.kill(holder.host.pid, signal.SIGTERM)

    def stopped() -> bool:
        return not is_held(lease) or Holder.read(lease) != holder

    if not wait_until(stopped, settings.stream.stop_seconds + CLOSING_SECONDS):
        raise Failure(f"{stream} did not stop in time; terminate its run, then launch it.")
    return f"{stream} has stopped after its running batch; the supervisor starts it again"

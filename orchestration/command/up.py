"""`tidewatch up`: starts every process, prints where each is, starts again what ends, and stops all in order."""

import contextlib
import fcntl
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import click

from hub import INPUT_HUBS
from hub.broker import BrokerError, EmbeddedBroker
from hub.connection import HubConnection
from hub.topics import HubUnreachable, create_missing_topics
from orchestration.command.code_server import CodeServerKeeper
from orchestration.command.services import FIRST_WAIT_SECONDS, LONGEST_WAIT_SECONDS, Service, ServiceError, say
from orchestration.command.standstill import (
    CODE_SERVER_SECONDS,
    DAEMON_SECONDS,
    Listener,
    code_server_answers,
    daemon_beats,
)
from orchestration.command.status import UNSUPERVISED, stream_states
from orchestration.drain import drain_streams
from processes.identity import ProcessIdentity
from processes.java import JavaMissing
from processes.ports import answers, free_port, why_taken
from settings import Settings, SettingsError

LOOK_SECONDS = 1.0


class UpError(Exception):
    """Not everything can be started; the message says what and why."""


class StopFlag:
    """Set by SIGINT, SIGTERM or the terminal's end. A second signal changes nothing: stopping is bounded anyway."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, self._request)

    def wait(self, seconds: float) -> bool:
        deadline = time.monotonic() + seconds
        while not self.requested and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.requested

    def _request(self, *_: object) -> None:
        self.requested = True


def run_everything(settings: Settings, traffic: bool) -> None:
    """Runs until SIGINT or SIGTERM."""
    stop = StopFlag()
    _prepare_home(settings)
    try:
        with contextlib.ExitStack() as running:
            running.enter_context(_only_one(settings))
            _run(settings, traffic, stop, running)
            say("Stopping: traffic, daemon, streams after their running batches, webserver, hub")
        say("Stopped. The next start goes on from here.")
    except (BrokerError, HubUnreachable, JavaMissing, ServiceError, SettingsError) as error:
        raise UpError(str(error)) from None


def _prepare_home(settings: Settings) -> None:
    try:
        settings.home.mkdir(parents=True, exist_ok=True, mode=0o700)
        (settings.run_folder / "logs").mkdir(parents=True, exist_ok=True)
        (settings.run_folder / "up.lock").touch()
    except OSError as error:
        raise UpError(
            f"The home folder {settings.home} can't be used ({error.strerror}): correct its rights, free some space, "
            "or set TIDEWATCH_HOME to another folder."
        ) from None


def _run(settings: Settings, traffic: bool, stop: StopFlag, running: contextlib.ExitStack) -> None:
    """Starts everything, each with its stop in `running`, and looks after it until the stop."""
    if reason := why_taken(settings.dagster.port, settings.dagster.host):
        raise UpError(
            f"{settings.dagster.host}:{settings.dagster.port} can't be used for the Dagster UI ({reason}): "
            "stop the program that has it, or set TIDEWATCH_DAGSTER_PORT."
        )
    if reason := why_taken(settings.metrics.port, settings.metrics.host):
        raise UpError(
            f"{settings.metrics.host}:{settings.metrics.port} can't be used for the metrics ({reason}): "
            "stop the program that has it, or set TIDEWATCH_METRICS_PORT."
        )
    broker = _start_broker(settings, running) if settings.hub.embedded else None
    create_missing_topics(HubConnection.from_settings(settings.hub), settings.hub, INPUT_HUBS)
    code_port = free_port()
    code_server, webserver, daemon = _dagster_services(settings, code_port)
    services = [code_server, webserver, daemon]
    if traffic:
        rate = str(settings.traffic.rate)
        services.append(_service(settings, "traffic", "orchestration.command", "traffic", "all", "--rate", rate))
    # What starts last stops first; the streams stop between the daemon, which would start them again, and the rest.
    code_server.start()
    running.callback(code_server.stop)
    code_server.wait_until(lambda: answers(code_port), stop.wait)
    webserver.start()
    running.callback(webserver.stop)
    running.callback(lambda: drain_streams(settings, code_server.pid, say))
    for service in services[2:]:
        service.start()
        running.callback(service.stop)
    _serve_metrics(settings, running)
    _announce(settings, traffic)
    webserver.wait_until(_web_answers(settings), stop.wait)
    if not stop.requested:
        say("The Dagster UI answers")
    told: dict[str, str] = {}
    keeper = BrokerKeeper(broker) if broker is not None else None
    code_keeper = CodeServerKeeper(code_server, settings.run_folder, lambda: answers(code_port))
    listeners = [
        Listener(code_server, code_server_answers(code_port), CODE_SERVER_SECONDS),
        Listener(daemon, daemon_beats(settings.dagster_home), DAEMON_SECONDS),
    ]
    for listener in listeners:
        listener.start()
        running.callback(listener.stop)
    while not stop.wait(LOOK_SECONDS):
        code_keeper.look_after()
        for listener in listeners:
            listener.look_after()
        for service in services:
            service.look_after()
        if keeper is not None:
            keeper.look_after()
        _tell_changes(settings, told)


@contextlib.contextmanager
def _only_one(settings: Settings) -> Iterator[None]:
    with (settings.run_folder / "up.lock").open("a+") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            raise UpError(
                f"Tidewatch already runs on {settings.home} as process {lock.read().strip() or 'unknown'}: "
                "stop that one with Ctrl-C, or set another TIDEWATCH_HOME and other ports."
            ) from None
        lock.truncate(0)
        lock.write(str(ProcessIdentity.current().pid))
        lock.flush()
        yield


def _start_broker(settings: Settings, running: contextlib.ExitStack) -> EmbeddedBroker:
    say("Starting the embedded broker")
    broker = EmbeddedBroker(
        settings.hub_folder,
        settings.jars,
        port=settings.hub.port,
        controller_port=settings.hub.controller_port,
        memory=settings.hub.broker_memory,
    )
    running.callback(broker.stop)
    broker.start()
    return broker


class BrokerKeeper:
    """Starts the embedded broker again when it ended, later each time that this does not help."""

    def __init__(self, broker: EmbeddedBroker) -> None:
        self._broker = broker
        self._wait_seconds = FIRST_WAIT_SECONDS
        self._try_at = 0.0

    def look_after(self) -> None:
        process = self._broker.process
        if (process is not None and process.poll() is None) or time.monotonic() < self._try_at:
            return
        say("The embedded broker ended; starting it again")
        try:
            self._broker.start()
            self._wait_seconds = FIRST_WAIT_SECONDS
        except BrokerError as error:
            say(str(error))
            self._wait_seconds = min(self._wait_seconds * 2, LONGEST_WAIT_SECONDS)
        self._try_at = time.monotonic() + self._wait_seconds


def _dagster_services(settings: Settings, code_port: int) -> tuple[Service, Service, Service]:
    """Code server, webserver and daemon. The two share the one code server, which saves memory."""
    from orchestration.instance import write_instance, write_workspace  # imports Dagster

    write_instance(settings)
    workspace = str(write_workspace(settings, code_port))
    code = ["api", "grpc", "-m", "orchestration.definitions", "-h", "127.0.0.1", "-p", str(code_port)]
    web = ["-h", settings.dagster.host, "-p", str(settings.dagster.port), "-w", workspace]
    quiet = ["--log-level", "warning"]
    return (
        _service(settings, "code-server", "dagster", *code, "--location-name", "tidewatch", *quiet),
        _service(settings, "webserver", "dagster_webserver", *web, "--dagster-log-level", "warning", *quiet),
        _service(settings, "daemon", "dagster._daemon", "run", "-w", workspace, *quiet),
    )


def _service(settings: Settings, name: str, module: str, *arguments: str) -> Service:
    log = settings.run_folder / "logs" / f"{name}.log"
    if log.exists():
        log.replace(log.with_name(f"{name}.log.1"))
    environment = {"DAGSTER_HOME": str(settings.dagster_home), "TIDEWATCH_HOME": str(settings.home)}
    return Service(name, [sys.executable, "-m", module, *arguments], log, environment)


def _serve_metrics(settings: Settings, running: contextlib.ExitStack) -> None:
    from orchestration.metrics import serve_metrics

    server, thread = serve_metrics(settings)
    running.callback(thread.join)
    running.callback(server.server_close)
    running.callback(server.shutdown)


def _web_answers(settings: Settings) -> Callable[[], bool]:
    url = f"http://{settings.dagster.host}:{settings.dagster.port}/server_info"

    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=2) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    return ask


def _announce(settings: Settings, traffic: bool) -> None:
    hub = HubConnection.from_settings(settings.hub).servers
    lines = [
        f"  Dagster UI  http://{settings.dagster.host}:{settings.dagster.port}",
        f"  metrics     http://{settings.metrics.host}:{settings.metrics.port}/metrics",
        f"  hub         {hub}{' (embedded Kafka broker)' if settings.hub.embedded else ''}",
        f"  lake        {settings.lake_root}",
        f"  logs        {settings.run_folder / 'logs'}",
    ]
    if traffic:
        lines.append(f"  traffic     {settings.traffic.rate:g} records a second on {', '.join(INPUT_HUBS)}")
    lines.append("Streams start by themselves within two minutes. Ctrl-C stops everything.")
    click.echo("\n".join(lines))


def _tell_changes(settings: Settings, told: dict[str, str]) -> None:
    for state in stream_states(settings):
        if told.get(state.stream, UNSUPERVISED) != state.state:
            say(f"{state.stream}: {state.state}{f' ({state.note})' if state.note else ''}")
        told[state.stream] = state.state

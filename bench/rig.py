"""A whole Tidewatch in a folder of its own on free ports, driven from outside as a user or an operator would."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import psutil

from processes.ports import answers, free_port
from settings import Settings
from streaming.catalog import STREAMS
from streaming.files import StreamFiles
from streaming.health import StreamHealth
from streaming.lease import Holder, is_held
from streaming.progress import RUNNING, StreamProgress

START_SECONDS = 120
FAULTS = Path(__file__).with_name("faults")
"""On PYTHONPATH it makes hosts misbehave; see its `sitecustomize`."""
STREAM = "bronze"

RUNS = "{ runsOrError { ... on Runs { results { runId jobName status tags { key value } } } } }"
TERMINATE = 'mutation { terminateRun(runId: "%s") { __typename } }'
CODE_SERVER = "dagster api grpc"
DAEMON = "dagster._daemon"
LAUNCH = """mutation { launchRun(executionParams: { selector: { repositoryLocationName: "tidewatch",
    repositoryName: "__repository__", jobName: "%s" }, runConfigData: {} }) { __typename } }"""


def wait_for(what: str, ready: Callable[[], bool], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > deadline:
            raise AssertionError(f"{what} did not happen in {seconds} s")
        time.sleep(0.1)


class Home:
    """A home folder with settings of its own, and the `tidewatch` command on it."""

    def __init__(self, folder: Path, **environment: str) -> None:
        self.home = folder
        self.environment = {
            "TIDEWATCH_HOME": str(folder),
            "TIDEWATCH_HUB_PORT": str(free_port()),
            "TIDEWATCH_HUB_CONTROLLER_PORT": str(free_port()),
            "TIDEWATCH_DAGSTER_PORT": str(free_port()),
            "TIDEWATCH_METRICS_PORT": str(free_port()),
            "TIDEWATCH_SUPERVISOR_STREAMS": json.dumps([STREAM]),
            **environment,
        }
        self.settings = Settings(home=folder)

    def files(self, stream: str = STREAM) -> StreamFiles:
        return StreamFiles(self.settings.run_folder, stream)

    def command(self, *arguments: str, timeout: float = 300) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            self.command_line(*arguments),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def start_command(self, *arguments: str, **options: Any) -> "subprocess.Popen[str]":
        environment = {**os.environ, **self.environment}
        return subprocess.Popen(self.command_line(*arguments), env=environment, text=True, **options)

    @staticmethod
    def command_line(*arguments: str) -> list[str]:
        return [sys.executable, "-m", "orchestration.command", *arguments]

    @contextlib.contextmanager
    def traffic(
        self, ledger: Path, rate: float = 200, hub: str = "all", faults: Sequence[str] = ("--bad-fraction", "0.02")
    ) -> Iterator[None]:
        """Traffic for as long as the block runs."""
        sender = self.start_command(
            *("traffic", hub, "--rate", str(rate), "--ledger", str(ledger)), *faults, stderr=subprocess.DEVNULL
        )
        try:
            yield
        finally:
            sender.send_signal(signal.SIGINT)
            try:
                sender.wait(180)  # what the hub has not acknowledged yet is waited for
            finally:
                sender.kill()

    def audit(self, ledger: Path, wait: float = 120) -> dict[str, Any]:
        done = self.command("audit", str(ledger), "--json", "--wait", str(wait), timeout=wait + 300)
        assert done.stdout, done.stderr
        result: dict[str, Any] = json.loads(done.stdout)
        assert (done.returncode == 0) == result["clean"]
        return result

    def holder(self, stream: str = STREAM) -> Holder:
        found = Holder.read(self.files(stream).lease)
        assert found is not None
        return found

    def jvm(self, stream: str = STREAM) -> int:
        found = self.holder(stream).jvm
        assert found is not None
        return found.pid

    def progress(self, stream: str = STREAM) -> StreamProgress | None:
        return StreamProgress.read(self.files(stream).progress)

    def health(self, stream: str = STREAM) -> StreamHealth | None:
        return StreamHealth.read(self.files(stream).health)

    def counts(self, stream: str = STREAM) -> dict[str, int]:
        """What the supervisor did, by kind."""
        health = self.health(stream)
        return health.counts if health else {}

    def commits(self, stream: str = STREAM) -> list[tuple[str, str, float]]:
        """Table, run and time of each commit by a run, in the order of each table's log."""
        found = []
        for table, files in self.commit_files(stream).items():
            for commit in files:
                for action in map(json.loads, commit.read_text().splitlines()):
                    if note := action.get("commitInfo", {}).get("userMetadata"):
                        found.append((table, note.removeprefix("run "), commit.stat().st_mtime))
        return found

    def commit_files(self, stream: str = STREAM) -> dict[str, list[Path]]:
        """Of each table that the stream writes, in the order of its log."""
        tables = [table for query in STREAMS[stream].queries for table in query.tables]
        root = self.settings.lake_root
        return {table.name: sorted(Path(table.path(root), "_delta_log").glob("*.json")) for table in tables}


class Rig(Home):
    """`tidewatch up` in a process of its own, with a little traffic. The settings are TIDEWATCH_ variables."""

    def __init__(self, folder: Path, **settings: str) -> None:
        defaults = {
            "TIDEWATCH_BRONZE_TRIGGER_SECONDS": "1",
            "TIDEWATCH_STREAM_REPORT_SECONDS": "5",
            "TIDEWATCH_TRAFFIC_RATE": "60",
        }
        super().__init__(folder, **{**defaults, **settings})
        self.log = folder.parent / "up.log"
        self.process: subprocess.Popen[str] | None = None

    def __enter__(self) -> "Rig":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self.process is not None and self.process.poll() is None:
            self.stop()

    def start(self) -> None:
        with self.log.open("a") as log:
            self.process = self.start_command("up", stdout=log, stderr=subprocess.STDOUT, start_new_session=True)

    def stop(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGINT)
        assert self.process.wait(120) == 0, self.log.read_text()

    def status(self, stream: str = STREAM) -> dict[str, Any]:
        done = self.command("status", "--json")
        assert done.returncode == 0, done.stderr
        state: dict[str, Any] = json.loads(done.stdout)[stream]
        return state

    def wait_for_rows(self, stream: str = STREAM) -> None:
        def arrive() -> bool:
            assert self.process is not None and self.process.poll() is None, self.log.read_text()
            progress, health = self.progress(stream), self.health(stream)
            if progress is None or health is None or not is_held(self.files(stream).lease):
                return False
            if not health.run_id == progress.run_id == self.holder(stream).run_id:
                return False
            return health.state == RUNNING and all(query.total_rows for query in progress.queries.values())

        wait_for(f"{stream} runs with rows arriving in each table", arrive, 180)

    def graphql(self, query: str) -> dict[str, Any]:
        port = self.environment["TIDEWATCH_DAGSTER_PORT"]
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/graphql",
            json.dumps({"query": query}).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            data: dict[str, Any] = json.loads(answer.read())["data"]
            return data

    def runs(self, stream: str = STREAM) -> list[dict[str, Any]]:
        """Newest first."""
        runs: list[dict[str, Any]] = self.graphql(RUNS)["runsOrError"]["results"]
        return [run for run in runs if run["jobName"] == stream]

    def statuses(self, stream: str = STREAM) -> list[str]:
        """Newest first."""
        return [run["status"] for run in self.runs(stream)]

    def terminate(self, stream: str = STREAM) -> None:
        self.graphql(TERMINATE % self.runs(stream)[0]["runId"])

    def launch(self, job: str = STREAM) -> None:
        answer = self.graphql(LAUNCH % job)
        assert answer["launchRun"]["__typename"] == "LaunchRunSuccess", answer

    def worker(self, stream: str = STREAM) -> int:
        """The process of the stream's run."""
        return psutil.Process(self.holder(stream).host.pid).ppid()

    def service(self, words: str) -> int:
        """The child of `up` that has these words in its command line."""
        assert self.process is not None
        (found,) = [
            child.pid for child in psutil.Process(self.process.pid).children() if words in " ".join(child.cmdline())
        ]
        return found

    def has_new_code_server(self, before: int) -> bool:
        """Whether another process took the place of this one, and answers."""
        try:
            now = self.service(CODE_SERVER)
            arguments = psutil.Process(now).cmdline()
            return now != before and answers(int(arguments[arguments.index("-p") + 1]))
        except (ValueError, psutil.Error):
            return False

    def took_over(self, old: Holder, stream: str = STREAM) -> bool:
        """Whether another run's host runs its queries and has committed."""
        new = self.progress(stream)
        if new is None or new.run_id in (None, old.run_id) or new.phase != RUNNING:
            return False
        return any(run == new.run_id for _, run, _ in self.commits(stream))

    def processes(self) -> list[psutil.Process]:
        """Every process that works on this home."""
        found = []
        for process in psutil.process_iter():
            try:
                same = process.environ().get("TIDEWATCH_HOME") == str(self.home)
            except psutil.Error:
                continue
            if same and process.pid != os.getpid():
                found.append(process)
        return found

    def cpu_seconds(self) -> float:
        """Of the processes that work on this home now; what others used that have ended is not in it."""
        used = 0.0
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                used += times.user + times.system
        return used

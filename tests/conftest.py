"""Fixtures: a real broker, a real Spark session, and whole systems in temporary folders on free ports."""

import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import psutil
import pytest
from pyspark.sql import SparkSession

from hub.broker import BrokerError, EmbeddedBroker
from hub.connection import HubConnection
from processes.ports import free_port
from settings import Settings, SparkSettings
from streaming.session import close_session, spark_session
from tests import reaper
from tests.silver import Silver, silver_in
from tests.system import System

SESSION = uuid.uuid4().hex
JAVA_OPTIONS = "JAVA_TOOL_OPTIONS"


def pytest_configure() -> None:
    """Before any fixture: what the tests start can be told from everything else, and is ended with them."""
    for name in [name for name in os.environ if name.startswith("TIDEWATCH_")]:
        del os.environ[name]
    os.environ[reaper.MARK] = SESSION
    # How long an example takes says more about the machine than about the code.
    hypothesis.settings.register_profile("tests", deadline=None)
    hypothesis.settings.load_profile("tests")
    # Most JVMs here live for seconds: compiling for the long run would take more time than it gives back.
    os.environ[JAVA_OPTIONS] = "-XX:TieredStopAtLevel=1"
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    environment = {name: value for name, value in os.environ.items() if name != reaper.MARK}
    subprocess.Popen(
        [sys.executable, "-m", "tests.reaper", SESSION],
        stdin=subprocess.PIPE,
        env=environment,
        start_new_session=True,
    )


@pytest.fixture(scope="session", autouse=True)
def nothing_stays_running() -> Iterator[None]:
    """Fails the session when a test left a process behind."""
    before = {process.pid for process in reaper.marked(SESSION)}
    yield
    deadline = time.monotonic() + 10
    while left := [process for process in reaper.marked(SESSION) if process.pid not in before]:
        if time.monotonic() > deadline:
            told = [f"{process.pid}: {' '.join(_command(process))[:200]}" for process in left]
            pytest.fail("Tests left processes running:\n" + "\n".join(told))
        time.sleep(0.2)


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedBroker]:
    """One broker for all tests that use topics of their own."""
    running = started_broker(tmp_path_factory.mktemp("broker"))
    yield running
    running.stop()


def started_broker(folder: Path) -> EmbeddedBroker:
    for attempt in range(3):
        broker = EmbeddedBroker(folder, Settings().jars, port=free_port(), controller_port=free_port())
        try:
            broker.start()
            return broker
        except BrokerError:
            broker.stop()
            if attempt == 2:
                raise
    raise AssertionError


@pytest.fixture
def connection(broker: EmbeddedBroker) -> HubConnection:
    return HubConnection(broker.servers)


@pytest.fixture
def topic() -> str:
    """A name that no other test uses."""
    return f"topic-{uuid.uuid4().hex[:12]}"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    home = tmp_path_factory.mktemp("spark")
    with pytest.MonkeyPatch.context() as patched:
        patched.delenv(JAVA_OPTIONS)  # this one lives long
        session = spark_session(Settings(home=home, spark=SparkSettings(driver_memory="2g")), "tests")
    yield session
    close_session(session, 30)


@pytest.fixture
def silver(spark: SparkSession, tmp_path: Path) -> Iterator[Silver]:
    with silver_in(spark, tmp_path) as made:
        yield made


@pytest.fixture
def system(tmp_path: Path) -> Iterator[System]:
    """A broker with its own hubs and a home, ready for hosts and the command. Paths with spaces must do."""
    with System(tmp_path / "the home") as running:
        yield running

"""A real Kafka broker on loopback, one node in KRaft mode, that keeps its data in one folder."""

import base64
import contextlib
import subprocess
import time
import uuid
from pathlib import Path
from typing import Self

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from processes.child import end_group, spawn
from processes.identity import ProcessIdentity
from processes.java import java_program
from processes.ports import LOOPBACK, why_taken

START_SECONDS = 60
STOP_SECONDS = 20


class BrokerError(Exception):
    """The embedded broker can't run; the message says why and what to do."""


class EmbeddedBroker:
    """Start it, use `servers`, stop it. Started again on the same folder it has the same records."""

    def __init__(self, folder: Path, jars: Path, *, port: int, controller_port: int, memory: str = "384m") -> None:
        self.folder = folder
        self.port = port
        self.servers = f"{LOOPBACK}:{port}"
        self._jars = jars / "broker"
        self._controller_port = controller_port
        self._memory = memory
        self._process: subprocess.Popen[str] | None = None

    def start(self) -> None:
        """Returns when the broker answers."""
        self._refuse_second_broker()
        self._refuse_taken_port(self.port, "TIDEWATCH_HUB_PORT")
        self._refuse_taken_port(self._controller_port, "TIDEWATCH_HUB_CONTROLLER_PORT")
        if not any(self._jars.glob("kafka_*.jar")):
            raise BrokerError(f"The broker's jars are not in {self._jars}: run `make setup`.")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._write_configuration()
        if not (self._data / "meta.properties").exists():
            self._format()
        with self._log.open("a") as log:
            self._process = spawn(self._java("kafka.Kafka", str(self._properties)), output=log)
        identity = ProcessIdentity.of(self._process.pid)
        if identity:
            self._identity_file.write_text(identity.to_json())
        self._wait_until_ready()

    def stop(self) -> None:
        """Lets the broker close its log; kills it when that takes too long."""
        if self._process is None:
            return
        if identity := ProcessIdentity.of(self._process.pid):
            end_group(identity, grace_seconds=STOP_SECONDS)
        self._process.wait()
        self._process = None
        self._identity_file.unlink(missing_ok=True)

    @property
    def process(self) -> subprocess.Popen[str] | None:
        return self._process

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def _data(self) -> Path:
        return self.folder / "log"

    @property
    def _log(self) -> Path:
        return self.folder / "broker.out"

    @property
    def _properties(self) -> Path:
        return self.folder / "server.properties"

    @property
    def _identity_file(self) -> Path:
        return self.folder / "broker.json"

    def _refuse_second_broker(self) -> None:
        if not self._identity_file.exists():
            return
        other = ProcessIdentity.from_json(self._identity_file.read_text())
        if other and other.is_alive():
            raise BrokerError(
                f"A broker already runs on {self.folder} as process {other.pid}: stop that one first "
                f"(Ctrl-C where it was started, or `kill {other.pid}`), or set another TIDEWATCH_HOME."
            )

    @staticmethod
    def _refuse_taken_port(port: int, variable: str) -> None:
        if reason := why_taken(port):
            raise BrokerError(
                f"Port {port} on {LOOPBACK} can't be used for the embedded broker ({reason}): "
                f"stop the program that has it, or set {variable} to a free port."
            )

    def _write_configuration(self) -> None:
        node = {
            "process.roles": "broker,controller",
            "node.id": 1,
            "controller.quorum.voters": f"1@{LOOPBACK}:{self._controller_port}",
            "listeners": f"PLAINTEXT://{self.servers},CONTROLLER://{LOOPBACK}:{self._controller_port}",
            "advertised.listeners": f"PLAINTEXT://{self.servers}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": self._data,
            "offsets.topic.replication.factor": 1,
            "offsets.topic.num.partitions": 4,
            "transaction.state.log.replication.factor": 1,
            "transaction.state.log.min.isr": 1,
            "transaction.state.log.num.partitions": 4,
            "share.coordinator.state.topic.replication.factor": 1,
            "share.coordinator.state.topic.min.isr": 1,
            "group.initial.rebalance.delay.ms": 0,
            "auto.create.topics.enable": "false",
            "log.message.timestamp.type": "LogAppendTime",
        }
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in node.items()))
        logging = {
            "rootLogger.level": "WARN",
            "rootLogger.appenderRef.file.ref": "file",
            "appender.file.name": "file",
            "appender.file.type": "RollingFile",
            "appender.file.fileName": self.folder / "broker.log",
            "appender.file.filePattern": self.folder / "broker.log.%i",
            "appender.file.layout.type": "PatternLayout",
            "appender.file.layout.pattern": "%d %p %c: %m%n",
            "appender.file.policies.type": "SizeBasedTriggeringPolicy",
            "appender.file.policies.size": "10MB",
            "appender.file.strategy.type": "DefaultRolloverStrategy",
            "appender.file.strategy.max": 3,
        }
        self._logging.write_text("".join(f"{key}={value}\n" for key, value in logging.items()))

    @property
    def _logging(self) -> Path:
        return self.folder / "log4j2.properties"

    def _format(self) -> None:
        command = self._java("kafka.tools.StorageTool", "format", "-t", cluster_id(), "-c", str(self._properties))
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise BrokerError(
                f"The broker's folder {self._data} can't be prepared: {_last_line(done.stdout + done.stderr)}"
            )

    def _java(self, main: str, *arguments: str) -> list[str]:
        return [
            *(java_program(), f"-Xmx{self._memory}", "-XX:+UseSerialGC", "-XX:+ExitOnOutOfMemoryError"),
            *("-Djava.net.preferIPv4Stack=true", f"-Dlog4j2.configurationFile={self._logging}"),
            *("-cp", str(self._jars / "*"), main, *arguments),
        ]

    def _wait_until_ready(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + START_SECONDS
        client = AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        while True:
            if (code := self._process.poll()) is not None:
                self._identity_file.unlink(missing_ok=True)
                raise BrokerError(
                    f"The embedded broker ended with code {code} while it started: "
                    f"{_last_line(self._log.read_text())} (more in {self.folder})"
                )
            with contextlib.suppress(KafkaException):
                if client.list_topics(timeout=1).brokers:
                    return
            if time.monotonic() > deadline:
                self.stop()
                raise BrokerError(
                    f"The embedded broker did not answer on {self.servers} in {START_SECONDS} s: see {self.folder}."
                )


def cluster_id() -> str:
    """A new name for a cluster, in Kafka's form: never with a dash at the front, which would read as an option."""
    random = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([random[0] & 0x7F]) + random[1:]).decode().rstrip("=")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "it said nothing"

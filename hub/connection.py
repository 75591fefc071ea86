"""From settings to what clients of the hub need: librdkafka's names and Spark's."""

from dataclasses import dataclass
from typing import Self

from settings import HubSettings

EVENT_HUBS_KAFKA_PORT = 9093
# Event Hubs closes idle connections after 4 minutes and takes messages of up to 1 MiB with its own overhead.
EVENT_HUBS_MAX_REQUEST = 1_046_527
EVENT_HUBS_IDLE_MS = 180_000
EVENT_HUBS_REQUEST_TIMEOUT_MS = 60_000


@dataclass(frozen=True)
class HubConnection:
    """How to reach the hub. `password` never appears in the representation."""

    servers: str
    security_protocol: str = "PLAINTEXT"
    sasl_mechanism: str = "PLAIN"
    username: str = ""
    password: str = ""
    event_hubs: bool = False

    @classmethod
    def from_settings(cls, hub: HubSettings) -> Self:
        if hub.connection_string:
            secret = hub.connection_string.get_secret_value()
            return cls(
                servers=f"{hub.namespace}:{EVENT_HUBS_KAFKA_PORT}",
                security_protocol="SASL_SSL",
                username="$ConnectionString",
                password=secret,
                event_hubs=True,
            )
        if hub.kafka_servers:
            return cls(
                servers=hub.kafka_servers,
                security_protocol=hub.kafka_security_protocol,
                sasl_mechanism=hub.kafka_sasl_mechanism,
                username=hub.kafka_username or "",
                password=hub.kafka_password.get_secret_value() if hub.kafka_password else "",
            )
        return cls(servers=f"127.0.0.1:{hub.port}")

    def __repr__(self) -> str:
        return f"HubConnection({self.servers}, {self.security_protocol})"

    def client_options(self) -> dict[str, str | int]:
        """For librdkafka, the library under confluent-kafka."""
        options: dict[str, str | int] = {"bootstrap.servers": self.servers, "security.protocol": self.security_protocol}
        if self._sasl:
            options |= {
                "sasl.mechanism": self.sasl_mechanism,
                "sasl.username": self.username,
                "sasl.password": self.password,
            }
        if self.event_hubs:
            options |= {
                "metadata.max.age.ms": EVENT_HUBS_IDLE_MS,
                "connections.max.idle.ms": EVENT_HUBS_IDLE_MS,
                "request.timeout.ms": EVENT_HUBS_REQUEST_TIMEOUT_MS,
                "message.max.bytes": EVENT_HUBS_MAX_REQUEST,
            }
        return options

    def spark_options(self) -> dict[str, str]:
        """For Spark's Kafka source and sink. The login is quoted so that Spark's redaction recognises it."""
        options = {
            "kafka.bootstrap.servers": self.servers,
            "kafka.security.protocol": self.security_protocol,
        }
        if self._sasl:
            module = "plain.PlainLoginModule" if self.sasl_mechanism == "PLAIN" else "scram.ScramLoginModule"
            options |= {
                "kafka.sasl.mechanism": self.sasl_mechanism,
                "kafka.sasl.jaas.config": f"org.apache.kafka.common.security.{module} required "
                f'username="{_quoted(self.username)}" password="{_quoted(self.password)}";',
            }
        if self.event_hubs:
            options |= {
                "kafka.metadata.max.age.ms": str(EVENT_HUBS_IDLE_MS),
                "kafka.connections.max.idle.ms": str(EVENT_HUBS_IDLE_MS),
                "kafka.request.timeout.ms": str(EVENT_HUBS_REQUEST_TIMEOUT_MS),
                "kafka.max.request.size": str(EVENT_HUBS_MAX_REQUEST),
            }
        return options

    @property
    def _sasl(self) -> bool:
        return self.security_protocol.startswith("SASL")


def _quoted(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')

"""The settings themselves. A field of group `hub` called `port` is the variable `TIDEWATCH_HUB_PORT`."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

PREFIX = "TIDEWATCH_"
NAMESPACE = re.compile(r"(?:^|;)\s*Endpoint=sb://([^/;:\s]+)", re.IGNORECASE)
SECRET_NAME = re.compile(r"secret|password|token|credential|account\.key|access\.key", re.IGNORECASE)
TAKEN_COLUMNS = {
    *("eventid", "eventtype", "productid", "useragent", "extrapayload", "platform", "browser", "page_loading_seconds"),
    *(
        "related_products",
        "unknown_fields",
        "schema_version",
        "processing_time",
        "partition",
        "sequence_number",
        "date",
    ),
    *("body", "ingest_time", "plain", "reason", "sentence", "_corrupt_record", "_metadata", "file_name"),
    *("json", "variant", "shape", "verdict", "wrong_types", "hash", "before", "after", "position", "related"),
}
REPOSITORY = Path(__file__).resolve().parents[1]


def written_as(pattern: str, form: str) -> AfterValidator:
    """Refuses text of another form, and says which form is right."""

    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"write {form}")
        return text

    return AfterValidator(check)


AbsolutePath = Annotated[Path, AfterValidator(lambda path: path.expanduser().resolve())]
Port = Annotated[int, Field(ge=1, le=65535)]
JvmMemory = Annotated[str, written_as(r"[1-9]\d*[mg]", "megabytes or gigabytes, like 640m or 4g")]
Servers = Annotated[str, written_as(r"[^\s,:]+:\d+(,[^\s,:]+:\d+)*", "host:port, several separated by commas")]
SparkMaster = Annotated[
    str,
    written_as(
        r"local(\[(\d+|\*)\])?|spark://.+|yarn|k8s://.+", "local[N], local[*], spark://host:port, yarn or k8s://…"
    ),
]


def setting(default: Any, description: str, *, production: str = "", **limits: Any) -> Any:
    """A field with its line in docs/settings.md; `production` is what to set beyond one machine."""
    return Field(default, description=description, json_schema_extra={"production": production}, **limits)


class SettingsGroup(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class HubSettings(SettingsGroup):
    """Where events come from. Without a connection string and without Kafka servers, a broker is embedded."""

    connection_string: SecretStr | None = setting(
        None,
        "Connection string of an Event Hubs namespace (Standard tier or above)",
        production="yours, or Kafka servers",
    )
    kafka_servers: Servers | None = setting(
        None,
        "Kafka bootstrap servers, `host:port` separated by commas",
        production="yours, or a connection string",
    )
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = setting(
        "PLAINTEXT", "How to talk to the Kafka servers", production="SASL_SSL"
    )
    kafka_sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = setting(
        "PLAIN", "How to log in to the Kafka servers, for the SASL protocols"
    )
    kafka_username: str | None = setting(None, "User for the SASL protocols")
    kafka_password: SecretStr | None = setting(None, "Password for the SASL protocols")
    partitions: int = setting(4, "Partitions of a topic that Tidewatch creates", production="32", ge=1, le=2000)
    retention_hours: int = setting(
        168, "How long a topic that Tidewatch creates keeps its records; longer than a stream may ever be down", ge=1
    )
    port: Port = setting(9092, "Port of the embedded broker, on loopback")
    controller_port: Port = setting(9093, "Second port of the embedded broker, on loopback")
    broker_memory: JvmMemory = setting("384m", "Heap of the embedded broker")

    @model_validator(mode="after")
    def _one_hub(self) -> Self:
        if self.connection_string and not NAMESPACE.search(self.connection_string.get_secret_value()):
            raise ValueError(
                f"{PREFIX}HUB_CONNECTION_STRING names no namespace: copy it whole from the Azure portal, as "
                "Endpoint=sb://NAMESPACE.servicebus.windows.net/;SharedAccessKeyName=…;SharedAccessKey=…"
            )
        if self.connection_string and self.kafka_servers:
            raise ValueError(f"set either {PREFIX}HUB_CONNECTION_STRING or {PREFIX}HUB_KAFKA_SERVERS, not both")
        if self.kafka_security_protocol.startswith("SASL") and not (self.kafka_username and self.kafka_password):
            raise ValueError(
                f"{PREFIX}HUB_KAFKA_SECURITY_PROTOCOL={self.kafka_security_protocol} needs {PREFIX}HUB_KAFKA_USERNAME "
                f"and {PREFIX}HUB_KAFKA_PASSWORD"
            )
        if self.port == self.controller_port:
            raise ValueError(f"{PREFIX}HUB_PORT and {PREFIX}HUB_CONTROLLER_PORT must differ")
        return self

    @property
    def namespace(self) -> str | None:
        """The host of the Event Hubs namespace."""
        found = NAMESPACE.search(self.connection_string.get_secret_value()) if self.connection_string else None
        return found[1] if found else None

    @property
    def embedded(self) -> bool:
        return not self.connection_string and not self.kafka_servers


class SparkSettings(SettingsGroup):
    master: SparkMaster = setting("local[*]", "Spark master of the streams", production="spark://…, yarn, k8s://…")
    driver_memory: JvmMemory = setting("640m", "Heap of a stream's driver", production="4g")
    shuffle_partitions: int = setting(2, "Tasks after a shuffle", production="the cores of a stream", ge=1)
    conf: dict[str, str] = setting(
        {}, "More Spark configuration, as a JSON object; it wins over Tidewatch's own, and may hold no secrets"
    )

    @field_validator("conf")
    @classmethod
    def _no_secrets(cls, conf: dict[str, str]) -> dict[str, str]:
        if secret := [name for name in conf if SECRET_NAME.search(name)]:
            raise ValueError(
                f"{', '.join(secret)} would be on the JVM's command line for all to see: put it into core-site.xml in "
                "a folder that HADOOP_CONF_DIR names"
            )
        return conf


class StreamSettings(SettingsGroup):
    stop_seconds: float = setting(30, "How long a stream that is told to stop may finish its running batch", gt=0)
    hub_wait_seconds: float = setting(120, "How long a stream that starts waits for a hub that does not answer", ge=1)
    report_seconds: float = setting(30, "How often a stream's figures are reported to Dagster", ge=5)
    disk_floor_mb: int = setting(200, "A stream does not start with less free disk than this under home or lake", ge=0)


class BronzeSettings(SettingsGroup):
    trigger_seconds: float = setting(10, "How often bronze takes up new records", production="60", ge=0)
    max_records: int = setting(
        100_000, "Records that one batch of one hub takes at most", production="what 2 minutes bring at peak", ge=1
    )


class SilverSettings(SettingsGroup):
    trigger_seconds: float = setting(10, "How often silver takes up new clicks from bronze", production="300", ge=0)
    activity_trigger_seconds: float = setting(
        60, "How often the windows of click_activity are brought up to date", production="300", ge=0
    )
    anomaly_trigger_seconds: float = setting(30, "How often new clicks are judged by the model", production="300", ge=0)
    max_mb: int = setting(
        32, "Bronze files that one batch takes at most, in megabytes", production="what 10 minutes bring at peak", ge=1
    )
    watermark_minutes: float = setting(
        10, "How far apart a click and its repeat may be, and how late a click may be for its window", gt=0, le=1440
    )
    window_minutes: float = setting(5, "Length of the windows of click_activity", gt=0, le=1440)
    longest_page_seconds: float = setting(3600, "A page load time beyond this is taken for an error", gt=0)
    most_related: int = setting(1000, "An extraPayload of more elements is taken for an error", ge=1)
    promoted_fields: dict[str, Literal["STRING", "BIGINT", "DOUBLE", "BOOLEAN"]] = setting(
        {}, 'Fields of clicks that become columns, as a JSON object like {"referrer": "STRING"}'
    )
    most_quarantined: float = setting(0.05, "A larger share of records in quarantine is warned of", ge=0, le=1)
    most_duplicates: float = setting(0.2, "A larger share of records that repeat an event is warned of", ge=0, le=1)
    lock_seconds: float = setting(60, "How long silver waits for a job that changes its tables", gt=0)

    @field_validator("promoted_fields")
    @classmethod
    def _are_new_columns(cls, fields: dict[str, str]) -> dict[str, str]:
        for name in fields:
            if not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", name):
                raise ValueError(f"{name!r} can't be a column: use letters, digits and _")
            if name.lower() in TAKEN_COLUMNS:
                raise ValueError(f"silver/clicks has a column {name} already")
        if len({name.lower() for name in fields}) < len(fields):
            raise ValueError("two fields differ only in upper and lower case, which Delta does not tell apart")
        return fields


class AnomalySettings(SettingsGroup):
    """When the model that judges page load times is trained anew by itself."""

    first_clicks: int = setting(5_000, "The first model is trained once a week has so many clicks", ge=200)
    most_drift: float = setting(
        0.2, "A larger population stability index of the last hour's page load times asks for training anew", gt=0
    )
    most_flagged_drift: float = setting(
        0.03, "So does a larger one of the share of clicks that is flagged: three times as many, or none", gt=0
    )
    retrain_hours: float = setting(
        6, "How long after a training drift asks for the next at the earliest, which is of the clicks since then", gt=0
    )


class HeartbeatSettings(SettingsGroup):
    """When a machine is taken for unhealthy, and how soon that is seen."""

    trigger_seconds: float = setting(
        1, "How often heartbeats are judged; 0 is as often as possible", production="0", ge=0
    )
    table_trigger_seconds: float = setting(
        10, "How often changes of machines' health are written to silver", production="60", ge=0
    )
    max_records: int = setting(200_000, "Heartbeats that one batch takes at most", ge=1)
    silence_seconds: float = setting(5, "A machine that is silent for so long is unhealthy", gt=0)
    retirement_hours: float = setting(
        24, "A machine that is silent for so long is retired: no more is known of it until it returns", gt=0
    )
    pulse_seconds: float = setting(
        0.25,
        "How often the stream sends a record of its own to each partition of heartbeats, by which it sees silence; 0 "
        "where it may not send there, and then nothing tells the silence of a whole partition",
        ge=0,
        le=60,
    )
    buckets: int = setting(
        2,
        "Tasks that judge machines side by side; it counts when the stream starts for the first time",
        production="the cores of the stream",
        ge=1,
        le=1000,
    )

    @model_validator(mode="after")
    def _silence_before_retirement(self) -> Self:
        if self.silence_seconds >= self.retirement_hours * 3600:
            raise ValueError(
                f"{PREFIX}HEARTBEAT_SILENCE_SECONDS must be shorter than {PREFIX}HEARTBEAT_RETIREMENT_HOURS"
            )
        return self


class SensorSettings(SettingsGroup):
    """Which readings are anomalous, how soon that is told, and which windows are sampled."""

    alerts: Literal["real-time", "micro-batch"] = setting(
        "real-time", "How alerts are raised; micro-batch where a core for each partition of sensors is too much"
    )
    alert_trigger_seconds: float = setting(5, "How often alerts are raised in micro-batches", ge=0)
    alert_interval_seconds: float = setting(
        60,
        "How often alerts in real time note how far they are; what came since is told again after a crash, with the "
        "same ids",
        ge=5,
    )
    lowest: float | None = setting(0, "A lower frequency is anomalous", allow_inf_nan=False)
    highest: float | None = setting(None, "A higher frequency is anomalous", allow_inf_nan=False)
    rules: AbsolutePath | None = setting(None, "A JSON file with limits of single devices, see docs/sensors.md")
    trigger_seconds: float = setting(10, "How often readings are written, and windows closed", production="60", ge=0)
    max_records: int = setting(200_000, "Readings that one batch takes at most", ge=1)
    window_seconds: int = setting(60, "Length of the windows that are sampled, in event time", ge=1, le=86_400)
    slide_seconds: int = setting(30, "How often a window begins; the window's length is a multiple of it", ge=1)
    lateness_seconds: int = setting(
        30, "A window waits so long after its end for readings, by the hub's clock", ge=0, le=86_400
    )
    per_device: bool = setting(False, "Sample each device's readings of a window, instead of all together")
    most_late: float = setting(
        0.05, "A larger share of readings that came too late for a window is warned of", ge=0, le=1
    )
    ahead_seconds: int = setting(60, "A device's clock may be so far ahead of the hub's", ge=0, le=86_400)
    pulse_seconds: float = setting(
        5,
        "How often the stream sends a record of its own to each partition of sensors, by which windows close when "
        "nobody else sends; 0 where it may not send there",
        ge=0,
        le=60,
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> Self:
        if self.window_seconds % self.slide_seconds:
            raise ValueError(
                f"{PREFIX}SENSORS_WINDOW_SECONDS must be a multiple of {PREFIX}SENSORS_SLIDE_SECONDS, such as 60 and 30"
            )
        if self.lowest is not None and self.highest is not None and self.lowest > self.highest:
            raise ValueError(f"{PREFIX}SENSORS_LOWEST must not be above {PREFIX}SENSORS_HIGHEST")
        return self


class SupervisorSettings(SettingsGroup):
    """When a stream is started again, and when it is not."""

    streams: list[Literal["bronze", "silver", "heartbeat", "sensors"]] = setting(
        ["bronze", "silver", "heartbeat", "sensors"],
        "The streams to keep running here, as a JSON array; others run only while launched by hand",
    )
    first_wait_seconds: float = setting(
        5, "Wait after the first failure of a stream; it doubles with each further one", gt=0
    )
    longest_wait_seconds: float = setting(300, "The wait grows no longer than this, jitter apart", gt=0)
    healthy_seconds: float = setting(600, "A run that was well for so long counts failures anew", gt=0)
    fruitless_runs: int = setting(10, "So many failures in a row without any progress are held as a crash loop", ge=1)
    start_seconds: float = setting(
        120, "How long a stream may take from its launch until its host answers, and for each step of its start", ge=10
    )
    silence_seconds: float = setting(30, "A host that does not answer for so long is hung", ge=5)
    quiet_seconds: float = setting(
        120,
        "A query is hung when, for so long beyond its trigger's interval, no batch and no task of it ended and it did "
        "not find the source empty",
        production="longer than its slowest task",
        ge=5,
    )


class MetricsSettings(SettingsGroup):
    host: str = setting("127.0.0.1", "Address of the Prometheus endpoint; it has no login", min_length=1)
    port: Port = setting(9464, "Port of the Prometheus endpoint of `tidewatch up`")


class AlertSettings(SettingsGroup):
    webhook: SecretStr | None = setting(
        None, "URL that gets a JSON message by POST for each run that failed", production="your pager or chat"
    )

    @field_validator("webhook")
    @classmethod
    def _is_url(cls, webhook: SecretStr | None) -> SecretStr | None:
        if webhook is not None and not re.match(r"https?://[^/\s]", webhook.get_secret_value()):
            raise ValueError("write a URL that begins with https:// or http://")
        return webhook


class DagsterSettings(SettingsGroup):
    host: str = setting("127.0.0.1", "Address of the Dagster UI; it has no login, so keep it on loopback", min_length=1)
    port: Port = setting(3000, "Port of the Dagster UI")
    batch_runs: int = setting(1, "Batch runs at a time, beside the streams", production="4", ge=1)
    tick_days: int = setting(3, "How long the ticks of sensors and schedules are kept", ge=1)


class TrafficSettings(SettingsGroup):
    rate: float = setting(60, "Records a second that the demo traffic of `tidewatch up` sends, all hubs together", gt=0)


class Settings(BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="_", env_nested_max_split=1, extra="forbid", frozen=True
    )

    home: AbsolutePath = setting(
        Path("data"),
        "Folder of everything Tidewatch keeps; a relative one is in the folder of the call",
        validate_default=True,
    )
    lake: str | None = setting(None, "Root of the Delta tables, if not `lake` in home", production="abfss://…, s3a://…")
    checkpoints: str | None = setting(
        None, "Root of the checkpoints, if not `checkpoints` in home", production="beside the lake"
    )
    jars: AbsolutePath = setting(
        REPOSITORY / "jars", "Folder of the JVM jars that `make setup` resolved, if not in the repository"
    )
    hub: HubSettings = HubSettings()
    spark: SparkSettings = SparkSettings()
    stream: StreamSettings = StreamSettings()
    bronze: BronzeSettings = BronzeSettings()
    silver: SilverSettings = SilverSettings()
    anomaly: AnomalySettings = AnomalySettings()
    heartbeat: HeartbeatSettings = HeartbeatSettings()
    sensors: SensorSettings = SensorSettings()
    supervisor: SupervisorSettings = SupervisorSettings()
    metrics: MetricsSettings = MetricsSettings()
    alert: AlertSettings = AlertSettings()
    dagster: DagsterSettings = DagsterSettings()
    traffic: TrafficSettings = TrafficSettings()

    @property
    def lake_root(self) -> str:
        return self.lake or str(self.home / "lake")

    @property
    def checkpoint_root(self) -> str:
        return self.checkpoints or str(self.home / "checkpoints")

    @property
    def run_folder(self) -> Path:
        """Leases, progress and failures of the streams on this machine."""
        return self.home / "run"

    @property
    def model_folder(self) -> Path:
        """The registry of models."""
        return self.home / "models"

    @property
    def hub_folder(self) -> Path:
        return self.home / "hub"

    @property
    def dagster_home(self) -> Path:
        return self.home / "dagster"

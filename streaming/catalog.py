"""Which streams there are, which queries each hosts, and what they read and write. Plain data: no Spark here."""

from collections.abc import Callable
from dataclasses import dataclass

from hub import CLICKS, HEARTBEATS, INPUT_HUBS, MACHINE_STATUS, SENSOR_ALERTS, SENSOR_ECHOES
from hub import SENSORS as SENSORS_HUB
from lake import machines
from lake.anomalies import PAGE_LOAD_ANOMALIES
from lake.sensors import SENSOR_READINGS, SENSOR_SAMPLES, SENSOR_WINDOWS
from lake.silver import (
    CLICK_ACTIVITY,
    CLICK_DUPLICATES,
    CLICK_QUARANTINE,
    CLICKPATH,
    clicks_table,
    quarantine_table,
)
from lake.tables import Table, bronze_table
from settings import Settings


@dataclass(frozen=True)
class QuerySpec:
    name: str
    source: "str | Table"
    """The hub or the table that it reads."""
    target: "str | Table"
    """The hub that it writes to; or the table whose commits tell which batches are done."""
    plan: int
    """Raised with a change that Spark can't resume from; the query then starts a new checkpoint generation."""
    trigger_seconds: Callable[[Settings], float]
    also_writes: tuple[Table, ...] = ()
    buckets: Callable[[Settings], int] = lambda settings: settings.spark.shuffle_partitions
    """Into how many its state is divided, from the first start of a checkpoint on."""
    ends_up_in: Table | None = None
    """For a query that writes to a hub: the table that another query carries it to."""
    real_time: Callable[[Settings], bool] = lambda settings: False
    """Whether it passes on each record as it comes, and needs a core for each partition all the time."""
    echoes: str | None = None
    """The hub that it passes pulses on to in real time, by which it is known how far it is."""
    may_read_again: bool = False
    """True when records that it reads a second time change nothing, so that it can begin anew at any time."""

    @property
    def hub(self) -> str | None:
        return self.source if isinstance(self.source, str) else None

    @property
    def source_name(self) -> str:
        return self.source if isinstance(self.source, str) else self.source.name

    @property
    def table(self) -> Table:
        """Only of a query that writes to tables."""
        assert isinstance(self.target, Table), f"{self.name} writes to the hub {self.target}"
        return self.target

    @property
    def tables(self) -> tuple[Table, ...]:
        return (*([self.target] if isinstance(self.target, Table) else []), *self.also_writes)


@dataclass(frozen=True)
class StreamSpec:
    name: str
    description: str
    queries: tuple[QuerySpec, ...]
    pulsed_hub: str | None = None
    """The hub whose partitions the host keeps going; see `hub.pulses`."""
    pulse_seconds: Callable[[Settings], float] = lambda settings: 0

    @property
    def hubs(self) -> list[str]:
        """Those that it reads or writes, each once."""
        ends = (end for query in self.queries for end in (query.source, query.target))
        return list(dict.fromkeys(end for end in ends if isinstance(end, str)))

    def topics(self, settings: Settings) -> list[str]:
        """Its hubs, and those that it only talks to itself through."""
        echoes = (query.echoes for query in self.queries if query.real_time(settings))
        return [*self.hubs, *(hub for hub in echoes if hub is not None)]


def bronze_query(hub: str) -> QuerySpec:
    return QuerySpec(
        hub, hub, bronze_table(hub), plan=1, trigger_seconds=lambda settings: settings.bronze.trigger_seconds
    )


BRONZE = StreamSpec(
    "bronze",
    "Every record of every hub into bronze, bytes unchanged",
    tuple(bronze_query(hub) for hub in INPUT_HUBS),
)

SILVER = StreamSpec(
    "silver",
    "Clicks from bronze: validated, deduplicated, exploded, counted in windows, and judged by the model",
    (
        QuerySpec(
            "clicks",
            bronze_table(CLICKS),
            clicks_table({}),
            plan=1,
            trigger_seconds=lambda settings: settings.silver.trigger_seconds,
            also_writes=(CLICKPATH, CLICK_DUPLICATES, CLICK_QUARANTINE),
            may_read_again=True,
        ),
        QuerySpec(
            "click_activity",
            clicks_table({}),
            CLICK_ACTIVITY,
            plan=1,
            trigger_seconds=lambda settings: settings.silver.activity_trigger_seconds,
            may_read_again=True,
        ),
        QuerySpec(
            "page_load_anomalies",
            clicks_table({}),
            PAGE_LOAD_ANOMALIES,
            plan=1,
            trigger_seconds=lambda settings: settings.silver.anomaly_trigger_seconds,
            may_read_again=True,
        ),
    ),
)

HEARTBEAT = StreamSpec(
    "heartbeat",
    "Machine health from heartbeats: changes on the hub machine-status, and in silver",
    (
        QuerySpec(
            "machine_health",
            HEARTBEATS,
            MACHINE_STATUS,
            plan=1,
            trigger_seconds=lambda settings: settings.heartbeat.trigger_seconds,
            buckets=lambda settings: settings.heartbeat.buckets,
            ends_up_in=machines.MACHINE_STATUS,
        ),
        QuerySpec(
            "machine_status",
            MACHINE_STATUS,
            machines.MACHINE_STATUS,
            plan=1,
            trigger_seconds=lambda settings: settings.heartbeat.table_trigger_seconds,
            also_writes=(machines.MACHINES, quarantine_table(MACHINE_STATUS)),
            may_read_again=True,
        ),
        QuerySpec(
            "malformed_heartbeats",
            HEARTBEATS,
            quarantine_table(HEARTBEATS),
            plan=1,
            trigger_seconds=lambda settings: settings.heartbeat.table_trigger_seconds,
        ),
    ),
    pulsed_hub=HEARTBEATS,
    pulse_seconds=lambda settings: settings.heartbeat.pulse_seconds,
)


def _seconds_between_alert_notes(settings: Settings) -> float:
    chosen = settings.sensors
    return chosen.alert_trigger_seconds if chosen.alerts == "micro-batch" else chosen.alert_interval_seconds


SENSORS = StreamSpec(
    "sensors",
    "Sensors' readings: anomalies to the hub sensor-alerts at once, and samples of sliding windows to silver",
    (
        QuerySpec(
            "alerts",
            SENSORS_HUB,
            SENSOR_ALERTS,
            plan=1,
            trigger_seconds=_seconds_between_alert_notes,
            real_time=lambda settings: settings.sensors.alerts == "real-time",
            echoes=SENSOR_ECHOES,
            may_read_again=True,
        ),
        QuerySpec(
            "samples",
            SENSORS_HUB,
            SENSOR_READINGS,
            plan=1,
            trigger_seconds=lambda settings: settings.sensors.trigger_seconds,
            also_writes=(SENSOR_SAMPLES, SENSOR_WINDOWS, quarantine_table(SENSORS_HUB)),
        ),
    ),
    pulsed_hub=SENSORS_HUB,
    pulse_seconds=lambda settings: settings.sensors.pulse_seconds,
)

STREAMS = {stream.name: stream for stream in (BRONZE, SILVER, HEARTBEAT, SENSORS)}

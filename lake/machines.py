"""What heartbeats become: every change of a machine's health, and how each machine is now."""

from collections import Counter
from datetime import datetime

from lake.audit import rows_of
from lake.silver import PLACE
from lake.tables import STREAMED, Column, Table, streamed

MACHINE = (
    Column("machine_name", "STRING", "The machine"),
    Column("previous", "STRING", "Its status before; null for a machine that is new, or was retired"),
    Column("status", "STRING", "Initializing, Healthy, Unhealthy or Retired"),
    Column("since", "TIMESTAMP", "Since when it has this status, by the hub's clock"),
    Column("last_heartbeat", "TIMESTAMP", "Its last heartbeat up to then"),
    Column("detected_at", "TIMESTAMP", "When the stream told it first"),
)

MACHINE_STATUS = Table(
    "silver/machine_status",
    "Every change of every machine's health, once",
    (
        Column("id", "STRING", "The change's id: the same whenever the change is told"),
        *MACHINE,
        *PLACE,
        Column("date", "DATE", "The day (UTC) of since"),
    ),
    partitioned_by=("date",),
    properties=streamed("since", "partition", "sequence_number"),
)

MACHINES = Table(
    "silver/machines",
    "How every machine is now, as of its last change; retired ones are left out",
    MACHINE,
    properties=STREAMED,
)


def machines_by_status(lake_root: str) -> dict[str, int]:
    """How many machines there are of each status, read without Spark."""
    return dict(Counter(row["status"] for row in rows_of(MACHINES, lake_root, ("status",))).most_common())


def last_change(lake_root: str) -> datetime | None:
    """Since when the machine that changed last is as it is, read without Spark; None without machines."""
    return max((row["since"] for row in rows_of(MACHINES, lake_root, ("since",))), default=None)

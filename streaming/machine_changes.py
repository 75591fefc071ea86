"""Changes of machines' health: as the hub's records, read from them again, and what they come to for each machine."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from streaming.machine_processor import CHANGES
from streaming.strict_json import PROVENANCE, TEXT, TIMES, sql_text

FIELDS = f"id STRING, {CHANGES}"
NEEDED = ("id", "machine_name", "status", "since", "last_heartbeat", "detected_at")
# Of changes at one moment, the order in which they can follow each other.
RANK = "array_position(array('Unhealthy', 'Retired', 'Initializing', 'Healthy'), status)"
UNREADABLE = "The record is no change of a machine's health as the stream heartbeat writes them."


def as_records(changes: DataFrame) -> DataFrame:
    """For the hub: the key is the machine. The id follows from what is told, so that a repeat has the same."""
    return (
        changes.selectExpr("md5(concat_ws('|', machine_name, status, unix_micros(since))) AS id", "*")
        .select("machine_name", F.struct("*").alias("change"))
        .selectExpr(
            "cast(machine_name AS BINARY) AS key",
            f"to_json(change, map({TIMES}, 'ignoreNullFields', 'false')) AS value",
        )
    )


def from_records(records: DataFrame) -> DataFrame:
    """Adds `change`, null where the record's `body` is none."""
    complete = " AND ".join(f"json.{name} IS NOT NULL" for name in NEEDED)
    return records.selectExpr("*", f"from_json({TEXT}, {sql_text(FIELDS)}, map({TIMES})) AS json").selectExpr(
        *records.columns, f"CASE WHEN {complete} THEN json END AS change"
    )


def unreadable(read: DataFrame) -> DataFrame:
    """Rows of quarantine."""
    return read.where("change IS NULL").selectExpr(
        "body",
        "'not_a_change' AS reason",
        f"{sql_text(UNREADABLE)} AS sentence",
        *PROVENANCE,
    )


def each_once(read: DataFrame) -> DataFrame:
    """Every change with its place on the hub; of several that tell the same, the first."""
    told = read.where("change IS NOT NULL").select("change.*", "partition", "sequence_number")
    others = [name for name in told.columns if name not in ("id", "detected_at")]
    first = F.min(F.struct("detected_at", *others)).alias("first")
    return told.groupBy("id").agg(first).select("id", "first.*").selectExpr("*", "to_date(since) AS date")


def latest_of_each(changes: DataFrame) -> DataFrame:
    """How every machine is after these changes; retired ones are left out."""
    latest = F.max_by(F.struct("*"), F.struct("since", F.expr(RANK))).alias("latest")
    return changes.groupBy("machine_name").agg(latest).select("latest.*").where("status != 'Retired'")

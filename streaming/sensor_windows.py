"""Sliding windows of event time over sensors' readings, and what is sampled of each: all in SQL.

A window is over for a reading when the hub took it later than the window's end and the lateness. That follows from the
record alone, so that the same readings are in a window however they were cut into batches, and however often a stream
was killed. Times are microseconds.
"""

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from settings import SensorSettings

MICROS = 1_000_000
# Of readings at one moment, which comes first; of records that tell the same reading, the first stands for it.
SAME_READING = ("event_time", "device_id", "sensor_freq")
ORDER = (*SAME_READING, "partition", "sequence_number")
SAMPLED = (*ORDER, "anomaly", "alert_id", "processing_time")
BEFORE_ALL = -(2**63) + 1


@dataclass(frozen=True)
class Windows:
    length: int
    slide: int
    lateness: int
    per_device: bool = False

    @classmethod
    def of(cls, settings: SensorSettings) -> "Windows":
        return cls(
            settings.window_seconds * MICROS,
            settings.slide_seconds * MICROS,
            settings.lateness_seconds * MICROS,
            settings.per_device,
        )

    def last_closed(self, clock: int) -> int:
        """The end of the newest window that is over for all that the hub takes after `clock`."""
        limit = clock - self.lateness
        return limit - limit % self.slide

    def first_moment(self, closed_up_to: int) -> int:
        """Of the windows that end after `closed_up_to`."""
        return closed_up_to - closed_up_to % self.slide + self.slide - self.length

    def missed(self, closed_up_to: int | None) -> str:
        """Of how many windows a reading is too late for: those over for it, and those that are closed already."""
        over = f"unix_micros(processing_time) - {self.lateness}"
        limit = over if closed_up_to is None else f"greatest({over}, {_changing(closed_up_to)})"
        return f"cast(size(filter({self._ends}, window_end -> window_end <= {limit})) AS INT)"

    def sampled(self, readings: DataFrame, after: int | None, up_to: int) -> DataFrame:
        """First, middle and last reading and every anomaly of the windows that end after `after`, up to `up_to`; a row
        has its window's counts too: `readings`, `repeats` and `anomalies`, of its device where each is sampled."""
        group = "window_end, device_id" if self.per_device else "window_end"
        by_order = f"OVER (PARTITION BY {group} ORDER BY {', '.join(ORDER)}"
        # Its order does not matter: with the same one Spark goes through the rows once for both.
        whole = f"{by_order} ROWS BETWEEN UNBOUNDED PRECEDING AND UNBOUNDED FOLLOWING)"
        before = " AND ".join(f"lag({name}) {by_order}) <=> {name}" for name in SAME_READING)
        in_windows = readings.selectExpr(*SAMPLED, f"explode({self._ends}) AS window_end").where(
            f"window_end > {_changing(BEFORE_ALL if after is None else after)} AND window_end <= {_changing(up_to)} "
            f"AND unix_micros(processing_time) - {self.lateness} < window_end"
        )
        return (
            in_windows.selectExpr("*", f"row_number() {by_order}) > 1 AND {before} AS repeat")
            .selectExpr(
                "*",
                f"sum(int(NOT repeat)) {by_order} ROWS UNBOUNDED PRECEDING) AS place",
                f"sum(int(NOT repeat)) {whole} AS readings",
                f"sum(int(repeat)) {whole} AS repeats",
                f"sum(int(NOT repeat AND anomaly IS NOT NULL)) {whole} AS anomalies",
            )
            .where("NOT repeat")
            .selectExpr(
                "*",
                """filter(array(
                    CASE WHEN place = 1 THEN 'first' END,
                    CASE WHEN place = (readings + 1) DIV 2 THEN 'middle' END,
                    CASE WHEN place = readings THEN 'last' END,
                    CASE WHEN anomaly IS NOT NULL THEN 'anomaly' END), role -> role IS NOT NULL) AS roles""",
            )
            .where("size(roles) > 0")
        )

    def as_samples(self, sampled: DataFrame) -> DataFrame:
        """Rows of silver/sensor_samples."""
        return sampled.selectExpr(
            *self._window,
            "device_id AS of_device" if self.per_device else "cast(NULL AS STRING) AS of_device",
            "roles",
            *SAMPLED,
            self._date,
        )

    def as_windows(self, sampled: DataFrame, up_to: int) -> DataFrame:
        """Rows of silver/sensor_windows: those that have readings, and in any case the newest one."""
        newest = sampled.sparkSession.range(1).selectExpr(
            f"{up_to} AS window_end", "0L AS readings", "0L AS repeats", "0L AS anomalies"
        )
        counts = ("readings", "repeats", "anomalies")
        found = sampled.where("place = 1").select("window_end", *counts).unionByName(newest)
        sums = found.groupBy("window_end").agg(*(F.sum(name).alias(name) for name in counts))
        return sums.selectExpr(*self._window, *counts, self._date)

    @property
    def _ends(self) -> str:
        """Of the windows that a reading is in, the latest first."""
        last = f"unix_micros(event_time) - pmod(unix_micros(event_time), {self.slide}) + {self.length}"
        return f"transform(sequence(0, {self.length // self.slide - 1}), n -> {last} - n * {self.slide})"

    @property
    def _window(self) -> tuple[str, str]:
        return (
            f"timestamp_micros(window_end - {self.length}) AS window_start",
            "timestamp_micros(window_end) AS window_end",
        )

    @property
    def _date(self) -> str:
        return f"to_date(timestamp_micros(window_end - {self.length})) AS date"


def _changing(number: int) -> str:
    """SQL of a number that is another one in each batch. Spark would put it into the code that it compiles, and compile
    that anew each time; an array is handed to the code, and is not looked into before there is a row."""
    return f"element_at(array({number}L), 1 + (partition & 0))"

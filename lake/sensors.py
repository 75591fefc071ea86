"""What sensors' readings become: typed rows, windows, and samples of each window."""

from lake.silver import BY_RECORD, DATE, PLACE, PROCESSING_TIME
from lake.tables import Column, Table, streamed

READING = (
    Column("device_id", "STRING", "The device"),
    Column("sensor_freq", "DOUBLE", "The frequency that it read"),
    Column("event_time", "TIMESTAMP", "When it was read, by the device's clock"),
    Column("anomaly", "STRING", "Why the reading is anomalous: below_range, above_range or z_score; mostly null"),
    Column("alert_id", "STRING", "The id of its alert on the hub; null unless anomalous"),
)

SENSOR_READINGS = Table(
    "silver/sensor_readings",
    "Sensors' readings, one row a record: typed and validated; a reading that was sent twice is there twice",
    (
        *READING,
        Column("missed_windows", "INT", "Of how many windows it was too late for, 0 for a reading in time"),
        PROCESSING_TIME,
        *PLACE,
        DATE,
    ),
    partitioned_by=("date",),
    properties=streamed("event_time", *BY_RECORD),
)

WINDOW = (
    Column("window_start", "TIMESTAMP", "The window's first moment, in event time"),
    Column("window_end", "TIMESTAMP", "The first moment after the window"),
)
WINDOW_DATE = Column("date", "DATE", "The day (UTC) of window_start")

SENSOR_SAMPLES = Table(
    "silver/sensor_samples",
    "Of each window its first, middle and last reading and every anomaly; one row a reading, written when it closes",
    (
        *WINDOW,
        Column("of_device", "STRING", "The device whose readings were sampled; null where those of all devices were"),
        Column("roles", "ARRAY<STRING>", "Which it is, one or more of first, middle, last and anomaly"),
        *READING,
        PROCESSING_TIME,
        *PLACE,
        WINDOW_DATE,
    ),
    partitioned_by=("date",),
    properties=streamed("window_end", "event_time"),
)

SENSOR_WINDOWS = Table(
    "silver/sensor_windows",
    "Closed windows that have readings, and the newest closed one, with what was counted in them",
    (
        *WINDOW,
        Column("readings", "BIGINT", "Different readings in time for it"),
        Column("repeats", "BIGINT", "Records that repeat one of them"),
        Column("anomalies", "BIGINT", "Anomalous ones among the readings"),
        WINDOW_DATE,
    ),
    partitioned_by=("date",),
    properties=streamed("window_end"),
)

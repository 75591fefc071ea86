"""The straightforward way to tell machines' health: one state key a machine, an event-time timer for its silence.

The timer is lazy: it is set when there is none, and looks when it expires whether there were heartbeats since.
"""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

SILENCE_MS = 5_000
CHANGES = "machine STRING, status STRING, since BIGINT"


class KeyedMachine(StatefulProcessor):
    def init(self, handle: StatefulProcessorHandle) -> None:
        self._handle = handle
        self._state = handle.getValueState("machine", "status STRING, last BIGINT")

    def handleInputRows(self, key: Any, rows: Iterator[pd.DataFrame], timerValues: Any) -> Iterator[pd.DataFrame]:  # type: ignore[override]
        newest = max(int(part["at"].max()) for part in rows)
        stored = self._state.get()
        status = stored[0] if stored is not None else None
        now = "Initializing" if status is None else "Healthy"
        if status is None or status == "Unhealthy":
            self._handle.registerTimer(newest + SILENCE_MS)
        self._state.update((now, newest))
        if now != status:
            yield _change(key[0], now, newest)

    def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[pd.DataFrame]:
        stored = self._state.get()
        assert stored is not None
        due = stored[1] + SILENCE_MS
        if due > expiredTimerInfo.getExpiryTimeInMs():
            self._handle.registerTimer(due)
            return
        self._state.update(("Unhealthy", stored[1]))
        yield _change(key[0], "Unhealthy", due)

    def close(self) -> None:
        pass


def _change(machine: str, status: str, since: int) -> pd.DataFrame:
    return pd.DataFrame({"machine": [machine], "status": [status], "since": [since]})


def keyed_changes(records: DataFrame) -> DataFrame:
    """From Kafka's columns to records for the hub."""
    beats = records.selectExpr(
        "from_json(cast(value AS STRING), 'machine_name STRING, sent_at STRING').machine_name AS machine",
        "unix_millis(timestamp) AS at",
        "timestamp",
    )
    changes = (
        beats.withWatermark("timestamp", "1 second")
        .groupBy("machine")
        .transformWithStateInPandas(
            statefulProcessor=KeyedMachine(), outputStructType=CHANGES, outputMode="Append", timeMode="EventTime"
        )
    )
    return changes.selectExpr("machine AS key", "to_json(struct(*)) AS value")

"""Silver's queries in the test's own session, on a bronze table that the test fills."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from hub.connection import HubConnection
from lake.commit import append_once, bring_up_to_date
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, clicks_table
from lake.tables import Table, bronze_table
from settings import Settings, SilverSettings
from streaming.catalog import SILVER
from streaming.click_activity import click_activity
from streaming.compilation import interpret
from streaming.queries import start_query
from streaming.query_plan import QueryContext

BRONZE = bronze_table("clicks")
CLICKS = clicks_table({})
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
TRIGGERS = ("trigger_seconds", "activity_trigger_seconds", "anomaly_trigger_seconds")
AT_ONCE: dict[str, Any] = {**dict.fromkeys(TRIGGERS, 0), "lock_seconds": 300}
"""Without pauses, and with time for a rebuild on a busy machine."""
QUERIES = {query.name: query for query in SILVER.queries}


def click(event: str, **fields: Any) -> bytes:
    whole = {
        "eventType": "view",
        "eventID": event,
        "productId": "p1",
        "userAgent": {"platform": "ios", "browser": "safari"},
        "extraPayload": [{"relatedProductId": "r", "relatedProductCategory": "c"}],
        "page_loading_seconds": 1.0,
        **fields,
    }
    return json.dumps(whole).encode()


@dataclass
class Silver:
    """A bronze table that the test fills, and the queries that read it."""

    spark: SparkSession
    settings: Settings
    sent: int = 0
    plan: int = 1
    running: list[StreamingQuery] = field(default_factory=list)

    def put(self, *bodies: bytes | None, minute: float = 0) -> None:
        """Appends one commit to bronze."""
        bring_up_to_date(self.spark, BRONZE, self.settings.lake_root)
        at = START + timedelta(minutes=minute)
        rows = [
            (None if each is None else bytearray(each), None, None, "clicks", 0, self.sent + number, at, at, at.date())
            for number, each in enumerate(bodies)
        ]
        frame = self.spark.createDataFrame(rows, BRONZE.ddl).coalesce(1)
        append_once(frame, BRONZE, self.settings.lake_root, "test", self.sent)
        self.sent += len(bodies)

    def start(self, name: str = "clicks", *, until_done: bool = False, **context_fields: Any) -> StreamingQuery:
        context = QueryContext.without_host(
            self.spark,
            self.settings,
            HubConnection("unused:1"),
            {},
        )
        context = replace(context, **context_fields)
        query = start_query(context, SILVER, replace(QUERIES[name], plan=self.plan), until_done=until_done)
        self.running.append(query)
        return query

    def work(self, name: str = "clicks") -> None:
        """Runs the query until it has done all there is."""
        self.start(name, until_done=True).awaitTermination()

    def read(self, table: Table) -> DataFrame:
        return self.spark.read.format("delta").load(table.path(self.settings.lake_root))

    def events(self, table: Table = CLICKS) -> list[str]:
        return sorted(row.eventID for row in self.read(table).collect())

    def books(self) -> dict[str, int]:
        names = {"clicks": CLICKS, "duplicates": CLICK_DUPLICATES, "quarantine": CLICK_QUARANTINE}
        return {name: self.read(table).count() for name, table in names.items()}

    def forget(self, name: str, *logs: str) -> None:
        """Leaves the last batch of the checkpoint as a kill does that came before these logs were written."""
        folder = Path(self.settings.checkpoint_root, "silver", name)
        for log in logs:
            files = folder.glob(f"g*/spark/{log}/[0-9]*")
            max(files, key=lambda file: (file.parts[-4], int(file.name))).unlink()

    def set(self, **chosen: Any) -> None:
        """Other settings of silver from now on."""
        changed = SilverSettings(**(AT_ONCE | chosen))
        self.settings = self.settings.model_copy(update={"silver": changed})


def assert_windows_follow(silver: Silver) -> None:
    """The windows are those that a batch counts from the clicks."""
    columns = [column.name for column in CLICK_ACTIVITY.columns if column.name != "closed"]
    found, exact = (
        sorted(frame.select(*columns).collect(), key=str)
        for frame in (silver.read(CLICK_ACTIVITY), click_activity(silver.read(CLICKS), timedelta(minutes=5), None))
    )
    assert found == exact


@contextmanager
def silver_in(spark: SparkSession, home: Path) -> Iterator[Silver]:
    made = Silver(spark, Settings(home=home, silver=SilverSettings(**AT_ONCE)))
    interpret(spark)
    try:
        yield made
    finally:
        for query in made.running:
            query.stop()
        interpret(spark, False)


@contextmanager
def cut_off_after(appends: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside, only so many appends of a batch of clicks succeed, as if the host died before the next."""
    done = 0

    def append(*arguments: Any) -> bool:
        nonlocal done
        if done == appends:
            raise OSError("cut off")
        done += 1
        return append_once(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr("streaming.clicks_query.append_once", append)
        yield


def execute_job(home: Path, job: str, config: dict[str, Any]) -> "subprocess.CompletedProcess[str]":
    """In a run of its own, with clicks as slow as one likes; `config` is that of the op named as the job begins."""
    return execute_ops(home, job, {job.partition("_")[0]: config})


def execute_ops(home: Path, job: str, configs: dict[str, dict[str, Any]]) -> "subprocess.CompletedProcess[str]":
    """The same, with the configuration of each op."""
    file, dagster_home = home / "config.json", home / "dagster"
    file.write_text(json.dumps({"ops": {op: {"config": config} for op, config in configs.items()}}))
    dagster_home.mkdir(exist_ok=True)
    chosen = {"TIDEWATCH_HOME": str(home), "TIDEWATCH_SILVER_LONGEST_PAGE_SECONDS": "9999"}
    return subprocess.run(
        [sys.executable, *f"-m dagster job execute -m orchestration.definitions -j {job} -c".split(), str(file)],
        env={**os.environ, **chosen, "DAGSTER_HOME": str(dagster_home)},
        capture_output=True,
        text=True,
        timeout=300,
    )

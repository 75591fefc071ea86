"""The checks of silver: each passes on tables that are right, and fails on what it is there for."""

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from dagster import AssetCheckEvaluation, AssetCheckSeverity, DagsterInstance
from pyspark.sql import SparkSession

from assets.silver_checks import _windows_follow
from lake.commit import append_once, create_if_missing
from lake.silver import CLICK_ACTIVITY, CLICK_DUPLICATES, CLICK_QUARANTINE, clicks_table
from lake.tables import Table, bronze_table
from orchestration.definitions import defs
from settings import Settings, load_settings
from streaming.files import StreamFiles
from streaming.progress import RUNNING, QueryProgress, StreamProgress

BRONZE, CLICKS = bronze_table("clicks"), clicks_table({})
ALL = {"books_balanced", "fresh", "known_fields", "few_duplicates", "few_quarantined", "windows_follow"}
HOLD = (
    "import fcntl, sys; f = open(sys.argv[1], 'w'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
)


class Lake:
    def __init__(self, spark: SparkSession, settings: Settings) -> None:
        self._spark = spark
        self._settings = settings
        self._commits = 0

    def add(self, table: Table, count: int, **values: str) -> None:
        create_if_missing(self._spark, table, self._settings.lake_root)
        time = "enqueued_time" if table is BRONZE else "processing_time"
        given = [f"{value} AS {name}" for name, value in values.items()]
        rows = self._spark.range(count).selectExpr(f"current_timestamp() AS {time}", "current_date() AS date", *given)
        append_once(rows.coalesce(1), table, self._settings.lake_root, "w", self._commits)
        self._commits += 1

    def fill(self) -> None:
        """Ten records: seven clicks, one repeat, two that failed."""
        for table, count in ((BRONZE, 10), (CLICKS, 7), (CLICK_DUPLICATES, 1), (CLICK_QUARANTINE, 2)):
            self.add(table, count)
        self.add_window("-30 SECONDS")

    def add_window(self, since: str) -> None:
        """One that ends so long after now."""
        create_if_missing(self._spark, CLICK_ACTIVITY, self._settings.lake_root)
        row = self._spark.range(1).selectExpr(
            f"current_timestamp() + INTERVAL {since} AS window_end", "current_date() AS date"
        )
        append_once(row, CLICK_ACTIVITY, self._settings.lake_root, "w", self._commits)
        self._commits += 1

    def progress(self, lag_seconds: float = 1.0, next_version: int = 2) -> None:
        at = datetime.now(UTC).isoformat()
        query = QueryProgress(10, lag_seconds=lag_seconds, lag_records=1, read_to={"version": next_version, "files": 0})
        queries = {"clicks": query, "click_activity": query}
        StreamProgress("silver", RUNNING, at, at, queries=queries).write(self._files.progress)

    @property
    def _files(self) -> StreamFiles:
        return StreamFiles(self._settings.run_folder, "silver")


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    monkeypatch.setenv("TIDEWATCH_SILVER_MOST_QUARANTINED", "0.25")
    return load_settings()


@pytest.fixture
def lake(spark: SparkSession, settings: Settings) -> Lake:
    return Lake(spark, settings)


@pytest.fixture
def silver_runs(settings: Settings) -> Iterator[None]:
    """Another process holds the lease."""
    lease = StreamFiles(settings.run_folder, "silver").lease
    lease.parent.mkdir(parents=True)
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(lease)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    yield
    holder.kill()
    holder.wait()


def evaluations() -> dict[str, AssetCheckEvaluation]:
    with DagsterInstance.ephemeral() as instance:
        result = defs.resolve_job_def("check_silver").execute_in_process(instance=instance)
        return {each.check_name: each for each in result.get_asset_check_evaluations()}


def failing() -> dict[str, str]:
    return {name: each.description or "" for name, each in evaluations().items() if not each.passed}


def test_all_pass_on_tables_that_are_right(lake: Lake, silver_runs: None) -> None:
    lake.fill()
    lake.progress()
    found = evaluations()
    assert set(found) == ALL
    assert {name: each.description for name, each in found.items() if not each.passed} == {}
    assert found["books_balanced"].metadata["bronze"].value == 10
    # A batch that silver has not read yet, or has read in part, is no difference.
    lake.add(BRONZE, 5)
    assert failing() == {}
    lake.add(CLICKS, 3)
    assert failing() == {}


def test_books_that_do_not_balance_fail(lake: Lake, silver_runs: None) -> None:
    lake.fill()
    lake.add(BRONZE, 5)
    lake.progress(next_version=3)
    assert list(failing()) == ["books_balanced"] and "5 records of" in failing()["books_balanced"]
    lake.add(CLICKS, 6)
    assert "1 records of" in failing()["books_balanced"] and "more than once" in failing()["books_balanced"]


@pytest.mark.parametrize(("note", "change"), [("swap.json", "rebuild"), ("replay.json", "replay")])
def test_while_tables_are_changed_one_by_one_their_difference_is_no_error(
    lake: Lake, settings: Settings, silver_runs: None, note: str, change: str
) -> None:
    lake.fill()
    lake.add(CLICKS, 1)
    lake.progress()
    assert evaluations()["books_balanced"].severity is AssetCheckSeverity.ERROR
    Path(settings.checkpoint_root, "silver").mkdir(parents=True)
    Path(settings.checkpoint_root, "silver", note).touch()
    found = evaluations()["books_balanced"]
    assert (found.passed, found.severity) == (False, AssetCheckSeverity.WARN)
    assert f"a {change} is changing the tables" in (found.description or "")


def test_what_is_put_aside_too_often_is_warned_of(lake: Lake, silver_runs: None) -> None:
    lake.fill()
    lake.add(BRONZE, 4)
    lake.add(CLICK_QUARANTINE, 2)
    lake.add(CLICK_DUPLICATES, 2)
    lake.progress(next_version=3)
    found = failing()
    assert set(found) == {"few_duplicates", "few_quarantined"}
    assert "28.57% of the records" in found["few_quarantined"] and "21.43% of the records" in found["few_duplicates"]


def test_unknown_fields_are_told_with_examples(lake: Lake, silver_runs: None) -> None:
    lake.fill()
    unknown = """'{"campaign":"x","userAgent":{"v":1},"extraPayload":[{},{"rank":2},{"rank":3}]}'"""
    lake.add(BRONZE, 2)
    lake.add(CLICKS, 2, unknown_fields=unknown)
    lake.progress(next_version=3)
    found = evaluations()["known_fields"]
    assert not found.passed
    assert "2 clicks of the last day" in (found.description or "")
    told = str(found.metadata["fields"].value)
    assert '| `campaign` | 2 | "x"' in told and "| `userAgent.v` | 2 | 1" in told
    assert "| `extraPayload[].rank` | 2 |" in told


def test_a_query_that_is_behind_or_does_not_run_is_not_fresh(lake: Lake, silver_runs: None) -> None:
    lake.fill()
    lake.progress(lag_seconds=1000)
    assert set(failing()) == {"fresh"}
    assert "1000 s behind bronze" in failing()["fresh"]


def test_what_a_dead_host_left_says_nothing_about_now(lake: Lake) -> None:
    lake.fill()
    lake.progress()
    found = failing()
    assert set(found) == {"books_balanced", "fresh"}
    assert "silver does not run" in found["fresh"] and "nobody knows" in found["books_balanced"]


def test_before_the_first_record_the_books_are_in_order(settings: Settings) -> None:
    assert set(failing()) == {"fresh"}


def test_windows_that_stay_behind_the_clicks_are_told(lake: Lake, settings: Settings, silver_runs: None) -> None:
    lake.add(BRONZE, 1)
    lake.add(CLICKS, 1)
    lake.progress()
    at_first = evaluations()["windows_follow"]
    assert at_first.passed, "there was no time to count them yet"
    long_ago = datetime.now(UTC) - timedelta(hours=1)
    assert _windows_follow(settings, long_ago + timedelta(hours=2)).description == "there are clicks, but no windows"
    lake.add_window("-10 MINUTES")
    found = evaluations()["windows_follow"]
    lag = found.metadata["watermark lag in seconds"].value
    assert not found.passed and isinstance(lag, float) and 595 < lag < 700

"""Models trained on the clicks that came so far, promoted while traffic runs and the stream that judges is killed."""

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError
from pyspark.sql import SparkSession

from assets.anomaly_checks import every_click_judged
from bench.rig import wait_for
from lake.anomalies import PAGE_LOAD_ANOMALIES
from lake.click_books import page_load_times
from lake.tables import Table
from ml.registry import Registry
from ml.training import train
from tests.silver import CLICKS
from tests.system import Host, System
from tests.test_training import SOURCE, plan

pytestmark = pytest.mark.slow

BEGINNING = datetime(2020, 1, 1, tzinfo=UTC)


@pytest.mark.timeout(1200)
def test_every_click_is_judged_once_and_versions_never_mix_in_a_batch(spark: SparkSession, tmp_path: Path) -> None:
    environment = {
        "TIDEWATCH_SUPERVISOR_STREAMS": '["bronze", "silver"]',
        **{f"TIDEWATCH_SILVER_{name}TRIGGER_SECONDS": "1" for name in ("", "ANOMALY_")},
    }
    with System(tmp_path / "home", **environment) as system:
        registry = Registry(system.settings.model_folder)
        system.start_host()
        silver = system.start_host(stream="silver")
        with system.traffic(tmp_path / "ledger", 200, "clicks"):
            for number in range(1, 4):
                wait_for("more clicks", partial(has_clicks, system, 300 * number), 300)
                promote(system, registry, f"m-{number}")
                wait_for_version(system, silver, f"m-{number}")
                if number < 3:
                    silver.kill()
                    silver = system.start_host(stream="silver")
        audit = system.audit(tmp_path / "ledger", wait=600)
        assert audit["clean"], audit
        wait_for("all are judged", partial(all_are_judged, system), 300)
        wait_for("the check sees it", lambda: every_click_judged(system.settings).description == "all are", 60)
        assert_each_judged_once(spark, system)
        scores = opened(PAGE_LOAD_ANOMALIES, system)
        assert scores is not None
        scores.delete("sequence_number < 10")
        missed = every_click_judged(system.settings)
        assert not missed.passed and "are not judged" in (missed.description or "")
        silver.stop()


def assert_each_judged_once(spark: SparkSession, system: System) -> None:
    root = system.settings.lake_root
    clicks, judged = (spark.read.format("delta").load(table.path(root)) for table in (CLICKS, PAGE_LOAD_ANOMALIES))
    place = ["partition", "sequence_number"]
    assert judged.count() == judged.dropDuplicates(place).count() == clicks.count() > 900
    assert clicks.join(judged, place, "left_anti").isEmpty()
    assert {row[0] for row in judged.select("model_version").distinct().collect()} == {"m-1", "m-2", "m-3"}
    named = judged.selectExpr("_metadata.file_name AS file", "model_version").distinct().collect()
    for files in batches(system):
        assert len({row.model_version for row in named if row.file in files}) <= 1


def batches(system: System) -> list[set[str]]:
    """The names of the files that each batch of the stream added."""
    found = []
    for commit in Path(PAGE_LOAD_ANOMALIES.path(system.settings.lake_root), "_delta_log").glob("*.json"):
        actions = [json.loads(line) for line in commit.read_text().splitlines()]
        if any("txn" in action for action in actions):
            found.append({Path(action["add"]["path"]).name for action in actions if "add" in action})
    assert len([files for files in found if files]) > 3
    return found


def promote(system: System, registry: Registry, version: str) -> None:
    seconds = page_load_times(system.settings.lake_root, BEGINNING, 100_000)
    now = datetime.now(UTC)
    registry.add(train(seconds, plan(version=version), SOURCE), "a test", "to see", now)
    registry.promote(version, "a test", "to see", now)


def wait_for_version(system: System, silver: Host, version: str) -> None:
    """Until a batch was judged by it."""

    def seen() -> bool:
        assert silver.process.poll() is None, silver.log.read_text()[-3000:]
        table = opened(PAGE_LOAD_ANOMALIES, system)
        found = table.to_pyarrow_dataset().to_table(columns=["model_version"]) if table else None
        return found is not None and version in found["model_version"].unique().to_pylist()

    wait_for(f"{version} judges", seen, 300)


def has_clicks(system: System, least: int) -> bool:
    return rows_so_far(CLICKS, system) >= least


def all_are_judged(system: System) -> bool:
    return rows_so_far(PAGE_LOAD_ANOMALIES, system) >= rows_so_far(CLICKS, system)


def rows_so_far(table: Table, system: System) -> int:
    there = opened(table, system)
    return there.to_pyarrow_dataset().count_rows() if there else 0


def opened(table: Table, system: System) -> DeltaTable | None:
    try:
        return DeltaTable(table.path(system.settings.lake_root))
    except TableNotFoundError:
        return None

"""Clicks judged by the model: each once, by the model of its batch, whatever happens to model, batch or clicks."""

import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import numpy as np
import pytest
from delta import DeltaTable

from lake.anomalies import PAGE_LOAD_ANOMALIES
from ml.features import CURRENT
from ml.model import FORMAT, Cluster, Histogram, Model, Training, judge
from ml.registry import MODEL_FILE, Registry
from streaming.click_tables import note_stale_days
from tests.silver import CLICKS, START, Silver, click

pytestmark = pytest.mark.slow

NOW = datetime(2026, 3, 1, tzinfo=UTC)
QUERY = "page_load_anomalies"
SECONDS = (0.5, 1.0, 2.0, 40.0, 0.0)


def model(version: str, threshold: float = 2.0) -> Model:
    """Around one second, on a log scale."""
    return Model(
        format=FORMAT,
        version=version,
        feature_schema=CURRENT.version,
        features=list(CURRENT.names),
        means=[0.0],
        deviations=[1.0],
        histograms=[Histogram(edges=[0.0], shares=[0.5, 0.5])],
        clusters=[
            Cluster(centroid=[0.0], threshold=threshold, share=0.9),
            Cluster(centroid=[9.0], threshold=threshold, share=0.1),
        ],
        training=Training(
            table="silver/clicks",
            table_version=0,
            rows=100,
            since="2026-03-01",
            until="2026-03-01",
            seed=1,
            sample_seed=1,
            sample_rows=125,
            contamination=0.01,
            clusters_tried=[2],
        ),
        metrics={},
    )


class Judged:
    def __init__(self, silver: Silver) -> None:
        self.silver = silver
        self.registry = Registry(silver.settings.model_folder)
        self._sent = 0

    def promote(self, version: str, threshold: float = 2.0) -> None:
        self.registry.add(model(version, threshold), "a test", "to see", NOW)
        self.registry.promote(version, "a test", "to see", NOW)

    def click(self, *seconds: float | None, minute: float = 0) -> None:
        """Clicks with ids of their own, carried into silver."""
        bodies = [click(f"e{self._sent + n}", page_loading_seconds=each) for n, each in enumerate(seconds)]
        self._sent += len(bodies)
        self.silver.put(*bodies, minute=minute)
        self.silver.work()

    def versions(self) -> dict[str, str]:
        """By event; fails where a click was judged twice."""
        rows = self.silver.read(PAGE_LOAD_ANOMALIES).collect()
        found = {row.eventID: row.model_version for row in rows}
        assert len(found) == len(rows), "a click was judged twice"
        return found


@pytest.fixture
def judged(silver: Silver) -> Judged:
    return Judged(silver)


def test_every_click_is_judged_as_the_reference_does(judged: Judged) -> None:
    judged.promote("m-1")
    judged.click(*SECONDS)
    judged.silver.work(QUERY)
    rows = judged.silver.read(PAGE_LOAD_ANOMALIES).orderBy("eventID").collect()
    (features,) = CURRENT.of(np.array(SECONDS)).T
    right = [judge(model("m-1"), [value]) for value in features.tolist()]
    assert [row.cluster for row in rows] == [verdict.cluster for verdict in right]
    assert [row.distance for row in rows] == pytest.approx([verdict.distance for verdict in right])
    assert [row.anomalous for row in rows] == [False, False, False, True, True]
    assert {(row.model_version, row.threshold) for row in rows} == {("m-1", 2.0)}
    assert [(row.partition, row.sequence_number) for row in rows] == [(0, number) for number in range(5)]


def test_a_new_model_is_taken_up_by_the_running_query(judged: Judged) -> None:
    judged.promote("m-1")
    judged.click(1.0, 1.0)
    running = judged.silver.start(QUERY)
    running.processAllAvailable()
    judged.promote("m-2", threshold=0.1)
    judged.click(1.0, 9.0)
    running.processAllAvailable()
    judged.registry.roll_back("a test", "it flags too much", NOW)
    judged.click(2.0)
    running.processAllAvailable()
    assert judged.versions() == {"e0": "m-1", "e1": "m-1", "e2": "m-2", "e3": "m-2", "e4": "m-1"}


def test_clicks_that_came_before_the_first_model_are_judged_by_it(judged: Judged) -> None:
    judged.click(1.0)
    judged.silver.work(QUERY)
    judged.click(2.0, minute=60 * 24)
    judged.silver.work(QUERY)
    assert judged.versions() == {}
    judged.promote("m-1")
    judged.click(3.0, minute=60 * 24)
    judged.silver.work(QUERY)
    assert judged.versions() == {"e0": "m-1", "e1": "m-1", "e2": "m-1"}


def test_clicks_that_wait_are_judged_although_no_more_come(judged: Judged) -> None:
    chores: dict[str, Callable[[], None]] = {}
    judged.click(1.0, 2.0)
    running = judged.silver.start(QUERY, do_between_batches=chores.__setitem__)
    running.processAllAvailable()
    chores[QUERY]()
    assert judged.versions() == {}
    judged.promote("m-1")
    chores[QUERY]()
    assert judged.versions() == {"e0": "m-1", "e1": "m-1"}


def test_a_model_that_does_not_fit_changes_nothing(judged: Judged, caplog: pytest.LogCaptureFixture) -> None:
    judged.promote("m-1")
    judged.click(1.0)
    running = judged.silver.start(QUERY)
    running.processAllAvailable()
    judged.promote("m-2")
    file = Path(judged.silver.settings.model_folder, "versions", "m-2", MODEL_FILE)
    file.write_text(file.read_text().replace('"feature_schema": 1', '"feature_schema": 7'))
    judged.click(1.0)
    running.processAllAvailable()
    running.stop()
    assert judged.versions() == {"e0": "m-1", "e1": "m-1"}
    assert "The model m-2 is refused" in caplog.text and "Clicks are judged by m-1" in caplog.text
    judged.click(1.0)
    judged.silver.work(QUERY)  # a new host finds the last that can be used
    assert judged.versions() == {"e0": "m-1", "e1": "m-1", "e2": "m-1"}


@pytest.mark.parametrize("lost", ["the last commit", "the checkpoint"])
def test_clicks_that_are_read_again_are_not_judged_again(judged: Judged, lost: str) -> None:
    judged.promote("m-1")
    judged.click(1.0, None)
    judged.silver.work(QUERY)
    judged.promote("m-2")
    if lost == "the checkpoint":
        shutil.rmtree(Path(judged.silver.settings.checkpoint_root, "silver", QUERY))
    else:
        judged.silver.forget(QUERY, "commits")
    judged.click(2.0)
    judged.silver.work(QUERY)
    assert judged.versions() == {"e0": "m-1", "e1": "m-1", "e2": "m-2"}
    (without,) = judged.silver.read(PAGE_LOAD_ANOMALIES).where("eventID = 'e1'").collect()
    assert (without.cluster, without.anomalous) == (None, None)


def test_scores_follow_clicks_that_were_rebuilt(judged: Judged) -> None:
    """Also while clicks of that day are still to be read."""
    judged.promote("m-1")
    judged.click(1.0, 2.0, 3.0)
    judged.silver.work(QUERY)
    judged.promote("m-2")
    judged.click(4.0)
    clicks = DeltaTable.forPath(judged.silver.spark, CLICKS.path(judged.silver.settings.lake_root))
    clicks.delete("eventID = 'e0'")
    clicks.update("eventID = 'e1'", {"page_loading_seconds": "40D"})
    note_stale_days(judged.silver.spark, judged.silver.settings, [str(date(START.year, START.month, START.day))])
    judged.silver.work(QUERY)
    judged.click(5.0)
    judged.silver.work(QUERY)
    assert judged.versions() == {"e1": "m-2", "e2": "m-1", "e3": "m-2", "e4": "m-2"}
    (changed,) = judged.silver.read(PAGE_LOAD_ANOMALIES).where("eventID = 'e1'").collect()
    assert changed.anomalous and changed.page_loading_seconds == 40.0

"""The jobs on models, each in a run of its own: a sample is drawn, a model trained, judged and promoted, past days are
scored by a chosen one, and what can't be done is told."""

from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from pyspark.sql import SparkSession

from lake.anomalies import PAGE_LOAD_RESCORES
from lake.click_sample import NoClicks, draw_clicks
from lake.commit import append_once, create_if_missing
from ml.evaluation import verdicts
from ml.features import CURRENT
from ml.registry import Registry
from ml.sample import KEPT, Drawn, SampleMissing, Samples
from settings import Settings
from tests.silver import CLICKS, execute_ops
from tests.test_evaluation import sample
from tests.test_training import traffic

DAY = date(2026, 3, 1)
NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
BEFORE, AFTER = NOON - timedelta(hours=1), NOON + timedelta(hours=1)


def fill(spark: SparkSession, root: str, seconds: np.ndarray, day: date = DAY, version: int = 0) -> None:
    """A commit of clicks of one day, numbered on from those of the commit before."""
    create_if_missing(spark, CLICKS, root)
    start = version * len(seconds)
    rows = spark.createDataFrame(
        [(start + number, float(each)) for number, each in enumerate(seconds)],
        "sequence_number BIGINT, page_loading_seconds DOUBLE",
    ).selectExpr(
        "concat('e', sequence_number) AS eventID",
        "*",
        "cast(sequence_number % 4 AS INT) AS partition",
        f"timestamp'{day} 12:00:00' AS processing_time",
        f"date'{day}' AS date",
    )
    append_once(rows.coalesce(1), CLICKS, root, "test", version)


def test_the_same_clicks_are_drawn_again(spark: SparkSession, tmp_path: Path) -> None:
    root = str(tmp_path)
    with pytest.raises(NoClicks, match="There is no silver/clicks yet"):
        draw_clicks(spark, root, BEFORE, AFTER, 100, 1, None)
    fill(spark, root, traffic(3_000, 1)[0])
    first = draw_clicks(spark, root, BEFORE, AFTER, 1_000, 1, None)
    fill(spark, root, traffic(3_000, 2)[0], version=1)
    again = draw_clicks(spark, root, BEFORE, AFTER, 1_000, 1, first.table_version)
    assert again.table_version == first.table_version and again.clicks == first.clicks == 3_000
    assert sorted(again.rows.to_pylist(), key=str) == sorted(first.rows.to_pylist(), key=str)
    assert 800 < first.rows.num_rows < 1_200
    other = draw_clicks(spark, root, BEFORE, AFTER, 1_000, 2, first.table_version)
    assert {row["sequence_number"] for row in other.rows.to_pylist()} != {
        row["sequence_number"] for row in first.rows.to_pylist()
    }
    everything = draw_clicks(spark, root, NOON - timedelta(days=1), AFTER, 10_000, 1, None)
    assert everything.rows.num_rows == everything.clicks == 6_000
    with pytest.raises(NoClicks, match="no clicks with a page load time from 2026-03-01 12:00 to 2026-03-01 13:00"):
        draw_clicks(spark, root, NOON + timedelta(seconds=1), AFTER, 100, 1, None)
    with pytest.raises(NoClicks, match="Version 99 of silver/clicks can't be read"):
        draw_clicks(spark, root, BEFORE, AFTER, 100, 1, 99)


def test_samples_are_kept_for_a_while(tmp_path: Path) -> None:
    samples = Samples(tmp_path / "samples")
    with pytest.raises(SampleMissing, match="no sample yet"):
        samples.read()
    for number in range(KEPT + 2):
        drawn = Drawn("silver/clicks", number, "2026-01-01T00:00:00+00:00", "2026-01-02T00:00:00+00:00", 10, 5, 1)
        samples.add(f"s-{number}", sample(np.arange(1.0, 11.0), drawn))
    newest, named = samples.read(), samples.read("s-3")
    assert newest.drawn.table_version == KEPT + 1 and named.drawn.table_version == 3
    assert len(newest.hashes) == 5 and (np.diff(newest.hashes) > 0).all(), "no more than were asked for, in their order"
    assert not samples.has("s-1") and samples.has("s-2")
    with pytest.raises(SampleMissing, match="no sample s-0"):
        samples.read("s-0")
    with pytest.raises(SampleMissing, match="is no name"):
        samples.read("../elsewhere")


@pytest.mark.slow
def test_retrain_promotes_rescore_scores_and_refusals_are_told(spark: SparkSession, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    early = execute_ops(tmp_path, "retrain", {})
    assert early.returncode != 0 and "There is no silver/clicks yet" in early.stderr
    seconds = traffic(20_000, 1)[0]
    fill(spark, settings.lake_root, seconds)
    chosen = {"training_sample": {"until": AFTER.isoformat(), "rows": 10_000}}
    first = execute_ops(tmp_path, "retrain", chosen)
    assert first.returncode == 0, first.stderr
    registry = Registry(settings.model_folder)
    current = registry.current()
    assert current is not None and current.why == "there is no model yet that could be used"
    model = registry.model(current.version)
    assert 7_000 < model.training.rows < 9_000 and model.training.table_version == 1
    evaluation = registry.evaluation(model.version)
    assert evaluation is not None and evaluation["rows"] + model.training.rows <= 10_000

    pinned = {"training_sample": {**chosen["training_sample"], "table_version": 1}}
    again = execute_ops(tmp_path, "retrain", {**pinned, "model_evaluation": {"promote": False}})
    assert again.returncode == 0, again.stderr
    newest = registry.model(registry.versions()[-1].version)
    assert newest.version != model.version
    assert newest.model_copy(update={"version": model.version}) == model, "a run can be repeated to the same model"
    assert registry.current() == current, "promoting was not asked for"

    bad = {"page_load_model": {"contamination": 0.4}}
    worse = execute_ops(tmp_path, "retrain", {**pinned, **bad})
    assert worse.returncode == 0, worse.stderr
    assert registry.current() == current and len(registry.versions()) == 3, "it is kept, but does worse"

    done = execute_ops(tmp_path, "rescore", {"rescore_days": {"version": newest.version, "first_day": str(DAY)}})
    assert done.returncode == 0, done.stderr
    rows = spark.read.format("delta").load(PAGE_LOAD_RESCORES.path(settings.lake_root)).collect()
    assert {row.model_version for row in rows} == {newest.version} and len(rows) == len(seconds)
    right = verdicts(newest, CURRENT.of(seconds))
    assert {row.sequence_number for row in rows if row.anomalous} == set(np.flatnonzero(right.anomalous).tolist())
    unknown = execute_ops(tmp_path, "rescore", {"rescore_days": {"version": "m-9"}})
    assert unknown.returncode != 0 and "There is no model m-9. The newest ones" in unknown.stderr

    back = execute_ops(tmp_path, "promote_model", {"promote": {"version": newest.version, "why": "to see"}})
    assert back.returncode == 0, back.stderr
    now = registry.current()
    assert now is not None and (now.version, now.why) == (newest.version, "to see")


@pytest.mark.slow
def test_rescored_again_a_day_is_there_once(spark: SparkSession, tmp_path: Path) -> None:
    """In the test's own session, a few days at a time."""
    from streaming.click_rebuild import Days
    from streaming.rescore import NothingToScore, rescore
    from tests.test_anomaly_query import model

    settings = Settings(home=tmp_path)
    for number in range(3):
        fill(spark, settings.lake_root, np.array([1.0, 50.0]), DAY + timedelta(days=number), number)
    done = rescore(spark, settings, model("m-1"), Days())
    assert (done.days, done.clicks, done.anomalous) == (3, 6, 3)
    rescore(spark, settings, model("m-2", threshold=9.0), Days(DAY, DAY))
    rescore(spark, settings, model("m-1"), Days(DAY, DAY))
    found = spark.read.format("delta").load(PAGE_LOAD_RESCORES.path(settings.lake_root))
    counts = {
        (row.model_version, row.date): row["count"] for row in found.groupBy("model_version", "date").count().collect()
    }
    assert counts == {**{("m-1", DAY + timedelta(days=n)): 2 for n in range(3)}, ("m-2", DAY): 2}
    with pytest.raises(NothingToScore, match="no clicks of 2027"):
        rescore(spark, settings, model("m-1"), Days(date(2027, 1, 1), None))

"""Training: the same rows give the same model, and it finds the anomalies that it has not seen."""

import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pyspark.sql import SparkSession

from hub.traffic.clicks import Clicks
from ml.features import CURRENT, LEAST_SECONDS, Numbers
from ml.model import Model, ModelRefused, Training, judge
from ml.sample import TooFewRows
from ml.scoring import check_fits, scored
from ml.training import Plan, train
from tests.test_model import model

REPOSITORY = Path(__file__).parents[1]
MILLION = """
import resource
import numpy as np
from ml.training import Plan, train
from tests.test_training import SOURCE
seconds = np.random.default_rng(1).lognormal(0, 0.5, 1_000_000)
train(seconds, Plan("m-1", range(1, 7), 0.01, seed=1), SOURCE)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""
SOURCE = Training(
    table="silver/clicks",
    table_version=1,
    rows=1,
    since="2026-01-01",
    until="2026-01-02",
    seed=7,
    sample_seed=1,
    sample_rows=125,
    contamination=0.01,
    clusters_tried=[1, 2, 3],
)


def plan(**changes: Any) -> Plan:
    return Plan(**{"version": "m-1", "clusters": (1, 2, 3, 4, 6), "contamination": 0.01, "seed": 7, **changes})


def traffic(count: int, seed: int) -> tuple[Numbers, np.ndarray[Any, np.dtype[np.bool_]]]:
    """Page load times, and which of them are anomalous."""
    planned = list(Clicks(count, random.Random(seed)).due(1.0, datetime(2026, 1, 1, tzinfo=UTC)))
    seconds = [json.loads(each.record.body or b"")["page_loading_seconds"] for each in planned]
    return np.array(seconds), np.array([each.about["anomaly"] for each in planned])


def flagged(model: Model, seconds: Numbers) -> np.ndarray[Any, np.dtype[np.bool_]]:
    return np.array([judge(model, row).anomalous for row in CURRENT.of(seconds).tolist()])


@pytest.mark.parametrize("clusters", [(1,), (2,), (4,), (6,), (1, 2, 3, 4, 6)])
def test_it_finds_anomalies_that_it_has_not_seen(clusters: tuple[int, ...]) -> None:
    """With any number of clusters: anomalies never become one of them."""
    model = train(traffic(20_000, 1)[0], plan(clusters=clusters), SOURCE)
    seconds, anomalous = traffic(20_000, 2)
    found = flagged(model, seconds)
    assert (found & anomalous).sum() / found.sum() >= 0.9
    assert (found & anomalous).sum() / anomalous.sum() >= 0.9


def test_the_same_rows_give_the_same_model() -> None:
    seconds, _ = traffic(3_000, 1)
    assert train(seconds, plan(), SOURCE) == train(seconds, plan(), SOURCE)
    assert train(seconds, plan(), SOURCE) != train(seconds[:-1], plan(), SOURCE)


def test_clusters_that_are_there_are_found() -> None:
    draw = np.random.default_rng(1)
    seconds = np.concatenate(
        [draw.lognormal(-2, 0.1, 2000), draw.lognormal(0, 0.1, 2000), draw.lognormal(2, 0.1, 1000)]
    )
    model = train(seconds, plan(contamination=0.0), SOURCE)
    assert [round(cluster.share, 1) for cluster in model.clusters] == [0.4, 0.4, 0.2]
    assert model.metrics["silhouette"] > 0.8
    assert not flagged(model, seconds).any(), "none of what it was trained on, where nothing is taken for anomalous"


def test_few_rows_or_equal_ones() -> None:
    with pytest.raises(TooFewRows, match="99 clicks are too few"):
        train(np.ones(99), plan(), SOURCE)
    model = train(np.ones(1000), plan(clusters=(1,)), SOURCE)
    assert flagged(model, np.array([1.0, 1.001])).tolist() == [False, True]


@pytest.mark.parametrize("values", [[1.0, 2.0, 3.0], [20.0], [0.0, 0.0, 0.0, 5.0]])
def test_times_that_are_the_same_are_no_anomalies_to_spark_either(spark: SparkSession, values: list[float]) -> None:
    """Where the furthest click lies on the threshold, it is not beyond it by rounding."""
    seconds = np.array(values * 400)
    model = train(seconds, plan(clusters=(1, 2), contamination=0.0), SOURCE)
    rows = spark.createDataFrame([(value,) for value in values], "page_loading_seconds DOUBLE")
    judged = [row["anomalous"] for row in scored(rows, model).collect()]
    assert judged == [False] * len(values) and not flagged(model, seconds).any()
    assert model.metrics["share_flagged"] == 0


def test_one_far_click_and_many_clusters_are_no_trouble() -> None:
    model = train(np.array([1.0] * 20_000 + [1000.0]), plan(clusters=(1, 2), contamination=0.0), SOURCE)
    assert np.isfinite(model.metrics["silhouette"])
    with pytest.raises(TooFewRows, match="51 clicks are too few for 60 clusters"):
        train(traffic(100, 1)[0], plan(clusters=(60,), contamination=0.49), SOURCE)


@pytest.mark.slow
def test_a_million_clicks_need_little_memory() -> None:
    told = subprocess.run([sys.executable, "-c", MILLION], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert float(told.stdout) < 1500


def test_spark_scores_as_the_reference_does(spark: SparkSession) -> None:
    seconds, _ = traffic(5_000, 3)
    seconds[:3] = 0.0, 1e-9, 3600.0
    model = train(traffic(5_000, 1)[0], plan(clusters=(3,)), SOURCE)
    rows = spark.createDataFrame([(float(value),) for value in seconds], "page_loading_seconds DOUBLE").coalesce(1)
    found = scored(rows, model).collect()
    right = [judge(model, row) for row in CURRENT.of(seconds).tolist()]
    assert [row["cluster"] for row in found] == [verdict.cluster for verdict in right]
    assert [row["distance"] for row in found] == pytest.approx([verdict.distance for verdict in right])
    assert [row["threshold"] for row in found] == [verdict.threshold for verdict in right]
    assert [row["anomalous"] for row in found] == [verdict.anomalous for verdict in right]
    nothing = scored(spark.createDataFrame([(None,)], "page_loading_seconds DOUBLE"), model)
    assert nothing.first() == (None, None, None, None, None)


@pytest.mark.parametrize("centroids", [[0.5], [1.0, -1.0, 3.0], [2.0, 2.0, -2.0, 2.0], [-1.0, 1.0, -1.0]])
def test_clusters_need_no_order_and_of_equals_the_first_is_taken(spark: SparkSession, centroids: list[float]) -> None:
    clusters = [{"centroid": [at], "threshold": 0.5 + number, "share": 0.0} for number, at in enumerate(centroids)]
    judging = model(means=[0.0], deviations=[1.0], clusters=clusters)
    in_the_middle = 1.0 - LEAST_SECONDS
    seconds = [in_the_middle, 0.01, 0.1, 0.3, 0.8, 1.3, 2.7, 5.0, 9.0, 40.0]
    assert CURRENT.of(np.array([in_the_middle])).tolist() == [[0.0]]
    rows = spark.createDataFrame([(value,) for value in seconds], "page_loading_seconds DOUBLE").coalesce(1)
    right = [judge(judging, row) for row in CURRENT.of(np.array(seconds)).tolist()]
    assert [row["cluster"] for row in scored(rows, judging).collect()] == [verdict.cluster for verdict in right]


def test_a_model_of_other_features_is_refused() -> None:
    model = train(traffic(1_000, 1)[0], plan(clusters=(1,)), SOURCE)
    with pytest.raises(ModelRefused, match="trained on version 2 of the features"):
        check_fits(model.model_copy(update={"feature_schema": 2}))

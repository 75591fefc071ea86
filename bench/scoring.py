"""Clicks judged in rows a second: by the model compiled into Spark's expressions, against only reading the same cached
clicks, and against scikit-learn's pipeline in a pandas function, in turns. All verdicts have to be equal."""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.functions import pandas_udf
from sklearn.cluster import KMeans
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler

from bench.figures import Figure, Result
from ml.features import LEAST_SECONDS, Numbers
from ml.model import Model, Training
from ml.scoring import scored
from ml.training import Plan, train
from settings import Settings, SparkSettings
from streaming.session import close_session, spark_session

ROWS, TRAINED_ON, CLUSTERS = 5_000_000, 100_000, 8
MOST_LISTED = 100
VERDICT = "cluster INT, distance DOUBLE, threshold DOUBLE, anomalous BOOLEAN"
NEAR = 1e-6
"""Two distances that differ by less are equal but for how they were rounded."""


def measure(runs: int, say: Callable[[str], None], rows: int = ROWS) -> Result:
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        settings = Settings(home=Path(folder), lake=None, checkpoints=None, spark=SparkSettings(driver_memory="3g"))
        spark = spark_session(settings, "bench")
        try:
            return _measured(spark, runs, say, rows)
        finally:
            close_session(spark)


def _measured(spark: SparkSession, runs: int, say: Callable[[str], None], rows: int) -> Result:
    clicks = (
        spark.range(rows, numPartitions=spark.sparkContext.defaultParallelism)
        .selectExpr("id", "exp(0.45 * randn(1)) * CASE WHEN rand(2) < 0.01 THEN 20 ELSE 1 END AS page_loading_seconds")
        .persist(StorageLevel.MEMORY_ONLY)
    )
    clicks.count()
    model = _model(clicks)
    judged = scored(clicks, model).drop("page_loading_seconds")
    by_pipeline = clicks.select("id", _pipeline(model)("page_loading_seconds").alias("score")).select("id", "score.*")
    ways: dict[str, DataFrame] = {"noop": clicks, "scoring": judged, "udf": by_pipeline}
    for each in ways.values():  # once for what is compiled and started only once
        _seconds(each)
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(runs):
        for name, frame in ways.items():
            found[name].append(rows / _seconds(frame))
        say(f"{number + 1}: " + ", ".join(f"{name} {rates[-1]:,.0f} rows/s" for name, rates in found.items()))
    mismatches, ties = _mismatches(judged, by_pipeline, say)
    return Result(
        "scoring",
        {
            "scoring_vs_noop": Figure.at_least(0.9, _ratios(found["scoring"], found["noop"])),
            "scoring_vs_udf": Figure.at_least(10, _ratios(found["scoring"], found["udf"])),
            "mismatches": Figure.at_most(0, [float(mismatches)], "rows"),
            "ties": Figure.plain([float(ties)], "rows"),
            **{f"{name}_rows_per_s": Figure.plain(rates, "rows/s") for name, rates in found.items()},
        },
    )


def _seconds(frame: DataFrame) -> float:
    began = time.monotonic()
    frame.write.format("noop").mode("overwrite").save()
    return time.monotonic() - began


def _ratios(ours: list[float], theirs: list[float]) -> list[float]:
    return [mine / other for mine, other in zip(ours, theirs, strict=True)]


def _model(clicks: DataFrame) -> Model:
    seconds = np.array([row[0] for row in clicks.select("page_loading_seconds").limit(TRAINED_ON).collect()])
    source = Training(
        table="none",
        table_version=0,
        rows=len(seconds),
        since="",
        until="",
        seed=1,
        sample_seed=1,
        sample_rows=len(seconds),
        contamination=0.01,
        clusters_tried=[CLUSTERS],
    )
    return train(seconds, Plan("bench", (CLUSTERS,), 0.01, seed=1), source)


def _pipeline(model: Model) -> Callable[[str], Column]:
    """The same model as most would write it: logarithm, scaling and KMeans of scikit-learn over a pandas series."""
    scaler, means = StandardScaler(), KMeans(len(model.clusters), n_init=1, max_iter=1)
    scaler.fit(np.zeros((2, 1)))
    scaler.mean_, scaler.scale_ = np.array(model.means), np.array(model.deviations)
    means.fit(np.arange(len(model.clusters), dtype=float)[:, None])
    means.cluster_centers_ = np.array([cluster.centroid for cluster in model.clusters])
    pipeline = make_pipeline(FunctionTransformer(_logarithm), scaler, means)
    thresholds = np.array([cluster.threshold for cluster in model.clusters])

    def judge(seconds: pd.Series) -> pd.DataFrame:
        distances = pipeline.transform(seconds.to_numpy()[:, None])
        nearest = distances.argmin(axis=1)
        distance = distances[np.arange(len(nearest)), nearest]
        limit = thresholds[nearest]
        return pd.DataFrame(
            {"cluster": nearest, "distance": distance, "threshold": limit, "anomalous": distance > limit}
        )

    wrapped: Callable[[str], Column] = pandas_udf(judge, VERDICT)  # type: ignore[call-overload]
    return wrapped


def _logarithm(seconds: Numbers) -> Numbers:
    return np.log(seconds + LEAST_SECONDS)


def _mismatches(judged: DataFrame, by_pipeline: DataFrame, say: Callable[[str], None]) -> tuple[int, int]:
    """Rows with another cluster or verdict; those apart where both are equally right but for rounding."""
    other = by_pipeline.select(
        "id", *(F.col(name).alias(f"their_{name}") for name in ("cluster", "distance", "anomalous"))
    )
    differ = (F.col("cluster") != F.col("their_cluster")) | (F.col("anomalous") != F.col("their_anomalous"))
    rows = judged.join(other, "id").where(differ).collect()
    ties = [
        row
        for row in rows
        if abs(row.distance - row.their_distance) < NEAR
        and (row.cluster != row.their_cluster or abs(row.distance - row.threshold) < NEAR)
    ]
    for row in ties[:MOST_LISTED]:
        say(f"tie: {row}")
    return len(rows) - len(ties), len(ties)

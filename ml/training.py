"""Trains a model: scaled features, clusters by KMeans without the furthest points, and a threshold for each cluster.

Anomalies would become clusters of their own, and so look normal. So the points that are furthest from every centroid,
as many as are taken for anomalous, are left out while the centroids are found: first those furthest from the median of
all, then again and again those furthest from the centroids, until no point changes sides. A cluster's threshold lies
between the furthest point that was kept and the nearest one that was not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score
from threadpoolctl import threadpool_limits

from ml.drift import histogram
from ml.features import CURRENT, Flags, Numbers
from ml.model import FORMAT, Cluster, Model, Training
from ml.nearest import Nearest, nearest
from ml.sample import Sample, TooFewRows

MOST_ROUNDS = 20
STARTS = 4
SILHOUETTE_ROWS = 5_000
LEAST_ROWS = 100
# So much larger than what two ways to compute a logarithm differ by that neither a single value nor the furthest point
# that was kept falls beyond its threshold by rounding.
LEAST_DEVIATION, MARGIN = 1e-6, 1e-9
# Unlike a good k, a larger one has to pay for itself.
WORTH = 0.02


@dataclass(frozen=True)
class Plan:
    """How a model is made."""

    version: str
    clusters: Sequence[int]
    """The numbers of clusters to try."""
    contamination: float
    """The share of clicks that is taken for anomalous."""
    seed: int


@dataclass(frozen=True)
class _Fit:
    centroids: Numbers
    silhouette: float
    inertia: float


def train_on(sample: Sample, plan: Plan) -> Model:
    """From what of the sample is not held out."""
    seconds, drawn = sample.for_training, sample.drawn
    source = Training(
        table=drawn.table,
        table_version=drawn.table_version,
        rows=max(1, len(seconds)),
        since=drawn.since,
        until=drawn.until,
        seed=plan.seed,
        sample_seed=drawn.seed,
        sample_rows=drawn.most_rows,
        contamination=plan.contamination,
        clusters_tried=sorted(plan.clusters),
    )
    return train(seconds, plan, source)


def train(page_loading_seconds: Numbers, plan: Plan, source: Training) -> Model:
    """The same rows, plan and libraries give the same model."""
    if len(page_loading_seconds) < LEAST_ROWS:
        raise TooFewRows(f"{len(page_loading_seconds)} clicks are too few to train on: {LEAST_ROWS} are the least.")
    features = CURRENT.of(page_loading_seconds)
    middle = np.median(features, axis=0)
    deviations = np.maximum(_spread(features - middle), LEAST_DEVIATION)
    scaled = (features - middle) / deviations
    keep = len(scaled) - round(plan.contamination * len(scaled))
    with threadpool_limits(1):  # more threads add up in the order in which they happen to be done
        fits = {count: _fit(scaled, count, keep, plan.seed) for count in sorted(plan.clusters) if count <= keep}
    if not fits:
        raise TooFewRows(f"{keep} clicks are too few for {min(plan.clusters)} clusters.")
    chosen = _chosen(fits)
    centroids = fits[chosen].centroids
    found = nearest(scaled, list(centroids))
    kept = _furthest_left_out(found.distances, keep)
    clusters = [_cluster(centroids[number], found, kept, number) for number in range(chosen)]
    thresholds = np.array([cluster.threshold for cluster in clusters])
    return Model(
        format=FORMAT,
        version=plan.version,
        feature_schema=CURRENT.version,
        features=list(CURRENT.names),
        means=[float(value) for value in middle],
        deviations=[float(value) for value in deviations],
        histograms=[histogram(column) for column in features.T],
        clusters=clusters,
        training=source,
        metrics={
            "silhouette": fits[chosen].silhouette,
            "inertia": fits[chosen].inertia,
            "share_flagged": float(np.mean(found.distances > thresholds[found.clusters])),
            **{f"silhouette_of_{count}": each.silhouette for count, each in fits.items()},
        },
    )


def _fit(scaled: Numbers, count: int, keep: int, seed: int) -> _Fit:
    kept = _furthest_left_out(np.linalg.norm(scaled, axis=1), keep)
    model = KMeans(count, n_init=STARTS, random_state=seed).fit(scaled[kept])
    for _ in range(MOST_ROUNDS):
        still = _furthest_left_out(nearest(scaled, list(model.cluster_centers_)).distances, keep)
        if (still == kept).all():
            break
        kept = still
        model = KMeans(count, init=model.cluster_centers_, n_init=1, random_state=seed).fit(scaled[kept])
    centroids = model.cluster_centers_[np.lexsort(model.cluster_centers_.T[::-1])]
    return _Fit(centroids, _silhouette(scaled[kept], centroids, seed), float(model.inertia_))


def _chosen(fits: dict[int, _Fit]) -> int:
    """The least number of clusters whose silhouette is about as good as the best; that of a single one counts as 0."""
    best = max(fit.silhouette for fit in fits.values())
    return min(count for count, fit in fits.items() if fit.silhouette >= best - WORTH)


def _cluster(centroid: Numbers, found: Nearest, kept: Flags, number: int) -> Cluster:
    inside = found.clusters == number
    furthest = found.distances[inside & kept].max(initial=0.0)
    beyond = found.distances[inside & ~kept].min(initial=np.inf)
    threshold = (furthest + beyond) / 2 if np.isfinite(beyond) else furthest
    return Cluster(
        centroid=[float(value) for value in centroid],
        threshold=float(threshold) * (1 + MARGIN) + MARGIN,
        share=float(np.mean(inside)),
    )


def _furthest_left_out(distances: Numbers, keep: int) -> Flags:
    flags = np.zeros(len(distances), dtype=bool)
    flags[np.argsort(distances, kind="stable")[:keep]] = True
    return flags


def _silhouette(scaled: Numbers, centroids: Numbers, seed: int) -> float:
    """Of some points, and 0 where all of these are of one cluster."""
    some = np.random.default_rng(seed).permutation(len(scaled))[:SILHOUETTE_ROWS]
    labels = nearest(scaled[some], list(centroids)).clusters
    if not 2 <= len(np.unique(labels)) < len(some):
        return 0.0
    return float(silhouette_score(scaled[some], labels))


def _spread(centred: Numbers) -> Numbers:
    """A standard deviation that anomalies do not change much."""
    spread: Numbers = np.median(np.abs(centred), axis=0) * 1.4826
    return spread

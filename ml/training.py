"""Trains a model: scaled features, clusters by KMeans without the furthest points, and a threshold for each cluster.

Anomalies would become clusters of their own, and so look normal. So the points that are furthest from every centroid,
as many as are taken for anomalous, are left out while the centroids are found: first those furthest from the median of
all, then again and again those furthest from the centroids, until no point changes sides. A cluster's threshold lies
between the furthest point that was kept and the nearest one that was not.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from sklearn.cluster import KMeans
from sklearn.metrics import silhouette_score

from ml.features import CURRENT, Numbers
from ml.model import FORMAT, Cluster, Model, Training

MOST_ROUNDS = 20
STARTS = 4
SILHOUETTE_ROWS = 5_000
LEAST_ROWS = 100
LEAST_DEVIATION = 1e-9
# Unlike a good k, a larger one has to pay for itself.
WORTH = 0.02

Flags = npt.NDArray[np.bool_]


class TooFewRows(Exception):
    """There is not enough to train on; the message says how much there is and has to be."""


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
    kept: Flags
    labels: npt.NDArray[np.int64]
    distances: Numbers
    silhouette: float
    inertia: float


def train(page_loading_seconds: Numbers, plan: Plan, source: Training) -> Model:
    """The same rows, plan and libraries give the same model."""
    if len(page_loading_seconds) < LEAST_ROWS:
        raise TooFewRows(f"{len(page_loading_seconds)} clicks are too few to train on: {LEAST_ROWS} are the least.")
    features = CURRENT.of(page_loading_seconds)
    middle = np.median(features, axis=0)
    deviations = np.maximum(_spread(features - middle), LEAST_DEVIATION)
    scaled = (features - middle) / deviations
    fits = {count: _fit(scaled, count, plan) for count in sorted(plan.clusters)}
    chosen = _chosen(fits)
    fit = fits[chosen]
    return Model(
        format=FORMAT,
        version=plan.version,
        feature_schema=CURRENT.version,
        features=list(CURRENT.names),
        means=[float(value) for value in middle],
        deviations=[float(value) for value in deviations],
        clusters=[_cluster(fit, number) for number in range(chosen)],
        training=source,
        metrics={
            "silhouette": fit.silhouette,
            "inertia": fit.inertia,
            "share_flagged": float(np.mean(~fit.kept)),
            **{f"silhouette_of_{count}": each.silhouette for count, each in fits.items()},
        },
    )


def _fit(scaled: Numbers, count: int, plan: Plan) -> _Fit:
    keep = len(scaled) - round(plan.contamination * len(scaled))
    kept = _nearest(np.linalg.norm(scaled, axis=1), keep)
    for _ in range(MOST_ROUNDS):
        model = KMeans(count, n_init=STARTS, random_state=plan.seed).fit(scaled[kept])
        distances = _distances(scaled, model.cluster_centers_)
        nearest = _nearest(distances.min(axis=1), keep)
        if (nearest == kept).all():
            break
        kept = nearest
    order = np.lexsort(model.cluster_centers_.T[::-1])
    labels = np.argsort(order)[distances.argmin(axis=1)]
    return _Fit(
        model.cluster_centers_[order],
        kept,
        labels,
        distances.min(axis=1),
        _silhouette(scaled[kept], labels[kept], plan.seed),
        float(model.inertia_),
    )


def _chosen(fits: dict[int, _Fit]) -> int:
    """The least number of clusters whose silhouette is about as good as the best; a single one where none is good."""
    best = max(fit.silhouette for fit in fits.values())
    return min(count for count, fit in fits.items() if fit.silhouette >= best - WORTH)


def _cluster(fit: _Fit, number: int) -> Cluster:
    inside = fit.labels == number
    furthest = fit.distances[inside & fit.kept].max(initial=0.0)
    beyond = fit.distances[inside & ~fit.kept].min(initial=np.inf)
    threshold = (furthest + beyond) / 2 if np.isfinite(beyond) else furthest
    return Cluster(
        centroid=[float(value) for value in fit.centroids[number]],
        threshold=max(float(threshold), LEAST_DEVIATION),
        share=float(np.mean(inside)),
    )


def _distances(scaled: Numbers, centroids: Numbers) -> Numbers:
    """As scoring computes them: KMeans itself has a faster way that rounds more."""
    return np.column_stack([np.linalg.norm(scaled - centroid, axis=1) for centroid in centroids])


def _nearest(distances: Numbers, count: int) -> Flags:
    flags = np.zeros(len(distances), dtype=bool)
    flags[np.argsort(distances, kind="stable")[:count]] = True
    return flags


def _silhouette(scaled: Numbers, labels: npt.NDArray[np.int64], seed: int) -> float:
    if len(np.unique(labels)) < 2:
        return 0.0
    return float(silhouette_score(scaled, labels, sample_size=min(SILHOUETTE_ROWS, len(scaled)), random_state=seed))


def _spread(centred: Numbers) -> Numbers:
    """A standard deviation that anomalies do not change much."""
    spread: Numbers = np.median(np.abs(centred), axis=0) * 1.4826
    return spread

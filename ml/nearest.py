"""Which centroid a point is nearest to, as scoring computes it: KMeans itself has a faster way that rounds more."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ml.features import Numbers


class Nearest(NamedTuple):
    clusters: npt.NDArray[np.int64]
    distances: Numbers


def nearest(scaled: Numbers, centroids: Sequence[Numbers]) -> Nearest:
    """Of centroids equally near, the first. Needs the memory of a few numbers a point, however many centroids there
    are."""
    found = Nearest(np.zeros(len(scaled), dtype=np.int64), np.full(len(scaled), np.inf))
    for number, centroid in enumerate(centroids):
        distances = np.linalg.norm(scaled - centroid, axis=1)
        nearer = distances < found.distances
        found.clusters[nearer] = number
        found.distances[nearer] = distances[nearer]
    return found

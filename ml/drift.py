"""How far today's clicks are from those that a model was trained on, as population stability indexes.

An index is 0 for equal shares. By custom up to 0.1 is no change, and from 0.25 on a large one; where it is of a share
as small as that of flagged clicks, it stays small however that changes: 0.02 for three times as many as one in a
hundred, 0.05 for none.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ml.evaluation import verdicts
from ml.features import CURRENT, Numbers
from ml.model import Histogram, Model

BINS = 10
# A bin that nobody is in would make the index infinite.
LEAST_SHARE = 1e-4
FLAGGED = "share_flagged"


@dataclass(frozen=True)
class Drift:
    indexes: dict[str, float]
    """Of each feature, and of the share of clicks that is flagged."""
    share_flagged: float
    clicks: int

    def beyond(self, most: float, most_of_flagged: float) -> list[str]:
        """Which of the indexes are larger than what is taken for the same."""
        limits = {name: most_of_flagged if name == FLAGGED else most for name in self.indexes}
        return [name for name, index in self.indexes.items() if index > limits[name]]


def drift(model: Model, page_loading_seconds: Numbers) -> Drift:
    features = CURRENT.of(page_loading_seconds)
    indexes = {
        name: stability_index(usual.shares, _shares(column, usual.edges))
        for name, column, usual in zip(model.features, features.T, model.histograms, strict=True)
    }
    flagged = float(verdicts(model, features).anomalous.mean())
    usual_share = model.metrics.get(FLAGGED, model.training.contamination)
    indexes[FLAGGED] = stability_index([usual_share, 1 - usual_share], [flagged, 1 - flagged])
    return Drift(indexes, flagged, len(features))


def histogram(values: Numbers) -> Histogram:
    """Of tenths; of fewer bins where many values are equal."""
    edges = np.unique(np.quantile(values, np.arange(1, BINS) / BINS)).tolist()
    return Histogram(edges=edges, shares=_shares(values, edges))


def stability_index(expected: Sequence[float], found: Sequence[float]) -> float:
    before, now = (np.maximum(np.array(shares), LEAST_SHARE) for shares in (expected, found))
    return float(((now - before) * np.log(now / before)).sum())


def _shares(values: Numbers, edges: list[float]) -> list[float]:
    counts = np.bincount(np.searchsorted(edges, values), minlength=len(edges) + 1)
    return [float(count) for count in counts / len(values)]

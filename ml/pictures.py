"""Pictures of a model, for people: where its clusters and thresholds are, and how versions compare."""

import io
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from ml.evaluation import verdicts
from ml.features import CURRENT, LEAST_SECONDS, Numbers
from ml.model import Model

BINS = 120
MOST_TICKS = 12
NORMAL, STRANGE, CENTROID = "#4c78a8", "#e45756", "#54a24b"


def distribution(model: Model, page_loading_seconds: Numbers) -> bytes:
    """A PNG of page load times on a log scale: normal and anomalous ones, the centroids, and the ranges within the
    thresholds."""
    features = CURRENT.of(page_loading_seconds)
    flagged = verdicts(model, features).anomalous
    seconds = page_loading_seconds + LEAST_SECONDS
    edges = np.geomspace(seconds.min(), max(seconds.max(), seconds.min() * 1.01), BINS)
    figure = Figure(figsize=(8, 3.5), layout="constrained")
    axes = figure.subplots()
    for chosen, colour, label in ((~flagged, NORMAL, "normal"), (flagged, STRANGE, "anomalous")):
        axes.hist(seconds[chosen], edges.tolist(), color=colour, label=f"{label} ({chosen.mean():.2%})")
    for number, cluster in enumerate(model.clusters):
        middle, reach = (value * model.deviations[0] for value in (cluster.centroid[0], cluster.threshold))
        low, at, high = np.exp(model.means[0] + middle + np.array([-reach, 0.0, reach]))
        axes.axvline(at, color=CENTROID, linestyle="--", label="centroid" if not number else None)
        axes.axvspan(low, high, color=CENTROID, alpha=0.12, label="within its threshold" if not number else None)
    axes.set(xscale="log", yscale="log", xlabel="page load time in seconds", ylabel="clicks", title=model.version)
    axes.set_xlim(edges[0], edges[-1])
    axes.legend(fontsize="small")
    return _png(figure)


def over_versions(metrics: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> bytes:
    """A PNG with a panel for each of these metrics, from the oldest version to the newest."""
    versions = list(metrics)[-MOST_TICKS:]
    figure = Figure(figsize=(8, 1.6 * len(names)), layout="constrained")
    panels = figure.subplots(len(names), 1, sharex=True, squeeze=False)[:, 0]
    for axes, name in zip(panels, names, strict=True):
        axes.plot(versions, [metrics[version].get(name, np.nan) for version in versions], marker="o", color=NORMAL)
        axes.set_ylabel(name.replace("_", " "), fontsize="small")
        axes.grid(alpha=0.3)
    panels[-1].tick_params(axis="x", labelrotation=30, labelsize="small")
    return _png(figure)


def _png(figure: Figure) -> bytes:
    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=90)
    return drawn.getvalue()

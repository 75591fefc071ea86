"""How a model does on clicks that it was not trained on, and whether it may take the place of the present one."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ml.features import CURRENT, Flags, Numbers
from ml.model import Model
from ml.nearest import nearest
from ml.sample import Sample, TooFewRows

SPOTS = 100_000
LEAST_ANOMALIES = 20
"""With fewer known anomalies chance decides about precision and recall."""
# What two equally good models differ by that were trained on other clicks of the same kind.
WORSE_RANGE, WORSE_F1 = 0.05, 0.02


class Verdicts(NamedTuple):
    """Of each click, as `judge` finds them one by one."""

    clusters: npt.NDArray[np.int64]
    distances: Numbers
    thresholds: Numbers

    @property
    def anomalous(self) -> Flags:
        return self.distances > self.thresholds

    @property
    def strangeness(self) -> Numbers:
        """1 at the threshold."""
        return self.distances / self.thresholds


@dataclass(frozen=True)
class Evaluation:
    """On held-out clicks."""

    rows: int
    share_flagged: float
    normal_range: float
    """Where the thresholds are moved, all by the same factor, until as many clicks are flagged as are taken for
    anomalous: the part of the features' range that then counts as normal. The less of it, the better the model tells
    where clicks are from where they are not."""
    anomalies: int = 0
    """How many of those clicks of which the truth is known are anomalous."""
    precision: float | None = None
    recall: float | None = None

    @property
    def f1(self) -> float | None:
        """None where too few anomalies are known."""
        if self.anomalies < LEAST_ANOMALIES:
            return None
        precision, recall = self.precision or 0.0, self.recall or 0.0
        return 2 * precision * recall / (precision + recall) if recall else 0.0


class Gate(NamedTuple):
    opens: bool
    reason: str


@dataclass(frozen=True)
class Comparison:
    new: Evaluation
    present: Evaluation | None
    gate: Gate


def verdicts(model: Model, features: Numbers) -> Verdicts:
    scaled = (features - np.array(model.means)) / np.array(model.deviations)
    found = nearest(scaled, [np.array(cluster.centroid) for cluster in model.clusters])
    thresholds = np.array([cluster.threshold for cluster in model.clusters])
    return Verdicts(found.clusters, found.distances, thresholds[found.clusters])


def evaluate(
    model: Model, page_loading_seconds: Numbers, contamination: float, truth: tuple[Flags, Flags] | None = None
) -> Evaluation:
    """`truth` tells of which clicks it is known whether they are anomalous, and which of these are."""
    features = CURRENT.of(page_loading_seconds)
    found = verdicts(model, features)
    factor = np.quantile(found.strangeness, 1 - contamination)
    low, high = features.min(axis=0), features.max(axis=0)
    spots = low + (high - low) * np.random.default_rng(1).random((SPOTS, features.shape[1]))
    blind = Evaluation(
        rows=len(features),
        share_flagged=float(found.anomalous.mean()),
        normal_range=float((verdicts(model, spots).strangeness <= factor).mean()),
    )
    return _against(blind, found.anomalous, *truth) if truth else blind


def compare(new: Model, present: Model | None, sample: Sample, truth: tuple[Flags, Flags] | None = None) -> Comparison:
    """Both on what the sample holds out, and by the share of clicks that the present one takes for anomalous: a new one
    that takes another share for it is for a person to promote. `truth` is of all clicks of the sample."""
    held_out, contamination = sample.held_out, (present or new).training.contamination
    if not held_out.any():
        raise TooFewRows("The sample holds out no click to judge the model by: draw a larger one.")
    of_these = (truth[0][held_out], truth[1][held_out]) if truth else None
    found = [
        evaluate(model, sample.page_loading_seconds[held_out], contamination, of_these) if model else None
        for model in (new, present)
    ]
    assert found[0] is not None
    return Comparison(found[0], found[1], gate(found[0], found[1], contamination))


def gate(new: Evaluation, present: Evaluation | None, contamination: float) -> Gate:
    """Whether a new model may become current: where it does no worse than the present one on the same clicks. Known
    anomalies decide where there are enough; else how narrow its normal range is, and how many clicks it flags."""
    if present is None:
        return Gate(True, "there is no model yet that could be used")
    if new.f1 is not None and present.f1 is not None:
        told = f"its F1 is {new.f1:.3f} with {new.anomalies:,} known anomalies, the present one's {present.f1:.3f}"
        return Gate(new.f1 >= present.f1 - WORSE_F1, told)
    off, present_off = (abs(each.share_flagged - contamination) for each in (new, present))
    if off > max(present_off, contamination / 2):
        told = f"it flags {new.share_flagged:.2%} of clicks where {contamination:.2%} are taken for anomalous"
        return Gate(False, f"{told}; the present one flags {present.share_flagged:.2%}")
    told = f"its normal range is {new.normal_range:.1%} of the features' range, the present one's "
    return Gate(new.normal_range <= present.normal_range * (1 + WORSE_RANGE), f"{told}{present.normal_range:.1%}")


def _against(blind: Evaluation, flagged: Flags, known: Flags, anomalous: Flags) -> Evaluation:
    """With precision and recall over the clicks of which the truth is known."""
    hits = int((flagged & known & anomalous).sum())
    raised, there = int((flagged & known).sum()), int((known & anomalous).sum())
    return replace(
        blind,
        anomalies=there,
        precision=hits / raised if raised else None,
        recall=hits / there if there else None,
    )

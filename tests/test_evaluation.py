"""A model is judged on clicks that it has not seen, and takes the place of another only where it does no worse."""

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from ml.evaluation import Evaluation, compare, evaluate, gate, verdicts
from ml.features import CURRENT
from ml.model import judge
from ml.sample import COLUMNS, Drawn, Sample, TooFewRows
from ml.training import train_on
from tests.test_training import SOURCE, plan, traffic

DRAWN = Drawn("silver/clicks", 3, "2026-01-01", "2026-01-07", 20_000, 20_000, 1)


def sample(seconds: np.ndarray, drawn: Drawn = DRAWN) -> Sample:
    count = len(seconds)
    hashes = np.random.default_rng(1).integers(-(2**63), 2**63, count, dtype=np.int64)
    numbers = np.arange(count)
    columns = [hashes, numbers.astype(np.int32) % 4, numbers, 1000 + numbers, seconds]
    return Sample.of(pa.table(columns, list(COLUMNS)), drawn)


def test_verdicts_are_those_of_the_reference() -> None:
    model = train_on(sample(traffic(2_000, 1)[0]), plan(clusters=(3,)))
    features = CURRENT.of(traffic(500, 2)[0])
    found = verdicts(model, features)
    right = [judge(model, row) for row in features.tolist()]
    assert found.clusters.tolist() == [each.cluster for each in right]
    assert found.distances.tolist() == pytest.approx([each.distance for each in right])
    assert found.anomalous.tolist() == [each.anomalous for each in right]


def test_precision_and_recall_are_of_those_of_which_the_truth_is_known() -> None:
    model = train_on(sample(traffic(20_000, 1)[0]), plan())
    seconds, anomalous = traffic(20_000, 2)
    known = np.arange(len(seconds)) % 2 == 0
    found = evaluate(model, seconds, 0.01, (known, anomalous))
    flagged = verdicts(model, CURRENT.of(seconds)).anomalous
    assert found.anomalies == int((known & anomalous).sum()) and found.rows == 20_000
    assert found.precision == (flagged & known & anomalous).sum() / (flagged & known).sum() >= 0.9
    assert found.recall == (flagged & known & anomalous).sum() / (known & anomalous).sum() >= 0.9
    assert evaluate(model, seconds, 0.01).f1 is None


def test_a_model_of_other_clicks_is_worse_without_any_truth() -> None:
    today = sample(traffic(20_000, 2)[0])
    good = train_on(sample(traffic(20_000, 1)[0]), plan())
    again = train_on(sample(traffic(20_000, 3)[0]), plan())
    slower = train_on(sample(traffic(20_000, 1)[0] * 4), plan())
    assert compare(again, good, today).gate.opens, "of the same kind of clicks"
    assert not compare(slower, good, today).gate.opens
    assert compare(good, slower, today).gate.opens, "clicks are not any more as the present one knew them"
    coarse = good.model_copy(update={"clusters": [good.clusters[0].model_copy(update={"centroid": [1.5]})]})
    assert not compare(coarse, good, today).gate.opens


def test_a_model_is_not_judged_by_what_it_takes_for_anomalous_itself() -> None:
    today = sample(traffic(20_000, 2)[0])
    good = train_on(sample(traffic(20_000, 1)[0]), plan())
    for count in (1, 2, 3):
        eager = train_on(sample(traffic(20_000, 1)[0]), plan(clusters=(count,), contamination=0.4))
        found = compare(eager, good, today)
        assert not found.gate.opens and "it flags" in found.gate.reason


def test_the_first_model_is_taken() -> None:
    found = compare(train_on(sample(traffic(2_000, 1)[0]), plan()), None, sample(traffic(2_000, 2)[0]))
    assert found.gate.opens and found.present is None


WELL = Evaluation(1000, 0.01, 0.4)
KNOWN = replace(WELL, anomalies=100, precision=0.9, recall=0.9)


@pytest.mark.parametrize(
    ("new", "present", "opens", "because"),
    [
        (WELL, WELL, True, "normal range"),
        (replace(WELL, normal_range=0.41), WELL, True, "normal range"),
        (replace(WELL, normal_range=0.5), WELL, False, "its normal range is 50.0%"),
        (replace(WELL, share_flagged=0.03), WELL, False, "it flags 3.00% of clicks where 1.00%"),
        (replace(WELL, share_flagged=0.0), WELL, False, "it flags 0.00%"),
        (replace(WELL, share_flagged=0.03), replace(WELL, share_flagged=0.2), True, "normal range"),
        (KNOWN, KNOWN, True, "F1 is 0.900 with 100 known anomalies"),
        (replace(KNOWN, recall=0.5), KNOWN, False, "F1"),
        (replace(KNOWN, normal_range=0.9), KNOWN, True, "F1"),
        (replace(KNOWN, anomalies=5, recall=0.1), replace(KNOWN, anomalies=5), True, "normal range"),
        (replace(KNOWN, precision=None, recall=0.0), KNOWN, False, "F1 is 0.000"),
    ],
)
def test_the_gate(new: Evaluation, present: Evaluation, opens: bool, because: str) -> None:
    found = gate(new, present, 0.01)
    assert found.opens == opens and because in found.reason


def test_what_is_held_out_is_not_trained_on() -> None:
    drawn = sample(traffic(5_000, 1)[0])
    assert 800 < drawn.held_out.sum() < 1200
    assert len(drawn.for_training) + drawn.held_out.sum() == 5_000
    assert train_on(drawn, plan()).training.rows == len(drawn.for_training)
    nothing_held_out = replace(drawn, hashes=np.ones_like(drawn.hashes))
    with pytest.raises(TooFewRows, match="holds out no click"):
        compare(train_on(drawn, plan()), None, nothing_held_out)
    assert SOURCE.table == train_on(drawn, plan()).training.table

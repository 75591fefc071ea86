"""Drift: none where clicks are as they were, a lot where pages load otherwise or more of them are flagged."""

import numpy as np
import pytest

from ml.drift import FLAGGED, drift, histogram, stability_index
from ml.training import train
from tests.test_training import SOURCE, plan, traffic


def test_no_drift_of_the_same_kind_of_clicks() -> None:
    model = train(traffic(20_000, 1)[0], plan(), SOURCE)
    found = drift(model, traffic(5_000, 2)[0])
    assert max(found.indexes.values()) < 0.02 and found.clicks == 5_000 and not found.beyond(0.2, 0.03)
    assert set(found.indexes) == {"log_page_loading_seconds", "share_flagged"}


def test_slower_pages_are_drift() -> None:
    model = train(traffic(20_000, 1)[0], plan(), SOURCE)
    found = drift(model, traffic(5_000, 2)[0] * 2)
    assert found.indexes["log_page_loading_seconds"] > 0.5 and found.beyond(0.2, 9.0) == ["log_page_loading_seconds"]


@pytest.mark.parametrize(("anomalies", "beyond"), [(0, True), (50, False), (250, True)])
def test_another_share_of_anomalies_is_drift(anomalies: int, beyond: bool) -> None:
    model = train(traffic(20_000, 1)[0], plan(), SOURCE)
    seconds, anomalous = traffic(6_000, 2)
    seconds = np.concatenate([seconds[~anomalous][: 5_000 - anomalies], np.full(anomalies, 200.0)])
    found = drift(model, seconds)
    assert (FLAGGED in found.beyond(0.2, 0.03)) == beyond
    assert found.share_flagged == pytest.approx(anomalies / 5_000, abs=0.002)


def test_times_that_are_whole_seconds_are_no_drift_from_themselves() -> None:
    seconds = np.random.default_rng(1).choice([1.0, 2.0, 3.0], 5_000, p=[0.6, 0.3, 0.1])
    model = train(seconds, plan(clusters=(3,), contamination=0.0), SOURCE)
    assert max(drift(model, seconds).indexes.values()) < 1e-6
    assert histogram(np.ones(100)).shares == [1.0, 0.0]


def test_the_index_of_known_shares() -> None:
    assert stability_index([0.5, 0.5], [0.5, 0.5]) == 0
    assert stability_index([0.5, 0.5], [0.75, 0.25]) == pytest.approx(0.25 * np.log(1.5) - 0.25 * np.log(0.5))
    assert np.isfinite(stability_index([1.0, 0.0], [0.0, 1.0]))

"""The truth of clicks is that of the ledger, found by place and time."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from hub.ledger import LedgerWriter
from hub.publisher import Receipt
from hub.traffic.clicks import Clicks
from streaming.ground_truth import known_anomalies
from tests.test_evaluation import sample


def test_clicks_of_the_ledger_are_known(tmp_path: Path) -> None:
    planned = list(Clicks(2_000, random.Random(1)).due(1.0, datetime(2026, 1, 1, tzinfo=UTC)))
    with LedgerWriter(tmp_path / "ledger", datetime(2026, 1, 1, tzinfo=UTC)) as ledger:
        for number, each in enumerate(planned[:1_000]):
            receipt = Receipt("clicks", number % 4, number, 1000 + number)
            ledger.add(number, receipt, each.record.body, each.kind, each.about)
    drawn = sample(np.ones(2_000))
    known, anomalous = known_anomalies(tmp_path / "ledger", drawn)
    assert (known == (drawn.sequence_numbers < 1_000)).all()
    right = {number for number, each in enumerate(planned[:1_000]) if each.about["anomaly"]}
    assert set(drawn.sequence_numbers[anomalous].tolist()) == right and right
    made_anew = replace(drawn, enqueued_ms=drawn.enqueued_ms + 5)
    assert not known_anomalies(tmp_path / "ledger", made_anew)[0].any(), "a hub made anew has other clicks there"

"""What the sender of clicks knew about them: which were made anomalous."""

from pathlib import Path

import numpy as np

from hub import CLICKS
from hub.ledger import LedgerError, read_ledger
from ml.features import Flags
from ml.sample import Sample

__all__ = ["LedgerError", "known_anomalies"]


def known_anomalies(ledger: Path, sample: Sample) -> tuple[Flags, Flags]:
    """For each click of the sample whether the ledger has it, and whether it was made anomalous."""
    told = {
        (entry.partition, entry.sequence_number, entry.enqueued_ms): bool(entry.about["anomaly"])
        for entry in read_ledger(ledger).entries
        if entry.hub == CLICKS and "anomaly" in entry.about
    }
    places = (each.tolist() for each in (sample.partitions, sample.sequence_numbers, sample.enqueued_ms))
    found = [told.get(place) for place in zip(*places, strict=True)]
    return np.array([each is not None for each in found]), np.array([bool(each) for each in found])

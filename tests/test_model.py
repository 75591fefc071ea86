"""The model file: what is written is read again, and what is no model is refused by name."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ml.model import LARGEST_FILE, Model, ModelRefused, Verdict, judge

FIELDS: dict[str, Any] = {
    "format": 1,
    "version": "m-1",
    "feature_schema": 1,
    "features": ["log_page_loading_seconds"],
    "means": [0.5],
    "deviations": [2.0],
    "histograms": [{"edges": [-0.5, 0.5], "shares": [0.3, 0.4, 0.3]}],
    "clusters": [
        {"centroid": [-1.0], "threshold": 0.5, "share": 0.6},
        {"centroid": [1.0], "threshold": 1.5, "share": 0.4},
    ],
    "training": {
        "table": "silver/clicks",
        "table_version": 7,
        "rows": 1000,
        "since": "2026-01-01",
        "until": "2026-01-07",
        "seed": 1,
        "sample_seed": 1,
        "sample_rows": 1250,
        "contamination": 0.01,
        "clusters_tried": [1, 2],
    },
    "metrics": {"silhouette": 0.5},
}


def model(**changes: Any) -> Model:
    return Model.parse(json.dumps({**FIELDS, **changes}).encode(), "test")


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    file.write_text(model().to_json())
    assert Model.read(file) == model()


def changed(**changes: Any) -> bytes:
    return json.dumps({**FIELDS, **changes}).encode()


TEXT = json.dumps(FIELDS).encode()
REFUSED: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "it is no JSON"),
    "cut short": (TEXT[: len(TEXT) // 2], "it is no JSON"),
    "not UTF-8": (b"\xff\xfe" + TEXT, "it is no JSON"),
    "a pickle": (b"\x80\x04\x95\x10", "it is no JSON"),
    "deep": (b"[" * 100_000, "it is no JSON"),
    "no object": (b"[1]", "its format is not 1"),
    "no format": (json.dumps({k: v for k, v in FIELDS.items() if k != "format"}).encode(), "its format is not 1"),
    "a newer format": (changed(format=2), "written by a newer Tidewatch"),
    "NaN": (changed(means=[math.nan]), "NaN is no number"),
    "infinity": (changed(means=[math.inf]), "Infinity is no number"),
    "beyond a double": (TEXT.replace(b"[0.5]", b"[1e999]"), "means.0: Input should be a finite number"),
    "text for a number": (changed(means=["0.5"]), "means.0: Input should be a valid number"),
    "a path for a version": (changed(version="../../etc"), "version: String should match"),
    "no cluster": (changed(clusters=[]), "clusters: List should have at least 1 item"),
    "many clusters": (changed(clusters=FIELDS["clusters"] * 40), "clusters: List should have at most 64 items"),
    "another shape": (changed(means=[0.5, 1.0]), "means has 2 entries for 1 features"),
    "a centroid of another shape": (
        changed(clusters=[{"centroid": [1.0, 2.0], "threshold": 1.0, "share": 1.0}]),
        "cluster 0 has 2 numbers for 1 features",
    ),
    "edges out of order": (
        changed(histograms=[{"edges": [1.0, 1.0], "shares": [0.3, 0.3, 0.4]}]),
        "edges of a histogram are not in their order",
    ),
    "too few shares": (
        changed(histograms=[{"edges": [1.0, 2.0], "shares": [0.3, 0.7]}]),
        "a histogram has 2 shares for 2 edges",
    ),
    "no threshold": (changed(clusters=[{"centroid": [1.0], "share": 1.0}]), "clusters.0.threshold: Field required"),
    "a threshold of 0": (
        changed(clusters=[{"centroid": [1.0], "threshold": 0.0, "share": 1.0}]),
        "clusters.0.threshold: Input should be greater than 0",
    ),
    "a deviation of 0": (changed(deviations=[0.0]), "deviations.0: Input should be greater than 0"),
    "more than it knows": (changed(code="import os"), "code: Extra inputs are not permitted"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_model_is_refused_by_name(case: str, tmp_path: Path) -> None:
    text, why = REFUSED[case]
    file = tmp_path / "broken.json"
    file.write_bytes(text)
    with pytest.raises(ModelRefused) as refused:
        Model.read(file)
    assert str(file) in str(refused.value) and why in str(refused.value)


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    file = tmp_path / "large.json"
    file.write_bytes(b" " * (LARGEST_FILE + 1))
    with pytest.raises(ModelRefused, match="larger than"):
        Model.read(file)
    with pytest.raises(ModelRefused, match="No such file"):
        Model.read(tmp_path / "none.json")


def test_a_click_belongs_to_the_nearest_centroid() -> None:
    assert judge(model(), [0.5 - 2 * 1.75]) == Verdict(0, 0.75, 0.5)
    assert judge(model(), [0.5 - 2 * 1.75]).anomalous
    assert judge(model(), [0.5]) == Verdict(0, 1.0, 0.5), "of two that are equally near, the first"
    assert not judge(model(), [0.5 + 2 * 2.4]).anomalous

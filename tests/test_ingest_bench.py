"""The ingest benchmark keeps to its own folder."""

from pathlib import Path

import pytest

from bench.ingest import _settings


def test_it_touches_nothing_of_the_users(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TIDEWATCH_LAKE", "/data/lake")
    monkeypatch.setenv("TIDEWATCH_CHECKPOINTS", "/data/checkpoints")
    monkeypatch.setenv("TIDEWATCH_HUB_KAFKA_SERVERS", "elsewhere:9092")
    settings = _settings(tmp_path)
    assert Path(settings.lake_root).is_relative_to(tmp_path)
    assert Path(settings.checkpoint_root).is_relative_to(tmp_path)
    assert settings.hub.embedded

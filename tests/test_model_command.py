"""`tidewatch model`: lists, promotes and rolls back, and says what can't be done."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from ml.registry import Registry
from orchestration.command import tidewatch
from tests.test_model import model
from tests.test_registry import NOW


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry:
    monkeypatch.setenv("TIDEWATCH_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return Registry(tmp_path / "models")


def call(*arguments: str) -> Result:
    return CliRunner().invoke(tidewatch, ["model", *arguments])


def test_models_are_listed_promoted_and_rolled_back(registry: Registry) -> None:
    assert "There is no model yet" in call("list").output
    for version in ("m-1", "m-2"):
        registry.add(model(version=version), "run 1", "the daily schedule", NOW)
    registry.note_evaluation("m-1", {"share_flagged": 0.0125})
    assert call("promote", "m-1", "--why", "first").exit_code == 0
    assert call("promote", "m-2", "--why", "better").exit_code == 0
    back = call("roll-back", "--why", "it flags too much")
    assert back.exit_code == 0 and "m-1 is current" in back.output
    lines = call("list").output.splitlines()
    assert lines[0].startswith("* m-1  flags 1.25%, made by run 1: the daily schedule")
    assert "it flags too much" in lines[2] and lines[3].startswith("  m-2  not evaluated")
    told = json.loads(call("list", "--json").output)
    assert [each["current"] for each in told] == [True, False]
    assert [each["why"] for each in told[0]["promotions"]] == ["first", "it flags too much"]


def test_what_can_not_be_done_is_said(registry: Registry) -> None:
    unknown, nothing = call("promote", "m-9", "--why", "x"), call("roll-back", "--why", "x")
    assert unknown.exit_code == 1 and "There is no model m-9" in unknown.output
    assert nothing.exit_code == 1 and "nothing to roll back to" in nothing.output
    assert call("promote", "m-1").exit_code == 2, "why is asked for"

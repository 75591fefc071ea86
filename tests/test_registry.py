"""The registry: versions never change, one is current, and it can be rolled back."""

import json
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from ml.model import ModelRefused
from ml.registry import Registry, RegistryError
from tests.test_model import model

NOW = datetime(2026, 3, 1, tzinfo=UTC)


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    registry = Registry(tmp_path / "models")
    for number in range(1, 4):
        registry.add(model(version=f"m-{number}"), "anna", f"try {number}", NOW + timedelta(minutes=number))
    return registry


def test_an_empty_one_has_nothing(tmp_path: Path) -> None:
    empty = Registry(tmp_path / "none")
    assert empty.versions() == [] and empty.current() is None and empty.promotions() == []
    with pytest.raises(RegistryError, match=r"no model m-1\. The newest ones: none"):
        empty.model("m-1")
    with pytest.raises(RegistryError, match="nothing to roll back to"):
        empty.roll_back("anna", "", NOW)


def test_versions_are_kept_with_who_and_why(registry: Registry) -> None:
    told = [(record.version, record.by, record.why) for record in registry.versions()]
    assert told == [("m-1", "anna", "try 1"), ("m-2", "anna", "try 2"), ("m-3", "anna", "try 3")]
    assert registry.model("m-2") == model(version="m-2")
    with pytest.raises(RegistryError, match="never written again"):
        registry.add(model(version="m-2", metrics={}), "bert", "better", NOW)
    assert registry.model("m-2") == model(version="m-2")


def test_promoted_and_rolled_back(registry: Registry) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    registry.promote("m-3", "bert", "better", NOW)
    registry.promote("m-3", "bert", "again", NOW)
    current = registry.current()
    assert current is not None and (current.version, current.by, current.why) == ("m-3", "bert", "again")
    assert registry.roll_back("carl", "flags too much", NOW).version == "m-1"
    current = registry.current()
    assert current is not None and (current.version, current.why) == ("m-1", "flags too much")
    assert registry.roll_back("carl", "no", NOW).version == "m-3", "back to what was current before the roll-back"
    assert [record.version for record in registry.promotions()] == ["m-1", "m-3", "m-3", "m-1", "m-3"]


def test_what_can_not_be_read_is_not_promoted(registry: Registry, tmp_path: Path) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    file = tmp_path / "models" / "versions" / "m-2" / "model.json"
    file.write_text(file.read_text()[:-10])
    with pytest.raises(ModelRefused, match="m-2"):
        registry.promote("m-2", "anna", "", NOW)
    (tmp_path / "models" / "versions" / "m-3" / "model.json").write_text(model(version="m-1").to_json())
    with pytest.raises(ModelRefused, match="says that it is m-1"):
        registry.promote("m-3", "anna", "", NOW)
    with pytest.raises(RegistryError, match=r"There is no model \.\./m-1"):
        registry.promote("../m-1", "anna", "", NOW)
    current = registry.current()
    assert current is not None and current.version == "m-1"
    assert [record.version for record in registry.promotions()] == ["m-1"]


def test_a_damaged_current_is_told(registry: Registry, tmp_path: Path) -> None:
    (tmp_path / "models" / "current.json").write_text("{")
    with pytest.raises(RegistryError, match="promote a version anew"):
        registry.current()
    registry.promote("m-1", "anna", "anew", NOW)
    assert registry.current() is not None


PROMOTE = """
import sys
from datetime import UTC, datetime
from pathlib import Path
from ml.registry import Registry
for number in range(30):
    Registry(Path(sys.argv[1])).promote(f"m-{number % 3 + 1}", sys.argv[2], "race", datetime.now(UTC))
"""


def test_readers_never_see_a_part_while_others_promote(registry: Registry, tmp_path: Path) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    folder = str(tmp_path / "models")
    over = threading.Event()
    seen: list[str] = []

    def look() -> None:
        while not over.is_set():
            current = registry.current()
            assert current is not None
            seen.append(registry.model(current.version).version)

    reader = threading.Thread(target=look)
    reader.start()
    writers = [subprocess.Popen([sys.executable, "-c", PROMOTE, folder, name]) for name in ("bert", "carl")]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    over.set()
    reader.join()
    assert len(registry.promotions()) == 61 and seen
    last = json.loads((tmp_path / "models" / "current.json").read_text())
    assert last == vars(registry.promotions()[-1])


def test_a_line_that_was_cut_short_and_a_damaged_record_stop_nobody(registry: Registry, tmp_path: Path) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    with (tmp_path / "models" / "promotions.jsonl").open("a") as opened:
        opened.write('{"version": "m-2", "by')
    registry.promote("m-3", "bert", "better", NOW)
    assert [record.version for record in registry.promotions()] == ["m-1", "m-3"]
    assert registry.roll_back("carl", "worse", NOW).version == "m-1"
    (tmp_path / "models" / "versions" / "m-2" / "record.json").write_text("{")
    damaged = next(record for record in registry.versions() if record.version == "m-2")
    assert "can't be read" in damaged.why


def test_a_promotion_that_a_person_made_meanwhile_stays(registry: Registry) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    present = registry.current()
    registry.promote("m-2", "bert", "I know better", NOW)
    with pytest.raises(RegistryError, match=r"meanwhile bert made m-2 current \(I know better\)"):
        registry.promote_after(present, "m-3", "a run", "it does no worse", NOW)
    assert registry.promote_after(registry.current(), "m-3", "a run", "it does no worse", NOW).version == "m-3"


def test_a_promotion_that_was_cut_off_before_it_was_noted_counts(registry: Registry, tmp_path: Path) -> None:
    registry.promote("m-1", "anna", "first", NOW)
    registry.promote("m-2", "bert", "better", NOW)
    notes = tmp_path / "models" / "promotions.jsonl"
    notes.write_text(notes.read_text().splitlines()[0] + "\n")
    assert registry.roll_back("carl", "worse", NOW).version == "m-1"


def test_what_an_evaluation_found_is_kept_beside_the_model(registry: Registry) -> None:
    assert registry.evaluation("m-1") is None
    registry.note_evaluation("m-1", {"share_flagged": 0.25, "reason": "it is the first"})
    registry.note_evaluation("m-1", {"share_flagged": 0.5, "reason": "it is the first", "precision": None})
    assert registry.metrics()["m-1"] == {"silhouette": 0.5, "share_flagged": 0.5}
    with pytest.raises(RegistryError, match="no model m-9"):
        registry.note_evaluation("m-9", {})

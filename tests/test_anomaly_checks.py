"""Whether the current model judges is told from the registry alone."""

from pathlib import Path

from assets.anomaly_checks import current_model_judges
from ml.registry import MODEL_FILE, Registry
from settings import Settings
from tests.test_model import model
from tests.test_registry import NOW


def test_told_whether_the_current_model_judges(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    registry = Registry(settings.model_folder)
    none = current_model_judges(settings)
    assert not none.passed and "No model was promoted yet" in (none.description or "")
    for version in ("m-1", "m-2"):
        registry.add(model(version=version), "anna", "to try", NOW)
        registry.promote(version, "anna", "better", NOW)
    well = current_model_judges(settings)
    assert well.passed and well.description == "Clicks are judged by m-2."
    (settings.model_folder / "versions" / "m-2" / MODEL_FILE).write_text("{")
    refused = current_model_judges(settings)
    assert not refused.passed
    told = refused.description or ""
    assert "m-2" in told and "is refused" in told and told.endswith("Clicks are judged by m-1.")

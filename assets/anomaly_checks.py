"""What is checked of the scores of page load times: that the current model is the one that judges."""

from dagster import AssetCheckResult, AssetChecksDefinition, AssetCheckSeverity, asset_check

from assets.streams import table_key
from lake.anomalies import PAGE_LOAD_ANOMALIES
from ml.in_use import model_in_use
from ml.registry import Registry
from settings import Settings, load_settings


def anomaly_checks() -> list[AssetChecksDefinition]:
    @asset_check(
        asset=table_key(PAGE_LOAD_ANOMALIES.name),
        name="current_model_judges",
        description="The current model can be used, so that clicks are judged by it and by no earlier one",
    )
    def check() -> AssetCheckResult:
        return current_model_judges(load_settings())

    return [check]


def current_model_judges(settings: Settings) -> AssetCheckResult:
    found = model_in_use(Registry(settings.model_folder))
    version = found.model.version if found.model else None
    if found.refusal is not None:
        goes_on = f"Clicks are judged by {version}" if version else "Clicks wait for one that can be used"
        told = f"{found.refusal} {goes_on}."
    elif version is None:
        told = "No model was promoted yet: clicks wait for the first."
    else:
        told = f"Clicks are judged by {version}."
    return AssetCheckResult(
        passed=found.refusal is None and version is not None,
        severity=AssetCheckSeverity.ERROR if found.refusal else AssetCheckSeverity.WARN,
        description=told,
        metadata={"model": version} if version else {},
    )

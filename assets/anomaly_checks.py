"""What is checked of the scores of page load times: that the current model judges, that it judges every click,
and that clicks are still like those that it was trained on."""

from datetime import UTC, datetime, timedelta

from dagster import (
    AssetCheckKey,
    AssetCheckResult,
    AssetChecksDefinition,
    AssetCheckSeverity,
    asset_check,
)

from assets.streams import running_query, table_key
from lake.anomalies import PAGE_LOAD_ANOMALIES
from lake.click_books import page_load_times, unjudged_clicks
from ml.drift import drift
from ml.in_use import model_in_use
from ml.registry import Registry
from settings import Settings, load_settings
from streaming.catalog import SILVER

TABLE = table_key(PAGE_LOAD_ANOMALIES.name)
RECENT = timedelta(hours=1)
FEWEST_CLICKS, MOST_CLICKS = 1_000, 200_000
DRIFT_CHECK = AssetCheckKey(TABLE, "clicks_as_trained_on")
DRIFT_OF = "model"


def anomaly_checks() -> list[AssetChecksDefinition]:
    @asset_check(
        asset=TABLE,
        name="current_model_judges",
        description="The current model can be used, so that clicks are judged by it and by no earlier one",
    )
    def judges() -> AssetCheckResult:
        return current_model_judges(load_settings())

    @asset_check(
        asset=TABLE,
        name=DRIFT_CHECK.name,
        description="Page load times of the last hour, and the share of them that is flagged, are like those that the "
        "model was trained on, by their population stability indexes",
    )
    def as_trained_on() -> AssetCheckResult:
        return clicks_as_trained_on(load_settings(), datetime.now(UTC))

    @asset_check(
        asset=TABLE,
        name="every_click_judged",
        description="Every click that the stream has read is judged, once, as soon as there is a model",
    )
    def every_click() -> AssetCheckResult:
        return every_click_judged(load_settings())

    return [judges, as_trained_on, every_click]


def clicks_as_trained_on(settings: Settings, now: datetime) -> AssetCheckResult:
    """Drift makes it fail; too little to tell by does not."""
    model = model_in_use(Registry(settings.model_folder)).model
    times = page_load_times(settings.lake_root, now - RECENT, MOST_CLICKS)
    if model is None or len(times) < FEWEST_CLICKS:
        missing = "there is no model yet" if model is None else f"the last hour has only {len(times):,} clicks"
        return AssetCheckResult(passed=True, description=f"nothing to tell by: {missing}")
    found = drift(model, times)
    told = ", ".join(f"{name} {index:.3f}" for name, index in found.indexes.items())
    drifted = found.beyond(settings.anomaly.most_drift, settings.anomaly.most_flagged_drift)
    cure = f". Too much is {' and '.join(drifted)}: the job retrain is asked for, and may be launched at any time."
    return AssetCheckResult(
        passed=not drifted,
        severity=AssetCheckSeverity.WARN,
        description=told + (cure if drifted else ""),
        metadata={
            DRIFT_OF: model.version,
            "clicks": found.clicks,
            "share flagged": found.share_flagged,
            **{f"index of {name}": index for name, index in found.indexes.items()},
        },
    )


def every_click_judged(settings: Settings) -> AssetCheckResult:
    """Clicks that wait for a first model, or for the stream to run, are no fault."""
    query = running_query(settings, SILVER, "page_load_anomalies")
    version = query.read_to.get("version") if query else None
    if version is None or model_in_use(Registry(settings.model_folder)).model is None:
        waits = "there is no model yet" if version is not None else "silver does not run, or has just started"
        return AssetCheckResult(passed=True, description=f"nothing to tell by: {waits}")
    found = unjudged_clicks(settings.lake_root, version)
    problems = [
        *(f"{count:,} clicks of {day} are not judged" for day, count in found.missing.items()),
        *(f"{count:,} scores of {day} are of no click, or there twice" for day, count in found.surplus.items()),
    ]
    cure = " Those of days that were put off or rebuilt are judged within minutes; the check stream_health says more."
    return AssetCheckResult(
        passed=not problems,
        severity=AssetCheckSeverity.WARN,
        description=f"{'; '.join(problems)}.{cure}" if problems else "all are",
    )


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

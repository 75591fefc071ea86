"""When the sensor asks for training: for a first model, for drift, and at most once in a set time."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from dagster import (
    AssetCheckEvaluation,
    DagsterEvent,
    DagsterEventType,
    DagsterInstance,
    RunRequest,
    SkipReason,
    job,
    op,
)
from dagster._core.definitions.asset_checks.asset_check_evaluation import AssetCheckEvaluationPlanned
from dagster._core.utils import make_new_run_id
from deltalake import write_deltalake

from assets.anomaly_checks import DRIFT_CHECK, clicks_as_trained_on
from assets.model import WHY
from lake.silver import clicks_table
from ml.registry import Registry
from ml.training import train
from orchestration.retrain_job import RETRAIN, training_needed
from settings import AnomalySettings, Settings
from tests.test_training import SOURCE, plan, traffic


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, anomaly=AnomalySettings(first_clicks=1_000))


def add_clicks(settings: Settings, seconds: np.ndarray, days_ago: int = 0) -> None:
    now = datetime.now(UTC) - timedelta(days=days_ago)
    rows = pa.table(
        {
            "page_loading_seconds": seconds,
            "processing_time": pa.array([now] * len(seconds), pa.timestamp("us", "UTC")),
            "date": pa.array([now.date()] * len(seconds)),
        }
    )
    path = clicks_table({}).path(settings.lake_root)
    write_deltalake(path, rows, mode="append", partition_by=["date"])


def promote(settings: Settings, version: str = "m-1") -> None:
    registry, now = Registry(settings.model_folder), datetime.now(UTC)
    registry.add(train(traffic(5_000, 1)[0], plan(version=version), SOURCE), "a test", "to see", now)
    registry.promote(version, "a test", "to see", now)


def look(instance: DagsterInstance, settings: Settings, hours: float = 0) -> RunRequest | SkipReason:
    return training_needed(instance, settings, datetime.now(UTC) + timedelta(hours=hours))


def run_once(instance: DagsterInstance) -> None:
    @op
    def nothing() -> None:
        pass

    @job(name=RETRAIN)
    def retrain() -> None:
        nothing()

    assert retrain.execute_in_process(instance=instance).success


def plan_check(instance: DagsterInstance) -> None:
    """As a run of the check that waits for its turn does."""
    planned = AssetCheckEvaluationPlanned(asset_key=DRIFT_CHECK.asset_key, check_name=DRIFT_CHECK.name)
    kind = DagsterEventType.ASSET_CHECK_EVALUATION_PLANNED
    event = DagsterEvent(kind.value, job_name="check_anomalies", event_specific_data=planned)
    instance.report_dagster_event(event, run_id=make_new_run_id())


def evaluate_drift(instance: DagsterInstance, settings: Settings) -> bool:
    """Reports what the check finds now, as its run does."""
    found = clicks_as_trained_on(settings, datetime.now(UTC))
    instance.report_runless_asset_event(
        AssetCheckEvaluation(
            asset_key=DRIFT_CHECK.asset_key,
            check_name=DRIFT_CHECK.name,
            passed=found.passed,
            description=found.description,
            metadata=found.metadata,
        )
    )
    return bool(found.passed)


def test_a_first_model_is_asked_for_once_there_are_enough_clicks(settings: Settings) -> None:
    with DagsterInstance.ephemeral() as instance:
        told = look(instance, settings)
        assert isinstance(told, SkipReason) and "1,000 are waited for" in str(told.skip_message)
        add_clicks(settings, traffic(1_000, 1)[0], days_ago=8)
        assert isinstance(look(instance, settings), SkipReason), "the job would not draw these"
        add_clicks(settings, traffic(1_000, 1)[0])
        asked = look(instance, settings)
        assert isinstance(asked, RunRequest) and "there is no model yet" in asked.tags[WHY]
        run_once(instance)
        assert isinstance(look(instance, settings), SkipReason), "it may still be at work, or have failed"
        later = look(instance, settings, hours=0.3)
        assert isinstance(later, RunRequest) and later.run_key != asked.run_key


def test_drift_asks_at_most_once_in_a_set_time(settings: Settings) -> None:
    promote(settings)
    with DagsterInstance.ephemeral() as instance:
        assert isinstance(look(instance, settings), SkipReason), "nobody looked for drift yet"
        add_clicks(settings, traffic(2_000, 2)[0])
        assert evaluate_drift(instance, settings)
        assert isinstance(look(instance, settings), SkipReason)
        add_clicks(settings, traffic(6_000, 3)[0] * 3)
        assert not evaluate_drift(instance, settings)
        asked = look(instance, settings)
        assert isinstance(asked, RunRequest) and "log_page_loading_seconds" in asked.tags[WHY]
        assert asked.run_config == {"ops": {"training_sample": {"config": {"days": 0.25}}}}
        plan_check(instance)
        assert isinstance(look(instance, settings), RunRequest), "what is being looked at says nothing yet"
        run_once(instance)
        assert isinstance(look(instance, settings, hours=5.9), SkipReason)
        assert isinstance(look(instance, settings, hours=6.1), RunRequest)
        promote(settings, "m-2")
        told = look(instance, settings, hours=6.1)
        assert isinstance(told, SkipReason), "what was seen of the model before says nothing about this one"


def test_too_little_to_tell_drift_by(settings: Settings) -> None:
    none = clicks_as_trained_on(settings, datetime.now(UTC))
    assert none.passed and "no model yet" in (none.description or "")
    promote(settings)
    few = clicks_as_trained_on(settings, datetime.now(UTC))
    assert few.passed and "only 0 clicks" in (few.description or "")

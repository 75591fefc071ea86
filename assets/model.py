"""The anomaly model as assets: its sample of clicks, the model itself, and how it does on clicks it has not seen."""

import base64
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dagster import (
    AssetExecutionContext,
    AssetKey,
    AssetsDefinition,
    AssetSpec,
    Config,
    Failure,
    MaterializeResult,
    MetadataValue,
    asset,
)
from pydantic import Field

from assets.batch_spark import BatchSpark
from assets.days_config import time_of
from assets.streams import table_key
from lake.anomalies import PAGE_LOAD_RESCORES
from lake.click_sample import CLICKS, NoClicks, draw_clicks
from ml.evaluation import Evaluation, compare
from ml.in_use import model_in_use
from ml.model import MOST_CLUSTERS, Model, ModelRefused
from ml.pictures import distribution, over_versions
from ml.registry import Registry, RegistryError
from ml.sample import Drawn, Sample, SampleMissing, Samples, TooFewRows
from ml.training import Plan, train_on
from settings import Settings, load_settings
from streaming.ground_truth import LedgerError, known_anomalies

GROUP = "model"
DAYS = 7.0
WHY = "tidewatch/why"
"""The tag of a run that was not launched by a person: what asked for it."""
SHOWN = ("share_flagged", "normal_range", "silhouette", "precision", "recall")
REFUSALS = (LedgerError, ModelRefused, NoClicks, RegistryError, SampleMissing, TooFewRows)
"""What ends a run with a sentence for a person."""


class SampleConfig(Config):
    days: float = Field(DAYS, gt=0, le=3650, description="How many days of clicks to draw from; 0.25 are six hours")
    until: str | None = Field(None, description="Up to when, like 2026-03-01 or 2026-03-01T12:00Z; now if left out")
    rows: int = Field(200_000, ge=200, le=5_000_000, description="How many clicks to draw at most")
    seed: int = Field(1, ge=0, lt=2**31, description="With another seed other clicks are drawn")
    table_version: int | None = Field(
        None, ge=0, description="The version of silver/clicks to draw from, to repeat a run; the newest if left out"
    )


class ModelConfig(Config):
    fewest_clusters: int = Field(1, ge=1, le=MOST_CLUSTERS, description="The least number of clusters to try")
    most_clusters: int = Field(6, ge=1, le=MOST_CLUSTERS, description="The largest number of clusters to try")
    contamination: float = Field(0.01, ge=0, lt=0.5, description="The share of clicks that is taken for anomalous")
    seed: int = Field(1, ge=0, lt=2**31, description="Of KMeans: the same sample then gives the same model")

    def plan(self, version: str) -> Plan:
        if self.fewest_clusters > self.most_clusters:
            raise Failure(f"fewest_clusters {self.fewest_clusters} is more than most_clusters {self.most_clusters}.")
        return Plan(version, range(self.fewest_clusters, self.most_clusters + 1), self.contamination, self.seed)


class EvaluationConfig(Config):
    promote: bool = Field(True, description="Make the model current if it does no worse than the present one")
    ledger: str | None = Field(
        None, description="A ledger of `tidewatch traffic`, whose clicks are known to be anomalous or not"
    )


def model_assets() -> list[AssetsDefinition]:
    @asset(group_name=GROUP, deps=[table_key(CLICKS.name)], kinds={"spark", "parquet"})
    def training_sample(
        context: AssetExecutionContext, config: SampleConfig, spark: BatchSpark
    ) -> MaterializeResult[None]:
        """Clicks drawn by chance from silver at one version of the table, a fifth of them held out of training."""
        settings = load_settings()
        until = time_of("until", config.until) or datetime.now(UTC)
        since = until - timedelta(days=config.days)
        with _told_to_a_person():
            found = draw_clicks(
                spark.spark_session, settings.lake_root, since, until, config.rows, config.seed, config.table_version
            )
        drawn = Drawn(
            CLICKS.name,
            found.table_version,
            since.isoformat(),
            until.isoformat(),
            found.clicks,
            config.rows,
            config.seed,
        )
        sample = Sample.of(found.rows, drawn)
        _samples(settings).add(_name(context), sample)
        return MaterializeResult(
            metadata={**asdict(drawn), "rows": len(sample.hashes), "held_out": int(sample.held_out.sum())}
        )

    @asset(group_name=GROUP, deps=[training_sample], kinds={"scikitlearn"})
    def page_load_model(context: AssetExecutionContext, config: ModelConfig) -> MaterializeResult[None]:
        """KMeans clusters of page load times with a threshold for each; a version in the registry, not yet current."""
        settings, now = load_settings(), datetime.now(UTC)
        with _told_to_a_person():
            sample = _sample(context, settings)
            model = train_on(sample, config.plan(f"{now:%Y%m%d-%H%M%S}-{_name(context)}"))
            Registry(settings.model_folder).add(model, f"run {context.run.run_id}", _why(context), now)
        return MaterializeResult(
            metadata={
                "version": model.version,
                "clusters": len(model.clusters),
                "rows": model.training.rows,
                **model.metrics,
                "distribution": _picture(distribution(model, sample.for_training)),
                "centroids": _centroids(model),
            }
        )

    @asset(group_name=GROUP, deps=[page_load_model], kinds={"scikitlearn"})
    def model_evaluation(context: AssetExecutionContext, config: EvaluationConfig) -> MaterializeResult[None]:
        """The new model and the present one on the same held-out clicks; the new one becomes current if it does no
        worse."""
        settings, now = load_settings(), datetime.now(UTC)
        registry = Registry(settings.model_folder)
        with _told_to_a_person():
            model, sample = registry.model(_version(context, registry)), _sample(context, settings)
            current, present = registry.current_or_none(), model_in_use(registry).model
            truth = known_anomalies(Path(config.ledger), sample) if config.ledger is not None else None
            found = compare(model, present, sample, truth)
            registry.note_evaluation(model.version, {**asdict(found.new), "reason": found.gate.reason})
            promoted = found.gate.opens and config.promote
            if promoted:
                registry.promote_after(current, model.version, f"run {context.run.run_id}", found.gate.reason, now)
        told = f"{model.version} was {'promoted' if promoted else 'not promoted'}: {found.gate.reason}"
        context.log.info(told if config.promote else f"{told}. Promoting was not asked for.")
        return MaterializeResult(
            metadata={
                "version": model.version,
                "promoted": promoted,
                "reason": found.gate.reason,
                "present": present.version if present else "none",
                **_numbers(found.new),
                **(
                    {f"present_{name}": each for name, each in _numbers(found.present).items()} if found.present else {}
                ),
                "over versions": _picture(over_versions(registry.metrics(), SHOWN)),
            }
        )

    return [training_sample, page_load_model, model_evaluation]


def model_specs() -> list[AssetSpec]:
    """What the job rescore makes."""
    return [
        AssetSpec(
            table_key(PAGE_LOAD_RESCORES.name),
            deps=[table_key(CLICKS.name), AssetKey("page_load_model")],
            group_name=GROUP,
            kinds={"delta", "spark"},
            description=PAGE_LOAD_RESCORES.description,
        )
    ]


@contextmanager
def _told_to_a_person() -> Iterator[None]:
    try:
        yield
    except REFUSALS as error:
        raise Failure(str(error), allow_retries=False) from error


def _samples(settings: Settings) -> Samples:
    return Samples(settings.model_folder / "samples")


def _name(context: AssetExecutionContext) -> str:
    """By which assets of one run find what each other made, also where the rest of a failed one is done again."""
    run_id: str = context.run.root_run_id or context.run.run_id
    return run_id[:8]


def _sample(context: AssetExecutionContext, settings: Settings) -> Sample:
    """Of this run, or the newest where it drew none."""
    found = _samples(settings)
    return found.read(_name(context) if found.has(_name(context)) else None)


def _version(context: AssetExecutionContext, registry: Registry) -> str:
    """Of this run, or the newest where it made none."""
    versions = [record.version for record in registry.versions()]
    if not versions:
        raise RegistryError("There is no model yet: materialize page_load_model first.")
    own = [version for version in versions if version.endswith(f"-{_name(context)}")]
    return (own or versions)[-1]


def _why(context: AssetExecutionContext) -> str:
    return context.run.tags.get(WHY, "launched by a person")


def _numbers(evaluation: Evaluation) -> dict[str, float]:
    return {name: value for name, value in asdict(evaluation).items() if value is not None}


def _picture(png: bytes) -> MetadataValue:
    return MetadataValue.md(f"![](data:image/png;base64,{base64.b64encode(png).decode()})")


def _centroids(model: Model) -> MetadataValue:
    rows = [
        f"| {number} | {math.exp(model.means[0] + model.deviations[0] * cluster.centroid[0]):.3f} s "
        f"| {cluster.threshold:.3f} | {cluster.share:.2%} |"
        for number, cluster in enumerate(model.clusters)
    ]
    return MetadataValue.md("\n".join(["| cluster | centroid | threshold | share |", "|---|---|---|---|", *rows]))

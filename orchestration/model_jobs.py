"""Jobs on models that are there: one makes another current, one scores past days by a chosen one."""

from datetime import UTC, datetime

from dagster import AssetMaterialization, Config, Failure, JobDefinition, OpExecutionContext, job, op
from pydantic import Field

from assets.batch_spark import BatchSpark
from assets.days_config import DaysConfig
from assets.streams import table_key
from lake.anomalies import PAGE_LOAD_RESCORES
from lake.lock import LockTimeout
from ml.model import ModelRefused
from ml.registry import Registry, RegistryError
from orchestration import tags
from orchestration.worker import noting_executor
from settings import load_settings
from streaming.rescore import NothingToScore, rescore


class PromoteConfig(Config):
    version: str | None = Field(None, description="The model to make current; the one before the present if left out")
    why: str = Field(description="Why, for those who look later")


class RescoreConfig(DaysConfig):
    version: str = Field(description="The model to score with")


def promote_job() -> JobDefinition:
    @op(description="Makes a model current, or the one that was so before.")
    def promote(context: OpExecutionContext, config: PromoteConfig) -> None:
        registry, by, now = Registry(load_settings().model_folder), f"run {context.run_id}", datetime.now(UTC)
        try:
            if config.version is None:
                model = registry.roll_back(by, config.why, now)
            else:
                model = registry.promote(config.version, by, config.why, now)
        except (RegistryError, ModelRefused) as error:
            raise Failure(str(error), allow_retries=False) from None
        context.log.info(f"{model.version} is current; the stream silver takes it up with its next batch")

    @job(
        name="promote_model",
        description="Makes a model of the registry current, or rolls back to the one before. No stream is restarted.",
        executor_def=noting_executor,
    )
    def promote_model() -> None:
        promote()

    return promote_model


def rescore_job() -> JobDefinition:
    @op(name="rescore_days", description="Scores the clicks of these days and replaces what the table has of them.")
    def score_days(context: OpExecutionContext, config: RescoreConfig, spark: BatchSpark) -> None:
        settings, days = load_settings(), config.days()
        try:
            model = Registry(settings.model_folder).model(config.version)
            done = rescore(spark.spark_session, settings, model, days)
        except (RegistryError, ModelRefused, NothingToScore, LockTimeout) as error:
            raise Failure(str(error), allow_retries=False) from None
        context.log.info(f"{model.version} flags {done.anomalous:,} of {done.clicks:,} clicks of {days}")
        context.log_event(
            AssetMaterialization(
                table_key(PAGE_LOAD_RESCORES.name),
                metadata={
                    "version": model.version,
                    "days": str(days),
                    "clicks": done.clicks,
                    "anomalous": done.anomalous,
                    "version of silver/clicks": done.table_version,
                },
            )
        )

    @job(
        name="rescore",
        description=f"Scores the clicks of past days with a chosen model into {PAGE_LOAD_RESCORES.name}: what it would "
        "have said. What the stream wrote stays as it is.",
        executor_def=noting_executor,
        resource_defs={"spark": BatchSpark()},
        tags={tags.KIND: tags.BATCH_KIND},
    )
    def rescored() -> None:
        score_days()

    return rescored

"""Spark for batch work: dagster-pyspark's resource with the settings that the streams have."""

import subprocess
from contextlib import suppress
from typing import Any

from dagster import InitResourceContext
from dagster_pyspark import LazyPySparkResource
from pydantic import Field

from settings import load_settings
from streaming.session import clear_scratch, close_session, spark_session

APPLICATION = "batch"
CLOSE_SECONDS = 30


class BatchSpark(LazyPySparkResource):
    """The session begins when a run first asks for it, and ends with the run."""

    spark_config: dict[str, Any] = Field(default_factory=dict)

    @property
    def spark_session(self) -> Any:
        if self._spark_session is None:
            settings = load_settings()
            self._spark_session = spark_session(settings, APPLICATION)
            clear_scratch(settings, APPLICATION)
        return self._spark_session

    def teardown_after_execution(self, context: InitResourceContext) -> None:
        if self._spark_session is not None:
            with suppress(subprocess.TimeoutExpired):  # the run is done; its JVM ends with this process
                close_session(self._spark_session, CLOSE_SECONDS)

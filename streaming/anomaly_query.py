"""The query `page_load_anomalies` of the silver stream: each click judged once, by the model that is current when its
batch begins.

Records that were judged before are left out of a batch, so that clicks may be read again at any time. That makes room
for two things: clicks that come while there is no model are judged once there is one, and days whose clicks were
rebuilt are put right. Both are noted as days whose scores are stale, and done with the next batch or soon without one.
"""

import logging

from pyspark.sql import DataFrame

from lake.anomalies import PAGE_LOAD_ANOMALIES
from lake.commit import replace_days
from lake.days import any_of, bytes_by_day, files_for, slices, sql_any_of
from lake.tables import Table
from ml.in_use import ModelWatch
from ml.model import Model
from ml.registry import Registry
from ml.scoring import scored
from streaming.appended import Appended, rows_now
from streaming.catalog import QuerySpec
from streaming.checkpoints import Generation
from streaming.click_tables import CLICKS, RECORD, SCORES, StaleDays, scores_locked
from streaming.compilation import compiled
from streaming.query_plan import QueryContext, QueryPlan
from streaming.sources import table_rows

log = logging.getLogger("tidewatch")

OF_CLICKS = ("eventID", "eventType", "platform", "browser", "page_loading_seconds", *RECORD, "date")


def anomalies_plan(context: QueryContext, query: QuerySpec, generation: Generation) -> QueryPlan:
    settings, spark = context.settings, context.spark
    assert isinstance(query.source, Table)
    scorer = _Scorer(context, generation)
    scorer.catch_up()
    context.do_between_batches(query.name, scorer.catch_up)  # its next batch may be long in coming
    rows = table_rows(
        spark, query.source, settings.lake_root, starts_at=generation.starts_at, max_mb=settings.silver.max_mb
    )
    return QueryPlan(rows.select(*OF_CLICKS), scorer.write)


def page_load_anomalies(clicks: DataFrame, model: Model) -> DataFrame:
    """Rows of silver/page_load_anomalies."""
    judged = scored(clicks, model).selectExpr("*", f"'{model.version}' AS model_version")
    return judged.select(*(column.name for column in PAGE_LOAD_ANOMALIES.columns))


class _Scorer:
    def __init__(self, context: QueryContext, generation: Generation) -> None:
        self._context, self._spark, self._root = context, context.spark, context.settings.lake_root
        self._table = Appended(context, PAGE_LOAD_ANOMALIES, generation, may_read_again=True)
        self._models = ModelWatch(Registry(context.settings.model_folder))
        self._stale = StaleDays(context.spark, context.settings, SCORES)
        self._refusal: str | None = None

    def write(self, batch: DataFrame, number: int) -> None:
        with scores_locked(self._spark, self._context.settings, self._context.check_lease):
            model = self._model()
            if model is None:
                self._put_off(batch, number)
                return
            self._judge_stale_days(model)
            self._context.check_lease()
            self._table.append(page_load_anomalies(batch, model), number)

    def catch_up(self) -> None:
        """Judges some of what could not be judged before."""
        with scores_locked(self._spark, self._context.settings, self._context.check_lease):
            model = self._model()
            if model is not None:
                self._judge_stale_days(model)

    def _model(self) -> Model | None:
        found = self._models.look()
        if found.refusal not in (None, self._refusal):
            log.warning("%s Clicks are judged by %s.", found.refusal, found.model.version if found.model else "none")
        self._refusal = found.refusal
        return found.model

    def _put_off(self, batch: DataFrame, number: int) -> None:
        """Until there is a model."""
        self._stale.add(*(row["date"].isoformat() for row in batch.select("date").distinct().collect()))
        self._table.append(batch.sparkSession.createDataFrame([], PAGE_LOAD_ANOMALIES.ddl), number)

    def _judge_stale_days(self, model: Model) -> None:
        """So many of them as a batch may have: what was judged and is still a click stays, other clicks are judged."""
        noted = self._stale.all()
        if not noted:
            return
        sizes = bytes_by_day(self._spark, CLICKS, self._root, sql_any_of(noted))
        first = slices({day: sizes.get(day, 0) for day in noted}, self._context.settings.silver.max_mb)[0]
        days = [day for day in first if day is not None]
        clicks = rows_now(self._spark, CLICKS, self._root).where(any_of(days)).select(*OF_CLICKS)
        judged = rows_now(self._spark, PAGE_LOAD_ANOMALIES, self._root).where(any_of(days))
        same = [judged[name].eqNullSafe(clicks[name]) for name in OF_CLICKS]
        still = judged.join(clicks, same, "left_semi")
        new = page_load_anomalies(clicks.join(judged, same, "left_anti"), model)
        self._context.check_lease()
        with compiled(self._spark):
            files = files_for(sum(sizes.get(day, 0) for day in days), self._context.settings.silver.max_mb)
            replace_days(still.unionByName(new).coalesce(files), PAGE_LOAD_ANOMALIES, self._root, days)
        for day in days:
            self._stale.remove(day.isoformat())

"""Whether a long batch gets on: Spark's count of the tasks that a query has finished."""

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

# Jobs of one batch that may run side by side; Spark remembers many more that have ended.
NEWEST_JOBS = 4


class WorkMeter:
    """A batch may take long, but while its tasks end one after the other it is not stuck."""

    def __init__(self, context: SparkContext) -> None:
        self._tracker = context.statusTracker()
        self._seen: dict[str | None, tuple[int, ...]] = {}

    def got_on(self, query: StreamingQuery | None) -> bool:
        """True when tasks ended or jobs began since the last call. Without a query: jobs that are of none."""
        group = str(query.runId) if query is not None else None
        jobs = sorted(self._tracker.getJobIdsForGroup(group))[-NEWEST_JOBS:]
        now = (*jobs[-1:], *(self._finished_tasks(job) for job in jobs))
        before, self._seen[group] = self._seen.get(group), now
        return before is not None and now != before

    def _finished_tasks(self, job: int) -> int:
        found = self._tracker.getJobInfo(job)
        stages = [self._tracker.getStageInfo(stage) for stage in found.stageIds] if found else []
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

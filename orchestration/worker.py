"""The executor of batch jobs: it runs them in the run's own process, and notes first which process that is."""

from collections.abc import Iterator

from dagster import DagsterEvent, Executor, InitExecutorContext, executor
from dagster._core.execution.context.system import PlanOrchestrationContext
from dagster._core.execution.plan.plan import ExecutionPlan
from dagster._core.execution.retries import RetryMode
from dagster._core.executor.in_process import InProcessExecutor

from orchestration import tags
from processes.identity import ProcessIdentity


class NotingExecutor(InProcessExecutor):
    """Dagster itself notes a bare number, which another process may have after a while."""

    def execute(self, plan_context: PlanOrchestrationContext, execution_plan: ExecutionPlan) -> Iterator[DagsterEvent]:
        worker = ProcessIdentity.current().to_json()
        tags.note(plan_context.instance, plan_context.run_id, worker=worker)
        yield from super().execute(plan_context, execution_plan)


@executor(name="in_process")
def noting_executor(_: InitExecutorContext) -> Executor:
    return NotingExecutor(retries=RetryMode.ENABLED)

"""What the outside is told of a failed run."""

from types import SimpleNamespace
from typing import cast

from dagster import DagsterRun, RunFailureSensorContext

from orchestration import tags
from orchestration.alerts import failure_message

PARENT = {
    tags.OF: "parent",
    tags.FAILURE: "LEASE_HELD",
    tags.REASON: "Another had the lease.",
    tags.ATTEMPT: "7",
}


def message(run: DagsterRun) -> dict[str, str]:
    event = SimpleNamespace(message="Its step failed.")
    return failure_message(cast("RunFailureSensorContext", SimpleNamespace(dagster_run=run, failure_event=event)))


def test_a_run_is_told_by_its_own_failure() -> None:
    told = message(DagsterRun("bronze", "parent", tags=PARENT))
    assert (told["class"], told["attempt"]) == ("LEASE_HELD", "7")
    assert told["text"] == "Tidewatch: run parent of bronze failed: Another had the lease."


def test_a_run_that_was_re_executed_is_not_told_by_the_failure_of_its_parent() -> None:
    told = message(DagsterRun("bronze", "again", tags={**PARENT, tags.PARENT: "parent"}))
    assert (told["class"], told["attempt"]) == ("", "1")
    assert told["text"] == "Tidewatch: run again of bronze failed: Its step failed."

"""The tags of runs: what Dagster keeps of a stream's attempts."""

from dagster import DagsterInstance, DagsterRun

PARENT = "dagster/parent_run_id"
"""Dagster's own, on a run that was re-executed from another."""
KIND = "tidewatch/kind"
STREAM = "tidewatch/stream"

STREAM_KIND = "stream"
BATCH_KIND = "batch"
CHECK_KIND = "check"

OF = "tidewatch/of"
"""The run that the following four are about: a re-executed run is born with the tags of its parent."""
WORKER = "tidewatch/worker"
"""The identity of the process that executes the run."""
FAILURE = "tidewatch/failure"
"""The class of its failure: a `FailureClass`, or one of those below."""
REASON = "tidewatch/reason"
"""Why it failed, and what to do."""
QUERY = "tidewatch/query"
"""The query that failed or hung, if it was one."""

ATTEMPT = "tidewatch/attempt"
"""The how-manieth try in a row the run is; a run that a person launched has none and is the first."""
FRUITLESS = "tidewatch/fruitless"
"""How many runs right before it failed without any progress."""
NOT_BEFORE = "tidewatch/not-before"
"""When its host may start at the earliest."""
KILLED = "KILLED"
HUNG = "HUNG"
LOST = "LOST"

LONGEST = 1000


def note(instance: DagsterInstance, run_id: str, **values: str) -> None:
    """Writes WORKER, FAILURE, REASON or QUERY of this very run."""
    noted = {f"tidewatch/{name}": value[:LONGEST] for name, value in values.items()}
    instance.add_run_tags(run_id, {OF: run_id, **noted})


def noted(run: DagsterRun) -> dict[str, str]:
    """What was noted of this very run."""
    names = (WORKER, FAILURE, REASON, QUERY) if run.tags.get(OF) == run.run_id else ()
    return {name: run.tags[name] for name in names if name in run.tags}


def planned(run: DagsterRun) -> dict[str, str]:
    """What the supervisor planned for it; nothing for a run that a person launched or re-executed."""
    names = (ATTEMPT, FRUITLESS, NOT_BEFORE)
    return {} if PARENT in run.tags else {name: run.tags[name] for name in names if name in run.tags}

"""Ends a stream's processes for good, by their identities, and then its run."""

from dagster import DagsterInstance, DagsterRunStatus

from orchestration import tags
from orchestration.sight import OVER, Sight, run_status
from processes.child import end_group, groups_below, kill, wait_until
from settings import Settings
from streaming.failures import FailureClass
from streaming.files import StreamFiles, replace_text
from streaming.lease import Holder, is_held

OWN_END_SECONDS = 3.0
LEASE_SECONDS = 3.0


def end_active_run(
    instance: DagsterInstance, settings: Settings, sight: Sight, reason: str, kind: str, query: str | None = None
) -> bool:
    """True when every process of the run is gone, the lease is free and the run has ended with the reason.

    False where that takes longer: a later call goes on.
    """
    run = sight.run
    assert run is not None
    canceling = run.status is DagsterRunStatus.CANCELING
    files = StreamFiles(settings.run_folder, run.job_name)
    if not canceling:
        tags.note(instance, run.run_id, failure=kind, reason=reason, **({"query": query} if query else {}))
    replace_text(files.revoked, run.run_id)  # whatever is left of it somewhere ends itself
    if sight.worker is not None:
        for host in groups_below(sight.worker):
            end_group(host, grace_seconds=0)
    if sight.holder is not None and sight.holder.run_id == run.run_id:
        _end_holder(sight.holder)
        if not _lease_is_free(settings, run.job_name):
            return False
    # A worker in good order sees its host end and ends the run itself, and Dagster sees the end of most that are not.
    wait_until(lambda: run_status(instance, run.run_id) in OVER, OWN_END_SECONDS)
    if sight.worker is not None and run_status(instance, run.run_id) not in OVER:
        kill(sight.worker)
    if run_status(instance, run.run_id) not in OVER:
        if canceling:
            instance.report_run_canceled(run, reason)
        else:
            instance.report_run_failed(run, reason)
    return True


def end_lost_beside(instance: DagsterInstance, sight: Sight) -> None:
    """Ends runs that have no process any more while another run has the stream. They count as refused by its lease: as
    the runs that ended last they would decide what comes after it."""
    for lost in sight.lost:
        if run_status(instance, lost.run_id) in OVER:
            continue  # its process ended in order since it was looked at
        beside = f"run {sight.run.run_id[:8]}" if sight.run else "another"
        reason = f"its process is gone, and {beside} has the stream"
        tags.note(instance, lost.run_id, failure=FailureClass.LEASE_HELD.name, reason=reason)
        if lost.status is DagsterRunStatus.CANCELING:
            instance.report_run_canceled(lost, reason)
        else:
            instance.report_run_failed(lost, reason)


def end_leftover(settings: Settings, sight: Sight, stream: str) -> bool:
    """Ends a host that outlived its run. True when the lease is free."""
    if sight.holder is not None and sight.holder.run_id is not None:  # one that was started by hand is a person's
        replace_text(StreamFiles(settings.run_folder, stream).revoked, sight.holder.run_id)
        _end_holder(sight.holder)
    return _lease_is_free(settings, stream)


def _end_holder(holder: Holder) -> None:
    members = [holder.jvm] if holder.jvm else []
    end_group(holder.host, *members, grace_seconds=0)


def _lease_is_free(settings: Settings, stream: str) -> bool:
    lease = StreamFiles(settings.run_folder, stream).lease
    return wait_until(lambda: not is_held(lease), LEASE_SECONDS)

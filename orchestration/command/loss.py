"""`tidewatch accept-loss`: a person's word that records are gone for good."""

from hub.topics import HubUnreachable
from processes.child import end_children
from settings import Settings
from streaming.catalog import STREAMS
from streaming.checkpoints import CheckpointError
from streaming.lease import LeaseHeld
from streaming.loss import Skipped, accept_loss


class LossError(Exception):
    """The query can't go on this way; the message says why."""


def accept(settings: Settings, stream: str, query: str) -> str:
    spec = STREAMS.get(stream)
    if spec is None:
        raise LossError(f"There is no stream {stream}: there are {', '.join(STREAMS)}.")
    queries = {each.name: each for each in spec.queries}
    if query not in queries:
        raise LossError(f"{stream} has no query {query}: it has {', '.join(queries)}.")
    try:
        skipped = accept_loss(settings, spec, queries[query])
    except LeaseHeld as held:
        raise LossError(f"{stream} runs: {held}. To change where it goes on, terminate its run first.") from None
    except (CheckpointError, HubUnreachable) as error:
        raise LossError(str(error)) from None
    finally:
        end_children()
    lines = [f"partition {each.partition}: {_records(each)}" for each in skipped] or ["nothing"]
    return "\n".join([f"{stream}/{query} goes on with what the hub has. It passes over", *lines])


def _records(skipped: Skipped) -> str:
    count = skipped.next - skipped.first
    return f"{count:,} record{'s' if count > 1 else ''}, from number {skipped.first} to {skipped.next - 1}"

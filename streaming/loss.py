"""Going on after records were lost for good: a person says so, and the query continues with what the hub still has."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hub.connection import HubConnection
from hub.topics import offset_ranges, times_at
from lake.commit import committed_version
from settings import Settings
from streaming.catalog import QuerySpec, StreamSpec
from streaming.checkpoints import CheckpointError, QueryCheckpoints
from streaming.files import StreamFiles
from streaming.lease import Lease, LeaseHeld, describe_holder, is_held
from streaming.session import spark_session

MICROS = 1_000_000


@dataclass(frozen=True)
class Skipped:
    """Sequence numbers of a partition that are passed over: from the first up to, not including, the next."""

    partition: int
    first: int
    next: int


def accept_loss(settings: Settings, stream: StreamSpec, query: QuerySpec) -> list[Skipped]:
    """Begins a new checkpoint generation that passes over what the hub no longer has. Needs the stream's lease."""
    hub = query.hub
    if hub is None:
        raise CheckpointError(
            f"{stream.name}/{query.name} reads {query.source_name}, of which nothing is deleted unread."
        )
    file = StreamFiles(settings.run_folder, stream.name).lease
    if is_held(file):  # told before a session is started for nothing
        raise LeaseHeld(describe_holder(file))
    spark = spark_session(settings, stream.name)
    lease = Lease.take(spark, file, run_id=None)
    checkpoints = QueryCheckpoints(spark, settings.checkpoint_root, stream.name, query.name)
    latest = checkpoints.latest()
    if latest is None:
        raise CheckpointError(
            f"{stream.name}/{query.name} has no checkpoint, so that it begins at the hub's start anyway."
        )
    writes_table = not isinstance(query.target, str)
    in_table = committed_version(spark, query.table, settings.lake_root, latest.writer) if writes_table else None
    offsets = (checkpoints.end_offsets(latest, in_table, hub) or {}).get(hub, {})
    ended = {int(partition): offset for partition, offset in offsets.items()}
    connection, now = HubConnection.from_settings(settings.hub), datetime.now(UTC)
    ranges = offset_ranges(connection, hub)
    starts, skipped = resume_points(ended, ranges)
    lossy = [partition for partition, end in ended.items() if starts.get(partition) != end]
    left = {each: starts[each] for each in lossy if each in ranges and starts[each] < ranges[each][1]}
    first = times_at(connection, hub, left)
    # Where nothing is left, the next record comes after now.
    lost_until = {str(each): round(first.get(each, now).timestamp() * MICROS) for each in lossy}
    starts_at = {hub: {str(partition): offset for partition, offset in starts.items()}}
    checkpoints.begin(query.plan, starts_at, now, query.buckets(settings), lost_until)
    del lease
    return skipped


def resume_points(
    ended: Mapping[int, int], ranges: Mapping[int, tuple[int, int]]
) -> tuple[dict[int, int], list[Skipped]]:
    """Where to go on in each partition, given where reading ended and the range that the hub has.

    A hub whose last record is before where reading ended was made anew, so that all of it is unread.
    """
    starts, skipped = {}, []
    for partition, (first, after_last) in ranges.items():
        end = ended.get(partition, first)
        starts[partition] = end if first <= end <= after_last else first
        if end < first:
            skipped.append(Skipped(partition, end, first))
    return starts, skipped

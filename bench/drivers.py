"""Second drivers of a stream, and what shows that only one ever wrote: Delta's own history."""

import itertools
import json
import os
import subprocess
import sys
from typing import NamedTuple

from bench.rig import Rig


class Batch(NamedTuple):
    """That a table has, as its log tells it."""

    table: str
    run: str | None
    """None for a host that was started by hand."""
    writer: str
    number: int


def host_by_hand(rig: Rig, stream: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        [sys.executable, "-m", "streaming", stream],
        env={**os.environ, **rig.environment},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def batches_in(rig: Rig, stream: str) -> list[Batch]:
    """Of each table that the stream writes, in the order of its log."""
    found = []
    for table, files in rig.commit_files(stream).items():
        for commit in files:
            actions = [json.loads(line) for line in commit.read_text().splitlines()]
            run = next((each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each), None)
            noted = (each["txn"] for each in actions if "txn" in each)
            found += [Batch(table, run, each["appId"], each["version"]) for each in noted]
    return found


def stale_commits(rig: Rig, stream: str) -> list[Batch]:
    """Of runs that had a successor by then, and of batches that were there already."""
    found = []
    for _, batches in itertools.groupby(batches_in(rig, stream), key=lambda batch: batch.table):
        runs: list[str | None] = []
        newest: dict[str, int] = {}
        for batch in batches:
            superseded = batch.run is not None and batch.run in runs and batch.run != runs[-1]
            if superseded or batch.number <= newest.get(batch.writer, -1):
                found.append(batch)
            newest[batch.writer] = batch.number
            runs.append(batch.run)
    return found

"""Checkpoints in generations.

A query's checkpoint lives in `ROOT/STREAM/QUERY/gNNNNNN/`: `generation.json` says what it is, `spark/` is Spark's. A
change that Spark can't resume from starts the next generation, which goes on where the last one ended. Each has a
writer's name of its own for Delta, so that batch numbers that begin anew are never taken for old ones.
"""

import json
import re
import secrets
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from pyspark.sql import SparkSession

from streaming.hadoop_files import HadoopFiles

Offsets = dict[str, dict[str, int]]
"""Hub → partition → the next sequence number to read; or table → `VERSION` → the next version to read."""

VERSION = "version"


class CheckpointError(Exception):
    """A checkpoint that can't be used; the message says which, why, and what to do."""


@dataclass(frozen=True)
class Generation:
    number: int
    plan: int
    writer: str
    starts_at: Offsets | None
    created_at: str
    buckets: int | None = None
    """Into how many the state is divided, for a query that has buckets."""
    lost_until: dict[str, int] | None = None
    """Of each partition whose records are passed over as lost: when the first that is read came, in microseconds."""


class QueryCheckpoints:
    """The generations of one query, on any file system that Spark reaches."""

    def __init__(self, spark: SparkSession, root: str, stream: str, query: str) -> None:
        self._stream, self._query = stream, query
        self._folder = f"{root.rstrip('/')}/{stream}/{query}"
        self._files = HadoopFiles(spark, self._folder)

    def folder(self, generation: Generation) -> str:
        return self._folder_of(generation.number)

    def location(self, generation: Generation) -> str:
        """What Spark is given as checkpointLocation."""
        return f"{self.folder(generation)}/spark"

    def latest(self) -> Generation | None:
        numbers = self._numbers()
        return self._generation(max(numbers)) if numbers else None

    def before(self, generation: Generation) -> Generation | None:
        """The one that it followed, None where that is no more."""
        earlier = [number for number in self._numbers() if number < generation.number]
        return self._generation(max(earlier)) if earlier else None

    def _numbers(self) -> list[int]:
        return [int(name[1:]) for name in self._files.names(self._folder) if re.fullmatch(r"g\d{6}", name)]

    def _generation(self, number: int) -> Generation:
        file = f"{self._folder_of(number)}/generation.json"
        try:
            return Generation(**json.loads(self._read(file)))
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{file} is damaged ({error}): restore the checkpoint of {self._stream}/{self._query} from a backup."
            ) from error

    def begin(
        self,
        plan: int,
        starts_at: Offsets | None,
        now: datetime,
        buckets: int | None = None,
        lost_until: dict[str, int] | None = None,
    ) -> Generation:
        """Starts the next generation."""
        latest = self.latest()
        number = latest.number + 1 if latest else 1
        writer = f"{self._stream}.{self._query}.g{number}.{secrets.token_hex(6)}"
        generation = Generation(number, plan, writer, starts_at, now.isoformat(), buckets, lost_until)
        file = f"{self._folder_of(number)}/generation.json"
        try:
            self._files.write(file, json.dumps(asdict(generation)))
        except OSError as error:
            raise CheckpointError(f"{file} can't be written: check the rights and the room there.") from error
        return generation

    def has_commits(self, generation: Generation) -> bool:
        """True when Spark finished a batch of this generation."""
        return self._last_batch(generation, "commits") >= 0

    def end_offsets(self, generation: Generation, in_table: int | None, source: str) -> Offsets | None:
        """Where a generation ended, None when it never read anything.

        A batch counts when Spark committed it, and also when its rows are in the table (of which `in_table` is the
        newest batch) although Spark was killed before it could note that. `source` names what it reads.
        """
        location = self.location(generation)
        last = self._last_batch(generation, "commits")
        if in_table is not None and self._last_batch(generation, "offsets") >= in_table > last:
            last = in_table
        if last < 0:
            return generation.starts_at
        lines = self._read(f"{location}/offsets/{last}").splitlines()
        try:
            return _offsets(json.loads(lines[2]), source)
        except (IndexError, ValueError, KeyError, TypeError) as error:
            raise CheckpointError(
                f"{location}/offsets/{last} is damaged: restore the checkpoint of {self._stream}/{self._query} "
                "from a backup."
            ) from error

    def _last_batch(self, generation: Generation, log: str) -> int:
        names = self._files.names(f"{self.location(generation)}/{log}")
        return max((int(name) for name in names if name.isdigit()), default=-1)

    def _folder_of(self, number: int) -> str:
        return f"{self._folder}/g{number:06}"

    def _read(self, file: str) -> str:
        try:
            text = self._files.read(file)
        except Exception as error:
            raise self._unreadable(file) from error
        if text is None:
            raise self._unreadable(file)
        return text

    def _unreadable(self, file: str) -> CheckpointError:
        return CheckpointError(
            f"{file} can't be read: restore the checkpoint of {self._stream}/{self._query} from a backup."
        )


def _offsets(found: dict[str, Any], source: str) -> Offsets | None:
    """Of a table the version that was being read, of which a part may have been read: it is read again. None, the
    table's start, when not even its first snapshot was read to the end."""
    if "reservoirVersion" not in found:
        return found
    return None if found["isStartingVersion"] else {source: {VERSION: int(found["reservoirVersion"])}}

"""How much of a table a query has not read yet, told from the table's log alone."""

import json
import logging
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Protocol

from pyspark.sql import SparkSession

from lake.tables import Table
from streaming.hadoop_files import HadoopFiles

log = logging.getLogger("tidewatch")

ASK_SECONDS = 5.0


@dataclass(frozen=True)
class TableOffset:
    """Where reading goes on: all versions before this one were read, and of this one the first files."""

    version: int
    files: int


@dataclass(frozen=True)
class Unread:
    records: int
    since: datetime | None
    """When the oldest of them was committed."""


@dataclass(frozen=True)
class _Commit:
    at: datetime
    records: tuple[int, ...]
    """Of each file that was added."""


class UnreadOfTable:
    """Reads each commit of the log once, and forgets those that were read."""

    def __init__(self, spark: SparkSession, table: Table, lake_root: str) -> None:
        self._log = f"{table.path(lake_root)}/_delta_log"
        self._files = HadoopFiles(spark, self._log)
        self._commits: dict[int, _Commit] = {}

    def after(self, offset: TableOffset) -> Unread:
        self._commits = {version: commit for version, commit in self._commits.items() if version >= offset.version}
        records, since, version = 0, None, offset.version
        while commit := self._commit(version):
            unread = sum(commit.records[offset.files :] if version == offset.version else commit.records)
            if unread and since is None:
                since = commit.at
            records += unread
            version += 1
        return Unread(records, since)

    def _commit(self, version: int) -> _Commit | None:
        if version not in self._commits:
            text = self._files.read(f"{self._log}/{version:020}.json")
            if text is None:
                return None
            self._commits[version] = _read_commit(text)
        return self._commits[version]


def _read_commit(text: str) -> _Commit:
    actions = [json.loads(line) for line in text.splitlines() if line]
    at = next((action["commitInfo"]["timestamp"] for action in actions if "commitInfo" in action), 0)
    appends = not any(action["remove"]["dataChange"] for action in actions if "remove" in action)
    adds = [action["add"] for action in actions if "add" in action]
    records = (json.loads(add.get("stats") or "{}").get("numRecords", 0) for add in adds if add["dataChange"])
    return _Commit(datetime.fromtimestamp(at / 1000, UTC), tuple(records) if appends else ())


class Listener(Protocol):
    def table_offset(self, query: str) -> TableOffset | None: ...

    def table_reaches(self, query: str, unread: Unread) -> None: ...


def watch_tables(tables: Mapping[str, UnreadOfTable], told: Listener) -> threading.Thread:
    """Tells, for each query, what it has not read yet of its table."""
    thread = threading.Thread(target=_watch, args=(tables, told), name="table-watch", daemon=True)
    thread.start()
    return thread


def _watch(tables: Mapping[str, UnreadOfTable], told: Listener) -> None:
    pause = threading.Event()
    while not pause.wait(ASK_SECONDS):
        for query, unread in tables.items():
            try:
                if offset := told.table_offset(query):
                    told.table_reaches(query, unread.after(offset))
            except Exception:
                log.exception("The table that %s reads can't be asked how far it reaches; tried again", query)

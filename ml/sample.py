"""A sample of clicks in a file: what a model is trained on and judged by, kept so that both can be done again."""

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ml.features import Flags, Numbers
from ml.model import NAME

KEPT = 10
HELD_OUT_PART = 5
"""One click in so many is held out of training."""
ABOUT = b"tidewatch"
COLUMNS = ("hash", "partition", "sequence_number", "enqueued_ms", "page_loading_seconds")


class SampleMissing(Exception):
    """There is no such sample; the message says what to do."""


class TooFewRows(Exception):
    """There is not enough to train on or to judge by; the message says how much there is and has to be."""


@dataclass(frozen=True)
class Drawn:
    """Where a sample is from: with the same of these, the same clicks are drawn."""

    table: str
    table_version: int
    since: str
    until: str
    clicks: int
    """With a page load time, from then until then."""
    most_rows: int
    seed: int


@dataclass(frozen=True)
class Sample:
    """Clicks in the order of their hashes. Which are held out follows from the same hashes."""

    drawn: Drawn
    hashes: npt.NDArray[np.int64]
    partitions: npt.NDArray[np.int32]
    sequence_numbers: npt.NDArray[np.int64]
    enqueued_ms: npt.NDArray[np.int64]
    page_loading_seconds: Numbers

    @classmethod
    def of(cls, rows: pa.Table, drawn: Drawn) -> "Sample":
        """From rows with these columns in their order, no more than were asked for."""
        order = [(name, "ascending") for name in ("hash", "partition", "sequence_number")]
        chosen = rows.select(COLUMNS).sort_by(order).slice(0, drawn.most_rows)
        return cls(drawn, *(column.to_numpy() for column in chosen.columns))

    @property
    def held_out(self) -> Flags:
        flags: Flags = self.hashes % HELD_OUT_PART == 0
        return flags

    @property
    def for_training(self) -> Numbers:
        return self.page_loading_seconds[~self.held_out]


class Samples:
    """Below its folder a Parquet file for each of the last few."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def add(self, name: str, sample: Sample) -> None:
        """Whole or not at all; older ones than the last few are deleted."""
        self._folder.mkdir(parents=True, exist_ok=True)
        columns = (
            *(sample.hashes, sample.partitions, sample.sequence_numbers, sample.enqueued_ms),
            sample.page_loading_seconds,
        )
        table = pa.table(dict(zip(COLUMNS, columns, strict=True)))
        file, beside = self._file(name), self._folder / f".{name}.{os.getpid()}"
        with beside.open("wb") as opened:
            pq.write_table(table.replace_schema_metadata({ABOUT: json.dumps(asdict(sample.drawn))}), opened)
            opened.flush()
            os.fsync(opened.fileno())
        beside.replace(file)
        for old in self._newest_first()[KEPT:]:
            old.unlink(missing_ok=True)

    def read(self, name: str | None = None) -> Sample:
        """The newest, if no name is given."""
        newest = self._newest_first()
        file = self._file(name) if name else (newest[0] if newest else None)
        if file is None or not file.exists():
            which = f"no sample {name}" if name else "no sample yet"
            raise SampleMissing(f"There is {which}: materialize training_sample first.")
        table = pq.read_table(file)
        return Sample.of(table, Drawn(**json.loads(table.schema.metadata[ABOUT])))

    def has(self, name: str) -> bool:
        return self._file(name).exists()

    def _file(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise SampleMissing(f"{name!r} is no name of a sample.")
        return self._folder / f"{name}.parquet"

    def _newest_first(self) -> list[Path]:
        made = {}
        for file in self._folder.glob("[!.]*.parquet"):
            with contextlib.suppress(FileNotFoundError):  # another run deleted it meanwhile
                made[file] = file.stat().st_mtime_ns
        return sorted(made, key=made.__getitem__, reverse=True)

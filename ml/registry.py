"""Models in versions: each once and for good, and one of them current. Readers see the old current one or the new one,
never a part; writers take turns."""

import contextlib
import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path

from ml.model import Model, ModelRefused

MODEL_FILE, RECORD_FILE = "model.json", "record.json"
VERSION = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")


class RegistryError(Exception):
    """What was asked of the registry can't be done; the message says why and what can."""


@dataclass(frozen=True)
class Record:
    """Who did what with a version, when and why."""

    version: str
    by: str
    why: str
    at: str


class Registry:
    """Below its folder: `versions/NAME/` with the model and the record of its making, `current.json`, and
    `promotions.jsonl` with all that ever became current, the newest last."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._versions = folder / "versions"
        self._current = folder / "current.json"
        self._promotions = folder / "promotions.jsonl"

    def add(self, model: Model, by: str, why: str, now: datetime) -> None:
        """Raises where the version is there already: what was added never changes."""
        final = self._versions / model.version
        with self._locked():
            if final.exists():
                raise RegistryError(f"There is a model {model.version} already: a version is never written again.")
            self._versions.mkdir(parents=True, exist_ok=True)
            beside = self._versions / f".{model.version}.{os.getpid()}"
            shutil.rmtree(beside, ignore_errors=True)
            beside.mkdir()
            _write(beside / MODEL_FILE, model.to_json())
            _write(beside / RECORD_FILE, json.dumps(asdict(Record(model.version, by, why, now.isoformat()))))
            beside.rename(final)
            _sync(self._versions)

    def versions(self) -> list[Record]:
        """Of all models, in the order of their making."""
        if not self._versions.is_dir():
            return []
        names = sorted(entry.name for entry in self._versions.iterdir() if VERSION.fullmatch(entry.name))
        return sorted((self._record(name) for name in names), key=lambda record: (record.at, record.version))

    def model(self, version: str) -> Model:
        if not VERSION.fullmatch(version) or not (self._versions / version).is_dir():
            known = ", ".join(record.version for record in self.versions()[-5:]) or "none"
            raise RegistryError(f"There is no model {version}. The newest ones: {known}.")
        model = Model.read(self._versions / version / MODEL_FILE)
        if model.version != version:
            raise ModelRefused(f"The model {version} is refused: its file says that it is {model.version}.")
        return model

    def current(self) -> Record | None:
        """None until a version was promoted."""
        try:
            return Record(**json.loads(self._current.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OSError) as error:
            raise RegistryError(f"{self._current} can't be read ({error}): promote a version anew.") from None

    def promote(self, version: str, by: str, why: str, now: datetime) -> Model:
        """Makes a version current, if it can be read."""
        with self._locked():
            return self._promote(version, by, why, now)

    def roll_back(self, by: str, why: str, now: datetime) -> Model:
        """Makes current what was so before the present one."""
        with self._locked():
            current = self.current()
            earlier = [record.version for record in self.promotions()]
            while earlier and current is not None and earlier[-1] == current.version:
                earlier.pop()
            if current is None or not earlier:
                raise RegistryError("There is nothing to roll back to: no other model was current before.")
            return self._promote(earlier[-1], by, why, now)

    def promotions(self) -> list[Record]:
        """The newest last."""
        try:
            lines = self._promotions.read_text().splitlines()
        except FileNotFoundError:
            return []
        return [Record(**json.loads(line)) for line in lines]

    def _promote(self, version: str, by: str, why: str, now: datetime) -> Model:
        model = self.model(version)
        text = json.dumps(asdict(Record(version, by, why, now.isoformat())))
        with self._promotions.open("a") as opened:
            opened.write(f"{text}\n")
            opened.flush()
            os.fsync(opened.fileno())
        beside = self._current.with_name(f".current.{os.getpid()}")
        _write(beside, text)
        beside.replace(self._current)
        _sync(self._folder)
        return model

    def _record(self, version: str) -> Record:
        file = self._versions / version / RECORD_FILE
        try:
            return Record(**json.loads(file.read_text()))
        except (ValueError, TypeError, OSError) as error:
            raise RegistryError(f"{file} can't be read: {error}.") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def _write(file: Path, text: str) -> None:
    with file.open("w") as opened:
        opened.write(text)
        opened.flush()
        os.fsync(opened.fileno())


def _sync(folder: Path) -> None:
    """So that a rename in it outlives the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

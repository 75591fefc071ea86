"""Models in versions: each once and for good, and one of them current. Readers see the old current one or the new one,
never a part; writers take turns."""

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from ml.model import NAME, Model, ModelRefused

MODEL_FILE, RECORD_FILE, EVALUATION_FILE = "model.json", "record.json", "evaluation.json"


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
    """Below its folder: `versions/NAME/` with the model, the record of its making and its last evaluation,
    `current.json`, and `promotions.jsonl` with all that ever became current, the newest last."""

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
        names = sorted(entry.name for entry in self._versions.iterdir() if NAME.fullmatch(entry.name))
        return sorted((self._record(name) for name in names), key=lambda record: (record.at, record.version))

    def model(self, version: str) -> Model:
        if not NAME.fullmatch(version) or not (self._versions / version).is_dir():
            known = ", ".join(record.version for record in self.versions()[-5:]) or "none"
            raise RegistryError(f"There is no model {version}. The newest ones: {known}.")
        model = Model.read(self._versions / version / MODEL_FILE)
        if model.version != version:
            raise ModelRefused(f"The model {version} is refused: its file says that it is {model.version}.")
        return model

    def note_evaluation(self, version: str, evaluation: dict[str, Any]) -> None:
        """What was found of a version, in the place of what was found before."""
        self.model(version)
        _replace(self._versions / version / EVALUATION_FILE, json.dumps(evaluation))

    def evaluation(self, version: str) -> dict[str, Any] | None:
        """None where it was never evaluated."""
        try:
            found: dict[str, Any] = json.loads((self._versions / version / EVALUATION_FILE).read_text())
            return found
        except (FileNotFoundError, ValueError):
            return None

    def metrics(self) -> dict[str, dict[str, float]]:
        """Of every version that can be read, in the order of their making: those of its training and evaluation."""
        found = {}
        for record in self.versions():
            with contextlib.suppress(ModelRefused):
                evaluated = (self.evaluation(record.version) or {}).items()
                numbers = {name: float(value) for name, value in evaluated if isinstance(value, int | float)}
                found[record.version] = {**self.model(record.version).metrics, **numbers}
        return found

    def current(self) -> Record | None:
        """None until a version was promoted."""
        try:
            return Record(**json.loads(self._current.read_text()))
        except FileNotFoundError:
            return None
        except (ValueError, TypeError, OSError) as error:
            raise RegistryError(f"{self._current} can't be read ({error}): promote a version anew.") from None

    def current_or_none(self) -> Record | None:
        """None also where nobody can tell."""
        try:
            return self.current()
        except RegistryError:
            return None

    def promote(self, version: str, by: str, why: str, now: datetime) -> Model:
        """Makes a version current, if it can be read."""
        with self._locked():
            return self._promote(version, by, why, now)

    def promote_after(self, present: Record | None, version: str, by: str, why: str, now: datetime) -> Model:
        """The same, if what is current is still what it was when it was decided."""
        with self._locked():
            current = self.current_or_none()
            if current != present:
                told = f"{current.by} made {current.version} current" if current else "what was current is gone"
                raise RegistryError(f"{version} is not made current: meanwhile {told} ({current and current.why}).")
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
        """The newest last. Lines that were cut short when the machine went down are passed over."""
        try:
            lines = self._promotions.read_text().splitlines()
        except FileNotFoundError:
            return []
        found = []
        for line in lines:
            with contextlib.suppress(ValueError, TypeError):
                found.append(Record(**json.loads(line)))
        return found

    def _promote(self, version: str, by: str, why: str, now: datetime) -> Model:
        model = self.model(version)
        text = json.dumps(asdict(Record(version, by, why, now.isoformat())))
        _replace(self._current, text)
        with self._promotions.open("ab+") as opened:
            if opened.tell():
                opened.seek(-1, os.SEEK_END)
            cut_short = opened.read(1) not in (b"", b"\n")
            opened.write(("\n" if cut_short else "").encode() + text.encode() + b"\n")
            opened.flush()
            os.fsync(opened.fileno())
        return model

    def _record(self, version: str) -> Record:
        file = self._versions / version / RECORD_FILE
        try:
            return Record(**json.loads(file.read_text()))
        except (ValueError, TypeError, OSError) as error:
            return Record(version, "unknown", f"{file} can't be read: {error}", "")

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


def _replace(file: Path, text: str) -> None:
    beside = file.with_name(f".{file.stem}.{os.getpid()}")
    _write(beside, text)
    beside.replace(file)
    _sync(file.parent)


def _sync(folder: Path) -> None:
    """So that a rename in it outlives the machine."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

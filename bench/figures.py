"""What a benchmark found: figures with their bars, as JSON for programs and as lines for people."""

import os
import platform
import statistics
from dataclasses import asdict, dataclass

import psutil


@dataclass(frozen=True)
class Figure:
    value: float
    unit: str
    bar: float | None
    """None for a figure that only explains others."""
    ok: bool
    runs: list[float]

    @classmethod
    def at_most(cls, bar: float, runs: list[float], unit: str = "ratio") -> "Figure":
        """The median of the runs, which may not be above the bar."""
        return cls._of(runs, unit, bar, statistics.median(runs) <= bar)

    @classmethod
    def at_least(cls, bar: float, runs: list[float], unit: str = "ratio") -> "Figure":
        """The median of the runs, which may not be below the bar."""
        return cls._of(runs, unit, bar, statistics.median(runs) >= bar)

    @classmethod
    def plain(cls, runs: list[float], unit: str) -> "Figure":
        return cls._of(runs, unit, None, True)

    @classmethod
    def _of(cls, runs: list[float], unit: str, bar: float | None, ok: bool) -> "Figure":
        return cls(round(statistics.median(runs), 3), unit, bar, ok, [round(run, 3) for run in runs])

    def __str__(self) -> str:
        bar = "" if self.bar is None else f", bar {self.bar:g}"
        spread = f"{len(self.runs)} runs from {min(self.runs):g} to {max(self.runs):g}"
        return f"{self.value:g} {self.unit}{bar}, {spread}"


@dataclass(frozen=True)
class Result:
    bench: str
    figures: dict[str, Figure]

    @property
    def ok(self) -> bool:
        return all(figure.ok for figure in self.figures.values())

    def to_dict(self) -> dict[str, object]:
        figures = {name: asdict(figure) for name, figure in self.figures.items()}
        return {"bench": self.bench, "machine": machine(), "figures": figures}

    def lines(self) -> list[str]:
        return [
            f"{'ok  ' if figure.ok else 'FAIL'} {self.bench}.{name}: {figure}" for name, figure in self.figures.items()
        ]


def machine() -> dict[str, str | int | float]:
    return {
        "system": platform.platform(),
        "processor": platform.processor() or platform.machine(),
        "cores": os.cpu_count() or 0,
        "memory_gb": round(psutil.virtual_memory().total / 2**30, 1),
        "python": platform.python_version(),
    }

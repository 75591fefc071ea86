"""The model: data, never code. A JSON file with centroids, scaling and thresholds, checked whenever it is read."""

import itertools
import json
import math
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError, model_validator

FORMAT = 1
LARGEST_FILE = 2**20
MOST_CLUSTERS, MOST_FEATURES = 64, 16
MOST_EDGES = 99

Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,79}")
"""Of a version or a sample: it is also that of a file or folder."""
Name = Annotated[str, StringConstraints(pattern=f"^{NAME.pattern}$")]


class ModelRefused(Exception):
    """A model file that can't be used; the message names it and says why."""


class Cluster(BaseModel):
    """Distances are between scaled features."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    centroid: Annotated[list[Finite], Field(min_length=1, max_length=MOST_FEATURES)]
    threshold: Positive
    """A click of this cluster that is further away from its centroid is anomalous."""
    share: Share
    """Of the clicks that it was trained on."""


class Histogram(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    edges: Annotated[list[Finite], Field(min_length=1, max_length=MOST_EDGES)]
    """Between the bins, each edge belonging to the bin below it."""
    shares: list[Share]
    """Of all values in each bin."""

    @model_validator(mode="after")
    def _bins_fit(self) -> Self:
        if len(self.shares) != len(self.edges) + 1:
            raise ValueError(f"a histogram has {len(self.shares)} shares for {len(self.edges)} edges")
        if any(low >= high for low, high in itertools.pairwise(self.edges)):
            raise ValueError("edges of a histogram are not in their order")
        return self


class Training(BaseModel):
    """What the model was made of, so that it can be made again."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    table: str
    table_version: Annotated[int, Field(ge=0)]
    rows: Annotated[int, Field(ge=1)]
    since: str
    until: str
    seed: int
    sample_seed: int
    sample_rows: Annotated[int, Field(ge=1)]
    """How many clicks were asked for, those included that were held out."""
    contamination: Share
    clusters_tried: Annotated[list[int], Field(max_length=MOST_CLUSTERS)]


class Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    format: int
    version: Name
    feature_schema: Annotated[int, Field(ge=1)]
    features: Annotated[list[str], Field(min_length=1, max_length=MOST_FEATURES)]
    means: list[Finite]
    deviations: list[Positive]
    histograms: list[Histogram]
    """Of each feature in what it was trained on, by which drift is seen."""
    clusters: Annotated[list[Cluster], Field(min_length=1, max_length=MOST_CLUSTERS)]
    training: Training
    metrics: dict[str, Finite]

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        width = len(self.features)
        for name, found in (("means", self.means), ("deviations", self.deviations), ("histograms", self.histograms)):
            if len(found) != width:
                raise ValueError(f"{name} has {len(found)} entries for {width} features")
        for number, cluster in enumerate(self.clusters):
            if len(cluster.centroid) != width:
                raise ValueError(f"cluster {number} has {len(cluster.centroid)} numbers for {width} features")
        return self

    def to_json(self) -> str:
        return json.dumps(self.model_dump(), indent=2, allow_nan=False, sort_keys=True) + "\n"

    @classmethod
    def read(cls, file: Path) -> Self:
        try:
            with file.open("rb") as opened:
                text = opened.read(LARGEST_FILE + 1)
        except OSError as error:
            raise ModelRefused(f"The model {file} can't be read: {error.strerror}.") from None
        if len(text) > LARGEST_FILE:
            raise ModelRefused(f"The model {file} is refused: it is larger than {LARGEST_FILE} bytes.")
        return cls.parse(text, str(file))

    @classmethod
    def parse(cls, text: bytes, name: str) -> Self:
        """Unlike JSON itself it takes no NaN and no number beyond a double."""
        try:
            fields = json.loads(text, parse_constant=_no_constant)
        except (ValueError, RecursionError) as error:
            raise ModelRefused(f"The model {name} is refused: it is no JSON ({_short(error)}).") from None
        found = fields.get("format") if isinstance(fields, dict) else None
        if found != FORMAT:
            newer = isinstance(found, int) and found > FORMAT
            cure = (
                "it was written by a newer Tidewatch, which has to read it" if newer else f"its format is not {FORMAT}"
            )
            raise ModelRefused(f"The model {name} is refused: {cure}.")
        try:
            return cls.model_validate(fields, strict=True)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            told = f"{place}: {first['msg']}" if place else first["msg"]
            raise ModelRefused(f"The model {name} is refused: {told}.") from None


@dataclass(frozen=True)
class Verdict:
    cluster: int
    distance: float
    threshold: float

    @property
    def anomalous(self) -> bool:
        return self.distance > self.threshold


def judge(model: Model, features: list[float]) -> Verdict:
    """The plain reference of what scoring in SQL does; of clusters equally near, the first."""
    scaled = [(value - mean) / by for value, mean, by in zip(features, model.means, model.deviations, strict=True)]
    distances = [math.dist(scaled, cluster.centroid) for cluster in model.clusters]
    nearest = distances.index(min(distances))
    return Verdict(nearest, distances[nearest], model.clusters[nearest].threshold)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no number of JSON")


def _short(error: Exception) -> str:
    return str(error)[:120]

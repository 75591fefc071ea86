"""A model compiled into Spark's own expressions: no Python for a row."""

from itertools import pairwise

from pyspark.sql import DataFrame

from ml.features import CURRENT
from ml.model import Model, ModelRefused

SCALED = "scaled_page_load"


def check_fits(model: Model) -> None:
    """Raises where the model looks at other features than this code computes."""
    if (model.feature_schema, tuple(model.features)) != (CURRENT.version, CURRENT.names):
        raise ModelRefused(
            f"The model {model.version} is refused: it was trained on version {model.feature_schema} of the features "
            f"({', '.join(model.features)}); here is version {CURRENT.version} ({', '.join(CURRENT.names)}). Train one "
            "with these."
        )


def scored(clicks: DataFrame, model: Model) -> DataFrame:
    """Rows of silver/clicks with `cluster`, `distance`, `threshold` and `anomalous`, all null for one without a page
    load time. Of clusters equally near, the first; where only rounding tells which is nearer, either."""
    check_fits(model)
    (feature,), (mean,), (deviation,) = CURRENT.sql(), model.means, model.deviations
    # A step each: Spark would work out again what is used twice in one.
    scaled = clicks.selectExpr("*", f"({feature} - {_number(mean)}) / {_number(deviation)} AS {SCALED}")
    near = scaled.selectExpr("*", f"CASE WHEN {SCALED} IS NOT NULL THEN {_nearest(model)} END AS cluster")
    centroids = [cluster.centroid[0] for cluster in model.clusters]
    thresholds = [cluster.threshold for cluster in model.clusters]
    measured = near.selectExpr(
        "*", f"abs({SCALED} - {_of_cluster(centroids)}) AS distance", f"{_of_cluster(thresholds)} AS threshold"
    )
    return measured.selectExpr("*", "distance > threshold AS anomalous").drop(SCALED)


def _nearest(model: Model) -> str:
    """On a line: the points half-way between neighbouring centroids divide it."""
    first_at: dict[float, int] = {}
    for number, cluster in enumerate(model.clusters):
        first_at.setdefault(cluster.centroid[0], number)
    line = sorted(first_at.items())
    branches = [
        f"WHEN {SCALED} {'<=' if number < next_number else '<'} {_number((centroid + next_centroid) / 2)} THEN {number}"
        for (centroid, number), (next_centroid, next_number) in pairwise(line)
    ]
    return f"CASE {' '.join(branches)} ELSE {line[-1][1]} END" if branches else str(line[-1][1])


def _of_cluster(values: list[float]) -> str:
    return f"element_at(array({', '.join(map(_number, values))}), cluster + 1)"


def _number(value: float) -> str:
    return f"double('{value!r}')"

"""A model compiled into Spark's own expressions: no Python for a row."""

from ml.features import CURRENT
from ml.model import Model, ModelRefused


def check_fits(model: Model) -> None:
    """Raises where the model looks at other features than this code computes."""
    if (model.feature_schema, tuple(model.features)) != (CURRENT.version, CURRENT.names):
        raise ModelRefused(
            f"The model {model.version} is refused: it was trained on version {model.feature_schema} of the features "
            f"({', '.join(model.features)}); here is version {CURRENT.version} ({', '.join(CURRENT.names)}). Train one "
            "with these."
        )


def score(model: Model) -> str:
    """An expression over a row of silver/clicks: a struct of `cluster`, `distance` and `threshold`, null for a click
    without features. Of clusters equally near, the first."""
    check_fits(model)
    scaled = [
        f"({feature} - {_number(mean)}) / {_number(deviation)}"
        for feature, mean, deviation in zip(CURRENT.sql(), model.means, model.deviations, strict=True)
    ]
    clusters = [
        f"named_struct('distance', {_distance(scaled, cluster.centroid)}, 'cluster', {number}, "
        f"'threshold', {_number(cluster.threshold)})"
        for number, cluster in enumerate(model.clusters)
    ]
    present = " AND ".join(f"{feature} IS NOT NULL" for feature in CURRENT.sql())
    nearest = f"least({', '.join(clusters)})" if len(clusters) > 1 else clusters[0]
    return f"CASE WHEN {present} THEN {nearest} END"


def _distance(scaled: list[str], centroid: list[float]) -> str:
    if len(scaled) == 1:
        return f"abs({scaled[0]} - {_number(centroid[0])})"
    squares = (f"pow({feature} - {_number(at)}, 2)" for feature, at in zip(scaled, centroid, strict=True))
    return f"sqrt({' + '.join(squares)})"


def _number(value: float) -> str:
    return f"double('{value!r}')"

"""What the model looks at, in versions: how a click becomes numbers, in SQL for Spark and in numpy for training.

Version 1 has one feature, the page load time on a log scale.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
# Pages may load in no time at all.
LEAST_SECONDS = 0.001


@dataclass(frozen=True)
class FeatureSchema:
    version: int
    names: tuple[str, ...]

    def sql(self) -> list[str]:
        """An expression over a row of silver/clicks for each feature, null where it has none."""
        return [f"ln(page_loading_seconds + double('{LEAST_SECONDS}'))"]

    def of(self, page_loading_seconds: Numbers) -> Numbers:
        """A row for each click, a column for each feature."""
        return np.log(page_loading_seconds + LEAST_SECONDS)[:, None]


CURRENT = FeatureSchema(1, ("log_page_loading_seconds",))

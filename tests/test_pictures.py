"""Pictures are drawn of any model, also where all clicks are alike."""

import numpy as np

from ml.pictures import distribution, over_versions
from ml.training import train
from tests.test_training import SOURCE, plan, traffic

PNG = b"\x89PNG\r\n"


def test_pictures_are_pngs_and_show_what_differs() -> None:
    seconds = traffic(2_000, 1)[0]
    one, three = (train(seconds, plan(clusters=(count,)), SOURCE) for count in (1, 3))
    assert distribution(one, seconds).startswith(PNG)
    assert distribution(one, seconds) != distribution(three, seconds)
    assert distribution(train(np.ones(200), plan(clusters=(1,)), SOURCE), np.ones(200)).startswith(PNG)
    names = ("silhouette", "precision")
    versions = {f"m-{number}": {"silhouette": number / 20} for number in range(20)}
    assert over_versions(versions, names).startswith(PNG)
    assert over_versions({}, names).startswith(PNG)

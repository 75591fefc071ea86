"""Files that processes of different versions of the program share, while one of them already has new code."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any


def known_fields(kind: type[Any], told: Mapping[str, Any]) -> dict[str, Any]:
    """What this version knows of it. A newer one may tell more; what an older one leaves out has its default."""
    names = {each.name for each in fields(kind)}
    return {name: value for name, value in told.items() if name in names}

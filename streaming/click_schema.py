"""The schema that clicks are read with: what the code knows, and the fields that a setting promotes beyond it."""

from collections.abc import Mapping
from dataclasses import dataclass

VERSION = 1
"""Raised whenever the fields below change."""

STRING = "STRING"
DOUBLE = "DOUBLE"

SCALARS: Mapping[str, str] = {
    "eventType": STRING,
    "eventID": STRING,
    "productId": STRING,
    "page_loading_seconds": DOUBLE,
}
USER_AGENT: Mapping[str, str] = {"platform": STRING, "browser": STRING}
RELATED: Mapping[str, str] = {"relatedProductId": STRING, "relatedProductCategory": STRING}
ORDER = ("eventType", "eventID", "productId", "userAgent", "extraPayload", "page_loading_seconds")
"""In which producers write the fields. Those that write them in another order are read too, but not as fast."""


@dataclass(frozen=True)
class ClickSchema:
    """`promoted` has further top-level fields with their types: STRING, BIGINT, DOUBLE or BOOLEAN."""

    promoted: Mapping[str, str]

    @property
    def version(self) -> str:
        return "+".join([str(VERSION), *(f"{name}:{kind}" for name, kind in sorted(self.promoted.items()))])

    @property
    def scalars(self) -> dict[str, str]:
        """Top-level fields with their types, but those that have fields themselves."""
        return {**SCALARS, **self.promoted}

    @property
    def names(self) -> list[str]:
        """All top-level fields."""
        return [*self.scalars, "userAgent", "extraPayload"]

    @property
    def written_order(self) -> list[str]:
        """All top-level fields, as producers write them."""
        return [*ORDER, *self.promoted]

    @property
    def ddl(self) -> str:
        """As Spark wants it, with a column for what does not fit."""
        nested = {"userAgent": f"STRUCT<{_fields(USER_AGENT)}>", "extraPayload": f"ARRAY<STRUCT<{_fields(RELATED)}>>"}
        known = {**self.scalars, **nested}
        return ", ".join([*(f"`{name}` {known[name]}" for name in self.written_order), "_corrupt_record STRING"])


def _fields(fields: Mapping[str, str]) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in fields.items())

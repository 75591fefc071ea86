"""Clicks of a web shop: a few products take most of them, and pages load in heavy-tailed times."""

import itertools
import json
import math
import random
import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TypeVar

from hub import CLICKS
from hub.publisher import Record
from hub.traffic.planned import Planned

Choice = TypeVar("Choice")

PRODUCTS = 2_000
USERS = 20_000
CATEGORIES = ("shoes", "jackets", "bags", "watches", "tents", "stoves", "maps", "lamps")
EVENT_TYPES = {"view": 70, "click": 18, "add_to_cart": 8, "purchase": 4}
BROWSERS = {
    "windows": {"edge": 5, "chrome": 9, "firefox": 2},
    "macos": {"safari": 7, "chrome": 5, "firefox": 1},
    "ios": {"safari": 9, "chrome": 1},
    "android": {"chrome": 9, "firefox": 1},
    "linux": {"firefox": 5, "chrome": 4},
}
PLATFORMS = {"windows": 34, "macos": 14, "ios": 22, "android": 27, "linux": 3}
MEDIAN_LOAD_SECONDS = {"windows": 0.9, "macos": 0.7, "ios": 1.1, "android": 1.6, "linux": 0.8}
LOAD_SPREAD = 0.45
ANOMALY_SHARE = 0.01
RELATED_COUNTS = {0: 30, 1: 30, 2: 20, 3: 12, 4: 6, 5: 2}


class Clicks:
    """`rate` clicks a second, evenly spaced."""

    def __init__(self, rate: float, random_source: random.Random) -> None:
        self._rate = rate
        self._random = random_source
        self._sent = 0
        self._product_weights = list(itertools.accumulate(1 / rank**1.1 for rank in range(1, PRODUCTS + 1)))

    def due(self, elapsed: float, now: datetime) -> Iterator[Planned]:
        while self._sent < math.floor(elapsed * self._rate):
            self._sent += 1
            yield self._click()

    def _click(self) -> Planned:
        platform = self._pick(PLATFORMS)
        anomalous = self._random.random() < ANOMALY_SHARE
        seconds = self._random.lognormvariate(math.log(MEDIAN_LOAD_SECONDS[platform]), LOAD_SPREAD)
        if anomalous:
            seconds = seconds * self._random.uniform(8, 30) + 5
        event_id = str(uuid.UUID(int=self._random.getrandbits(128), version=4))
        body = {
            "eventType": self._pick(EVENT_TYPES),
            "eventID": event_id,
            "productId": self._product(),
            "userAgent": {"platform": platform, "browser": self._pick(BROWSERS[platform])},
            "extraPayload": [
                {"relatedProductId": self._product(), "relatedProductCategory": self._random.choice(CATEGORIES)}
                for _ in range(self._pick(RELATED_COUNTS))
            ],
            "page_loading_seconds": round(seconds, 3),
        }
        user = f"user-{self._random.randrange(USERS):05}"
        record = Record(CLICKS, user.encode(), json.dumps(body).encode())
        return Planned(record, about={"id": event_id, "anomaly": anomalous})

    def _product(self) -> str:
        rank = self._random.choices(range(PRODUCTS), cum_weights=self._product_weights)[0]
        return f"product-{rank:04}"

    def _pick(self, weights: dict[Choice, int]) -> Choice:
        return self._random.choices(list(weights), weights=list(weights.values()))[0]

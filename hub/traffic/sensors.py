"""Devices that report a frequency around their own normal, and now and then a negative one: a fault to alert on."""

import json
import math
import random
from collections.abc import Iterator
from datetime import datetime

from hub import SENSORS
from hub.publisher import Record
from hub.traffic.planned import Planned, timestamp

READINGS_A_DEVICE = 2.0
ANOMALY_SHARE = 0.005


class Sensors:
    """`rate` readings a second, evenly spaced over the devices."""

    def __init__(self, rate: float, random_source: random.Random) -> None:
        self._rate = rate
        self._random = random_source
        self._sent = 0
        devices = max(1, round(rate / READINGS_A_DEVICE))
        self._normal = [random_source.gauss(50, 4) for _ in range(devices)]

    def due(self, elapsed: float, now: datetime) -> Iterator[Planned]:
        while self._sent < math.floor(elapsed * self._rate):
            device = self._sent % len(self._normal)
            self._sent += 1
            anomalous = self._random.random() < ANOMALY_SHARE
            frequency = -abs(self._random.gauss(20, 8)) if anomalous else self._random.gauss(self._normal[device], 0.8)
            name = f"device-{device:04}"
            body = {"device_id": name, "sensor_freq": round(frequency, 4), "event_time": timestamp(now)}
            record = Record(SENSORS, name.encode(), json.dumps(body).encode())
            about = {"id": name, "anomaly": anomalous, "frequency": body["sensor_freq"], "at": body["event_time"]}
            yield Planned(record, about=about)

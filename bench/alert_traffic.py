"""Readings on the hub, some of them anomalous, and how long after each its alert could be read there."""

import json
import random
import threading
import time
from datetime import UTC, datetime

import numpy as np
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from hub import SENSOR_ALERTS, SENSORS
from hub.connection import HubConnection
from hub.topics import offset_ranges
from hub.traffic.planned import timestamp

READINGS_A_SECOND, ANOMALIES = 400, 0.1
MISSING_AFTER_SECONDS = 10.0
Place = tuple[int, int]


class Measured:
    def __init__(self, acknowledged: dict[Place, float], read: dict[Place, float]) -> None:
        """An alert may be there before the sender has heard of the acknowledgement."""
        self.seconds = [max(0.0, read[place] - at) for place, at in acknowledged.items() if place in read]
        self.missing = len(acknowledged.keys() - read.keys())

    def quantile(self, share: float) -> float:
        return float(np.quantile(self.seconds, share))


class Traffic:
    """Readings, and one who reads alerts, each in threads of its own: all times are of one clock."""

    def __init__(self, connection: HubConnection) -> None:
        self._connection = connection
        self._over = threading.Event()
        self._acknowledged: dict[Place, float] = {}
        self._read: dict[Place, float] = {}
        self._producer = Producer({**connection.client_options(), "acks": "all", "linger.ms": 0})
        self._threads = [
            threading.Thread(target=target, daemon=True) for target in (self._send, self._serve, self._listen)
        ]

    def __enter__(self) -> "Traffic":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def begin(self) -> None:
        self._acknowledged = {}

    def end(self) -> Measured:
        measured = dict(self._acknowledged)
        deadline = time.monotonic() + MISSING_AFTER_SECONDS
        while measured.keys() - self._read.keys() and time.monotonic() < deadline:
            time.sleep(0.1)
        return Measured(measured, dict(self._read))

    def _send(self) -> None:
        draw = random.Random(1)
        began, sent = time.monotonic(), 0
        while not self._over.is_set():
            while sent < (time.monotonic() - began) * READINGS_A_SECOND:
                sent += 1
                device = f"device-{sent % 200:04}"
                anomalous = draw.random() < ANOMALIES
                frequency = -20.0 if anomalous else 50.0
                body = {"device_id": device, "sensor_freq": frequency, "event_time": timestamp(datetime.now(UTC))}
                told = self._told if anomalous else None
                self._producer.produce(SENSORS, json.dumps(body), device, on_delivery=told)
            time.sleep(0.002)
        self._producer.flush(10)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        now = time.monotonic()
        partition, offset = message.partition(), message.offset()
        if error is None and partition is not None and offset is not None:
            self._acknowledged[partition, offset] = now

    def _serve(self) -> None:
        while not self._over.is_set():
            self._producer.poll(0.1)

    def _listen(self) -> None:
        consumer = Consumer({**self._connection.client_options(), "group.id": "bench", "enable.auto.commit": False})
        ends = {partition: end for partition, (_, end) in offset_ranges(self._connection, SENSOR_ALERTS).items()}
        consumer.assign([TopicPartition(SENSOR_ALERTS, partition, end) for partition, end in ends.items()])
        while not self._over.is_set():
            message = consumer.poll(0.1)
            if message is not None and message.error() is None:
                now = time.monotonic()
                alert = json.loads(message.value() or b"")
                self._read.setdefault((alert["partition"], alert["sequence_number"]), now)
        consumer.close()

"""Pulses: records of the system itself on every partition of a hub, several times a second.

The newest record of a partition is the clock of what is sent through it. Pulses keep that clock going when nobody else
sends, and stay behind any backlog, since they are in the same partition.
"""

import json
import logging
import threading
import time
from datetime import UTC, datetime

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from hub.connection import HubConnection
from hub.traffic.planned import timestamp

log = logging.getLogger("tidewatch")

# A pulse tells of now: one that the hub does not take at once is left out.
DELIVERY_SECONDS = 2
PARTITIONS_ASKED_SECONDS = 10.0
SAY_AGAIN_SECONDS = 60.0
FORBIDDEN = {KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED}


class Pulses:
    """Sends from `start` until `stop`, in a thread of its own, whatever the hub answers."""

    def __init__(self, connection: HubConnection, hub: str, seconds: float, sender: str) -> None:
        self._hub, self._seconds, self._sender = hub, seconds, sender
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulses", daemon=True)
        self._partitions, self._asked = 0, 0.0
        self._said: tuple[int, float] | None = None
        self.forbidden: str | None = None
        """Why the hub refuses pulses, where that does not end by itself."""
        self._producer = Producer(
            {
                **connection.client_options(),
                "acks": "1",
                "linger.ms": 0,
                "delivery.timeout.ms": DELIVERY_SECONDS * 1000,
                "request.timeout.ms": DELIVERY_SECONDS * 1000,
                "topic.metadata.refresh.interval.ms": round(PARTITIONS_ASKED_SECONDS * 1000),
                "log_level": 0,
            }
        )

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        due = 0.0
        while not self._stop.wait(due):
            began = time.monotonic()
            self.beat(began)
            due = max(0.0, self._seconds - (time.monotonic() - began))
        self._producer.flush(DELIVERY_SECONDS)

    def beat(self, now: float) -> None:
        """One pulse on every partition; `now` is of a clock that only goes on."""
        try:
            if now - self._asked >= PARTITIONS_ASKED_SECONDS or not self._partitions:
                self._ask(now)
            self._send()
        except KafkaException as error:
            self._say(error.args[0])
        except Exception:
            log.exception("Pulses can't be sent to %s; tried again", self._hub)

    def _ask(self, now: float) -> None:
        """What the hub has no answer for has no partitions either: those that are known stay."""
        topic = self._producer.list_topics(self._hub, timeout=DELIVERY_SECONDS).topics[self._hub]
        self._asked = now
        if topic.error is not None:
            self._say(topic.error)
        else:
            self._partitions = len(topic.partitions)

    def _send(self) -> None:
        body = pulse(self._sender, datetime.now(UTC))
        for partition in range(self._partitions):
            try:
                self._producer.produce(self._hub, body, partition=partition, on_delivery=self._told)
            except BufferError:
                pass  # what waits there is older
            except KafkaException as error:
                self._say(error.args[0])
        self._producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._say(error)

    def _say(self, error: KafkaError) -> None:
        """Not at every pulse."""
        if error.code() in FORBIDDEN:
            self.forbidden = error.str()
        now = time.monotonic()
        if self._said is None or self._said[0] != error.code() or now - self._said[1] > SAY_AGAIN_SECONDS:
            self._said = error.code(), now
            log.warning("The hub takes no pulse on %s (%s): no change is told meanwhile.", self._hub, error.str())


def pulse(sender: str, now: datetime) -> bytes:
    return json.dumps({"pulse": sender, "sent_at": timestamp(now)}).encode()

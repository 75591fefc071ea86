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
from hub.topics import HubUnreachable, partition_counts
from hub.traffic.planned import timestamp

log = logging.getLogger("tidewatch")

# A pulse tells of now: one that the hub does not take at once is left out.
DELIVERY_SECONDS = 2
PARTITIONS_ASKED_SECONDS = 10.0
SAY_AGAIN_SECONDS = 60.0


class Pulses:
    """Sends from `start` until `stop`, in a thread of its own, whatever the hub answers."""

    def __init__(self, connection: HubConnection, hub: str, seconds: float, sender: str) -> None:
        self._connection, self._hub, self._seconds, self._sender = connection, hub, seconds, sender
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulses", daemon=True)
        self._partitions, self._asked = 0, 0.0
        self._refused: tuple[str, float] | None = None
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
            try:
                if began - self._asked >= PARTITIONS_ASKED_SECONDS or not self._partitions:
                    self._partitions, self._asked = partition_counts(self._connection).get(self._hub, 0), began
                self._send()
            except HubUnreachable:
                pass  # others tell of it
            except Exception:
                log.exception("Pulses can't be sent to %s; tried again", self._hub)
            due = max(0.0, self._seconds - (time.monotonic() - began))
        self._producer.flush(DELIVERY_SECONDS)

    def _send(self) -> None:
        body = pulse(self._sender, datetime.now(UTC))
        for partition in range(self._partitions):
            try:
                self._producer.produce(self._hub, body, partition=partition, on_delivery=self._told)
            except (BufferError, KafkaException) as error:
                self._say(str(error))
        self._producer.poll(0)

    def _told(self, error: KafkaError | None, message: Message) -> None:
        if error is not None:
            self._say(error.str())

    def _say(self, reason: str) -> None:
        """Not at every pulse."""
        now = time.monotonic()
        if self._refused is None or self._refused[0] != reason or now - self._refused[1] > SAY_AGAIN_SECONDS:
            self._refused = reason, now
            log.warning(
                "The hub takes no pulse on %s (%s): silence of all machines can't be told meanwhile. Where this "
                "account may not send there, set TIDEWATCH_HEARTBEAT_PULSE_SECONDS=0.",
                self._hub,
                reason,
            )


def pulse(sender: str, now: datetime) -> bytes:
    return json.dumps({"pulse": sender, "sent_at": timestamp(now)}).encode()

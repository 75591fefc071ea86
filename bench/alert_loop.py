"""`python -m bench.alert_loop SERVERS SOURCE TARGET`: alerts by hand, with nothing but a consumer and a producer.

Without checks of what it reads, without a note of how far it is: what a hub and a client can do at best. Ends with its
input.
"""

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

from confluent_kafka import Consumer, Producer, TopicPartition


@contextlib.contextmanager
def alert_loop(servers: str, source: str, target: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", "bench.alert_loop", servers, source, target],
        stdin=subprocess.PIPE,
        env=dict(os.environ),
    )
    try:
        yield
    finally:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(30) == 0


def main() -> None:
    servers, source, target = sys.argv[1:]
    over = threading.Event()

    def wait_for_the_end() -> None:
        sys.stdin.read()
        over.set()

    threading.Thread(target=wait_for_the_end, daemon=True).start()
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "loop", "enable.auto.commit": False})
    partitions = consumer.list_topics(source).topics[source].partitions
    consumer.assign([TopicPartition(source, partition, -1) for partition in partitions])
    producer = Producer({"bootstrap.servers": servers, "acks": "all", "linger.ms": 0})
    while not over.is_set():
        message = consumer.poll(0.1)
        if message is None or message.error() is not None:
            continue
        reading = json.loads(message.value() or b"{}")
        if reading.get("sensor_freq", 0) < 0:
            place = {"partition": message.partition(), "sequence_number": message.offset()}
            alert = {**reading, **place, "raised_at": time.time()}
            producer.produce(target, json.dumps(alert), reading["device_id"])
        producer.poll(0)
    producer.flush(10)


if __name__ == "__main__":
    main()

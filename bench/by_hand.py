"""What a careful engineer would write without Spark: confluent-kafka, pyarrow and delta-rs, with bronze's content.

It reads each partition to where it ends now, and appends a commit for every so many records. It keeps no place to
resume from.
"""

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from confluent_kafka import Consumer, Message, TopicPartition
from deltalake import write_deltalake

from hub.connection import HubConnection

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
AT_ONCE = 10_000
WAIT_SECONDS = 10


def load_by_hand(connection: HubConnection, hub: str, table: Path, max_records: int) -> None:
    consumer = Consumer(
        {
            **connection.client_options(),
            "group.id": "by-hand",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "fetch.message.max.bytes": 10_000_000,
            "queued.max.messages.kbytes": 200_000,
        }
    )
    try:
        partitions = consumer.list_topics(hub).topics[hub].partitions
        ends = [consumer.get_watermark_offsets(TopicPartition(hub, number)) for number in partitions]
        left = sum(high - low for low, high in ends)
        consumer.assign([TopicPartition(hub, number, low) for number, (low, _) in zip(partitions, ends, strict=True)])
        while left:
            batches: list[pa.RecordBatch] = []
            wanted = min(left, max_records)
            left -= wanted
            while wanted:
                messages = consumer.consume(min(AT_ONCE, wanted), WAIT_SECONDS)
                assert messages, "The hub answers no more."
                assert not any(message.error() for message in messages)
                batches.append(_rows(messages))
                wanted -= len(messages)
            write_deltalake(str(table), pa.Table.from_batches(batches), mode="append", partition_by=["date"])
    finally:
        consumer.close()


def _rows(messages: list[Message]) -> pa.RecordBatch:
    enqueued = pa.array([message.timestamp()[1] for message in messages], pa.timestamp("ms", tz="UTC"))
    now = pa.scalar(datetime.now(UTC), pa.timestamp("us", tz="UTC"))
    return pa.RecordBatch.from_pydict(
        {
            "body": pa.array([message.value() for message in messages], pa.binary()),
            "key": pa.array([message.key() for message in messages], pa.binary()),
            "headers": pa.array([message.headers() for message in messages], HEADERS),
            "hub": pa.array([message.topic() for message in messages], pa.string()),
            "partition": pa.array([message.partition() for message in messages], pa.int32()),
            "sequence_number": pa.array([message.offset() for message in messages], pa.int64()),
            "enqueued_time": enqueued.cast(pa.timestamp("us", tz="UTC")),
            "ingest_time": pa.repeat(now, len(messages)),
            "date": pc.cast(enqueued, pa.date32()),
        }
    )

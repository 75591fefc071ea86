import socket
from pathlib import Path

import psutil
import pytest

from hub.broker import BrokerError, EmbeddedBroker, cluster_id
from hub.connection import HubConnection
from hub.publisher import KafkaPublisher, NotDelivered, Outcome, PublishError, Receipt, Record
from hub.topics import HubUnreachable, create_missing_topics, partition_counts
from processes.ports import free_port
from settings import HubSettings, Settings


def send(connection: HubConnection, *records: Record) -> list[Outcome]:
    outcomes: list[Outcome] = []
    with KafkaPublisher(connection) as publisher:
        for record in records:
            publisher.publish(record, outcomes.append)
    return outcomes


def test_a_cluster_id_never_looks_like_an_option() -> None:
    ids = {cluster_id() for _ in range(2000)}
    assert len(ids) == 2000
    assert not any(name.startswith("-") for name in ids)
    assert {len(name) for name in ids} == {22}


def test_topics_are_created_once_with_the_partitions_set(connection: HubConnection, topic: str) -> None:
    assert create_missing_topics(connection, HubSettings(partitions=3), [topic]) == [topic]
    assert create_missing_topics(connection, HubSettings(partitions=9), [topic]) == []
    assert partition_counts(connection)[topic] == 3


def test_each_record_gets_its_own_receipt_and_a_key_keeps_its_partition(connection: HubConnection, topic: str) -> None:
    create_missing_topics(connection, HubSettings(partitions=4), [topic])
    bodies = [b"{}", b"", None, b"\xff\x00", b"x" * 900_000]
    outcomes = send(connection, *(Record(topic, b"same", body, [("h", b"\xfe")]) for body in bodies))
    receipts = [outcome for outcome in outcomes if isinstance(outcome, Receipt)]
    assert [receipt.sequence_number for receipt in receipts] == [0, 1, 2, 3, 4]
    assert len({receipt.partition for receipt in receipts}) == 1
    assert all(receipt.enqueued_ms > 1_700_000_000_000 for receipt in receipts)


def test_a_record_that_no_hub_takes_is_an_error(connection: HubConnection, topic: str) -> None:
    create_missing_topics(connection, HubSettings(), [topic])
    with pytest.raises(PublishError, match="can't be sent"):
        send(connection, Record(topic, None, b"x" * 2_000_000))


def test_a_topic_that_does_not_exist_is_told_to_the_sender(connection: HubConnection, topic: str) -> None:
    (outcome,) = send(connection, Record(topic, None, b"x"))
    assert isinstance(outcome, NotDelivered) and outcome.hub == topic


def test_a_hub_that_does_not_answer_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hub.topics.ANSWER_SECONDS", 2)
    port = free_port()
    with pytest.raises(HubUnreachable, match=f"127.0.0.1:{port} does not answer"):
        partition_counts(HubConnection(f"127.0.0.1:{port}"))


def test_the_broker_listens_on_loopback_only(broker: EmbeddedBroker) -> None:
    assert broker.process is not None
    listening = [
        connection.laddr
        for connection in psutil.Process(broker.process.pid).net_connections()
        if connection.status == psutil.CONN_LISTEN
    ]
    assert listening and {address.ip.removeprefix("::ffff:") for address in listening} == {"127.0.0.1"}


def test_a_second_broker_on_the_same_folder_is_refused_by_name(broker: EmbeddedBroker) -> None:
    assert broker.process is not None
    second = EmbeddedBroker(broker.folder, Settings().jars, port=free_port(), controller_port=free_port())
    with pytest.raises(BrokerError, match=f"already runs on .* as process {broker.process.pid}"):
        second.start()


def test_a_taken_port_is_refused_by_name(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        broker = EmbeddedBroker(tmp_path, Settings().jars, port=port, controller_port=free_port())
        with pytest.raises(BrokerError, match=f"Port {port} .* set TIDEWATCH_HUB_PORT"):
            broker.start()


def test_missing_jars_are_told(tmp_path: Path) -> None:
    broker = EmbeddedBroker(tmp_path, tmp_path / "none", port=free_port(), controller_port=free_port())
    with pytest.raises(BrokerError, match="run `make setup`"):
        broker.start()

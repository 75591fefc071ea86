from hub.connection import HubConnection
from settings import HubSettings

SECRET = "Endpoint=sb://space.servicebus.windows.net/;SharedAccessKeyName=k;SharedAccessKey=canary+/=;EntityPath=x"


def test_a_connection_string_is_all_that_event_hubs_needs() -> None:
    connection = HubConnection.from_settings(HubSettings.model_validate({"connection_string": SECRET}))
    options = connection.spark_options()
    assert options["kafka.bootstrap.servers"] == "space.servicebus.windows.net:9093"
    assert options["kafka.security.protocol"] == "SASL_SSL"
    assert options["kafka.sasl.jaas.config"] == (
        "org.apache.kafka.common.security.plain.PlainLoginModule required "
        f'username="$ConnectionString" password="{SECRET}";'
    )
    assert connection.client_options()["sasl.password"] == SECRET
    assert int(connection.client_options()["message.max.bytes"]) < 1_046_528


def test_the_secret_is_in_no_representation() -> None:
    connection = HubConnection.from_settings(HubSettings.model_validate({"connection_string": SECRET}))
    assert "canary" not in f"{connection} {connection!r}"


def test_kafka_with_a_login() -> None:
    hub = HubSettings.model_validate(
        {
            "kafka_servers": "a:1,b:2",
            "kafka_security_protocol": "SASL_SSL",
            "kafka_sasl_mechanism": "SCRAM-SHA-512",
            "kafka_username": "me",
            "kafka_password": 'quo"te',
        }
    )
    options = HubConnection.from_settings(hub).spark_options()
    assert options["kafka.sasl.jaas.config"] == (
        'org.apache.kafka.common.security.scram.ScramLoginModule required username="me" password="quo\\"te";'
    )


def test_the_embedded_broker_needs_no_login() -> None:
    assert HubConnection.from_settings(HubSettings(port=19092)).client_options() == {
        "bootstrap.servers": "127.0.0.1:19092",
        "security.protocol": "PLAINTEXT",
    }

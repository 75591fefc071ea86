from pathlib import Path

import pytest

from lake.silver import clicks_table
from settings import Settings, SettingsError, load_settings
from settings.__main__ import settings_page
from settings.model import TAKEN_COLUMNS
from streaming.catalog import STREAMS

REPOSITORY = Path(__file__).parents[1]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_defaults_embed_the_hub_and_keep_everything_in_data(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.hub.embedded
    assert settings.home == tmp_path / "data"
    assert settings.lake_root == str(tmp_path / "data" / "lake")


@pytest.mark.parametrize(
    ("variable", "value", "said"),
    [
        ("TIDEWATCH_HUB_PARTITIONS", "0", "TIDEWATCH_HUB_PARTITIONS=0 is refused: Input should be greater"),
        ("TIDEWATCH_HUB_PARTITIONS", "many", "TIDEWATCH_HUB_PARTITIONS=many is refused: Input should be a valid int"),
        ("TIDEWATCH_HUB_KAFKA_SERVERS", "broker", "TIDEWATCH_HUB_KAFKA_SERVERS=broker is refused: write host:port"),
        ("TIDEWATCH_SPARK_MASTER", "laptop", "TIDEWATCH_SPARK_MASTER=laptop is refused: write local[N]"),
        ("TIDEWATCH_SPARK_DRIVER_MEMORY", "lots", "TIDEWATCH_SPARK_DRIVER_MEMORY=lots is refused: write megabytes"),
        ("TIDEWATCH_SPARK_CONF", "{oops", "TIDEWATCH_SPARK_CONF is refused: write a JSON object"),
        ("TIDEWATCH_SPARK_CONF", '{"spark.hadoop.fs.s3a.secret.key": "x"}', "put it into core-site.xml"),
        ("TIDEWATCH_SUPERVISOR_STREAMS", "bronze", "TIDEWATCH_SUPERVISOR_STREAMS is refused: write a JSON array"),
        ("TIDEWATCH_SUPERVISOR_STREAMS", '["gold"]', "Input should be 'bronze', 'silver', 'heartbeat' or 'sensors'"),
        ("TIDEWATCH_SILVER_PROMOTED_FIELDS", '{"a b": "STRING"}', "'a b' can't be a column"),
        ("TIDEWATCH_SILVER_PROMOTED_FIELDS", '{"EventId": "STRING"}', "has a column EventId already"),
        ("TIDEWATCH_SILVER_PROMOTED_FIELDS", '{"x": "STRING", "X": "STRING"}', "differ only in upper and lower case"),
        ("TIDEWATCH_SILVER_PROMOTED_FIELDS", '{"reason": "STRING"}', "has a column reason already"),
        ("TIDEWATCH_SILVER_PROMOTED_FIELDS", '{"x": "DATE"}', "Input should be 'STRING', 'BIGINT', 'DOUBLE' or"),
        ("TIDEWATCH_HUB_PORTS", "1", "TIDEWATCH_HUB_PORTS is not a setting: did you mean TIDEWATCH_HUB_PORT?"),
        ("TIDEWATCH_NONSENSE", "1", "TIDEWATCH_NONSENSE is not a setting"),
        ("TIDEWATCH_HUB_PORT", "9093", "TIDEWATCH_HUB_PORT and TIDEWATCH_HUB_CONTROLLER_PORT must differ"),
        ("TIDEWATCH_HUB_KAFKA_SECURITY_PROTOCOL", "SASL_SSL", "needs TIDEWATCH_HUB_KAFKA_USERNAME"),
    ],
)
def test_a_wrong_setting_is_refused_by_name(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, said: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert said in str(refused.value)


def test_the_settings_know_the_streams_of_the_catalog_and_the_columns_of_clicks() -> None:
    assert list(Settings().supervisor.streams) == list(STREAMS)
    assert {column.name.lower() for column in clicks_table({}).columns} <= TAKEN_COLUMNS


def test_all_wrong_settings_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWATCH_HUB_PARTITIONS", "0")
    monkeypatch.setenv("TIDEWATCH_BRONZE_MAX_RECORDS", "-1")
    with pytest.raises(SettingsError, match=r"(?s)HUB_PARTITIONS=0.*BRONZE_MAX_RECORDS=-1"):
        load_settings()


def test_a_secret_is_in_no_error_and_no_representation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEWATCH_HUB_CONNECTION_STRING", "SharedAccessKey=canary-secret")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "TIDEWATCH_HUB_CONNECTION_STRING names no namespace" in str(refused.value)
    assert "canary-secret" not in str(refused.value)
    monkeypatch.setenv("TIDEWATCH_HUB_CONNECTION_STRING", "Endpoint=sb://space.net/;SharedAccessKey=canary-secret")
    assert "canary-secret" not in repr(load_settings())
    monkeypatch.setenv("TIDEWATCH_HUB_KAFKA_SERVERS", "broker:9092")
    with pytest.raises(SettingsError) as refused:
        load_settings()
    assert "TIDEWATCH_HUB_CONNECTION_STRING or TIDEWATCH_HUB_KAFKA_SERVERS" in str(refused.value)
    assert "canary-secret" not in str(refused.value)


def test_the_env_file_counts_and_the_environment_wins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".env").write_text("TIDEWATCH_HUB_PARTITIONS=7\nTIDEWATCH_BRONZE_MAX_RECORDS=70\nOTHER=x\n")
    monkeypatch.setenv("TIDEWATCH_BRONZE_MAX_RECORDS", "71")
    settings = load_settings()
    assert (settings.hub.partitions, settings.bronze.max_records) == (7, 71)
    (tmp_path / ".env").write_text("TIDEWATCH_HUB_PARTITIONS=8\n")
    assert load_settings().hub.partitions == 8, "what is corrected in the file counts from then on"


def test_the_documentation_lists_every_setting_as_it_is() -> None:
    assert (REPOSITORY / "docs" / "settings.md").read_text() == settings_page()

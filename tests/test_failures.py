from pathlib import Path

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from hub.connection import HubConnection
from processes.ports import free_port
from streaming.failures import Failure, FailureClass, classify


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        ("Some data may have been lost because they are not available in Kafka", "SOURCE_DATA_LOST", "retention"),
        ("Caused by: org.apache.kafka.common.errors.SaslAuthenticationException: no", "SETTINGS", "refused the login"),
        ("Caused by: java.io.IOException: No space left on device", "SURROUNDINGS", "The disk is full"),
        ("java.io.FileNotFoundException: /lake/x (Permission denied)", "SURROUNDINGS", "can't be written"),
        ("org.apache.hadoop.fs.ParentNotDirectoryException: /lake", "SURROUNDINGS", "can't be written"),
        ("java.lang.IllegalStateException: Malformed log file offsets/7", "CHECKPOINT", "resume from its checkpoint"),
        ("org.apache.kafka.common.errors.TimeoutException: Timed out", "SURROUNDINGS", "The hub does not answer"),
        ("java.lang.OutOfMemoryError: Java heap space", "TRANSIENT", "TIDEWATCH_SPARK_DRIVER_MEMORY"),
        ("something nobody has seen", "TRANSIENT", "tried again by itself"),
    ],
)
def test_the_class_is_read_from_sparks_words(error: str, kind: str, said: str) -> None:
    failure = classify(error, "bronze", "clicks")
    assert failure.kind is FailureClass[kind]
    assert said in str(failure)
    assert str(failure).startswith("bronze, query clicks: ")


@pytest.mark.slow
def test_a_hub_that_went_away_is_no_damaged_checkpoint(spark: SparkSession, tmp_path: Path) -> None:
    """Spark's whole words for it have the checkpoint's path in them."""
    unanswered = {
        "kafka.default.api.timeout.ms": "1000",
        "kafka.request.timeout.ms": "900",
        "fetchOffset.numRetries": "1",
    }
    records = (
        spark.readStream.format("kafka")
        .options(**HubConnection(f"127.0.0.1:{free_port()}").spark_options(), **unanswered)
        .option("subscribe", "clicks")
        .load()
    )
    query = (
        records.writeStream.foreachBatch(lambda batch, number: None)
        .option("checkpointLocation", str(tmp_path / "CHECKPOINT_malformed"))
        .start()
    )
    with pytest.raises(StreamingQueryException) as failed:
        query.awaitTermination(60)
    assert "malformed" in str(failed.value)
    failure = classify(str(failed.value), "bronze", "clicks")
    assert failure.kind is FailureClass.SURROUNDINGS
    assert "The hub does not answer" in failure.what


def test_the_innermost_cause_is_told() -> None:
    trace = "StreamingQueryException: outer\n\tat x\nCaused by: A: middle\n\tat y\nCaused by: B: the reason\n\tat z"
    assert "B: the reason" in classify(trace, "bronze").what
    assert "outer" not in classify(trace, "bronze").what


def test_a_failure_is_left_in_a_file_and_read_back(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "failure.json"
    failure = Failure(FailureClass.CHECKPOINT, "what", "cure")
    failure.write(file)
    assert Failure.read(file) == failure
    file.write_text('{"kind": "CHECKPOINT", "what": "what", "cure": "cure", "a_field_of_another_version": 1}')
    assert Failure.read(file) == failure
    file.write_text("{")
    assert Failure.read(file) is None
    assert Failure.read(tmp_path / "none") is None


def test_exit_codes_are_neither_success_nor_pythons_own() -> None:
    assert {int(kind) for kind in FailureClass}.isdisjoint({0, 1, 2})


PYTHON = """[FOREACH_BATCH_USER_FUNCTION_ERROR] An error occurred: Return Message: Traceback (most recent call last):
  File "queries.py", line 40, in commit
    plan.commit(batch, number)
%s
\tat py4j.Protocol.getReturnValue(Protocol.java:476)
"""


def test_an_error_of_our_own_code_in_a_batch_is_told_in_its_words() -> None:
    assert "silver: OSError: no room" in classify(PYTHON % "OSError: no room", "silver").what
    java = "py4j.protocol.Py4JJavaError: An error occurred while calling o1.join.\n: a.b.UnresolvedException: odd"
    assert "silver: a.b.UnresolvedException: odd" in classify(PYTHON % java, "silver").what


# Words that tell a class when an error says them. Here they only stand in the code that was running.
NAMES = [
    ("KAFKA_DATA_LOSS", FailureClass.SOURCE_DATA_LOST),
    ("SaslAuthenticationException", FailureClass.SETTINGS),
    ("No space left on device", FailureClass.SURROUNDINGS),
    ("AccessControlException", FailureClass.SURROUNDINGS),
    ("LockTimeout", FailureClass.SURROUNDINGS),
    ("FilesRewritten", FailureClass.CHECKPOINT),
    ("_malformed", FailureClass.CHECKPOINT),
    ("StreamMetadata", FailureClass.CHECKPOINT),
    ("KafkaException", FailureClass.SURROUNDINGS),
    ("OutOfMemoryError", FailureClass.TRANSIENT),
]
FULL_HEAP = "java.lang.OutOfMemoryError: Java heap space"
RUNNING_CODE = """[STREAM_FAILED] Query [id = 1] failed: Return Message: Traceback (most recent call last):
  File "silver.py", line 40, in %(name)s
    self._quarantine.append(
    ~~~~~~~~~~~~~~~~~~~~~~~^
        %(name)s(read), number)
        ^^^^^
  File "commit.py", line 7, in commit
    raise %(name)s("%(name)s")
%(error)s
\tat org.apache.spark.%(call)s$.write(%(call)s.scala:90)
\t... 12 more
Caused by: %(error)s
\tat org.apache.spark.%(call)s.<init>(%(call)s.scala:9)
"""


@pytest.mark.parametrize("name", [name for name, _ in NAMES])
def test_the_code_that_was_running_does_not_tell_what_went_wrong(name: str) -> None:
    running = {"name": name, "call": name.replace(" ", "")}
    unknown = classify(RUNNING_CODE % {**running, "error": "ValueError: odd"}, "silver")
    assert unknown.what == "silver: ValueError: odd" and unknown.kind is FailureClass.TRANSIENT
    memory = classify(RUNNING_CODE % {**running, "error": FULL_HEAP}, "silver")
    assert memory.kind is FailureClass.TRANSIENT and "ran out of memory" in memory.what


@pytest.mark.parametrize(("name", "kind"), NAMES)
def test_the_error_itself_tells_it(name: str, kind: FailureClass) -> None:
    said = classify(RUNNING_CODE % {"name": "run", "call": "Run", "error": f"RuntimeError: {name}"}, "silver")
    assert said.kind is kind and "silver: RuntimeError" not in said.what


def test_metadata_that_spark_could_not_read_are_told_by_where_it_failed_unless_the_error_says_more() -> None:
    call = "\n\tat org.apache.spark.sql.execution.streaming.StreamMetadata$.read(StreamMetadata.scala:57)"
    assert classify("org.json4s.ParserUtil$ParseException: odd" + call, "silver").kind is FailureClass.CHECKPOINT
    assert classify(FULL_HEAP + call, "silver").kind is FailureClass.TRANSIENT

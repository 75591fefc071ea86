from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.checkpoints import CheckpointError, Generation, Offsets, QueryCheckpoints
from streaming.sources import EARLIEST, complete_offsets

NOW = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def checkpoints(spark: SparkSession, tmp_path: Path) -> QueryCheckpoints:
    return QueryCheckpoints(spark, str(tmp_path), "bronze", "clicks")


def write_log(checkpoints: QueryCheckpoints, generation: Generation, planned: int, committed: int) -> None:
    """Spark's own files, for batches 0 to `planned` of which those up to `committed` are committed."""
    folder = Path(checkpoints.location(generation))
    for kind, last in (("offsets", planned), ("commits", committed)):
        (folder / kind).mkdir(parents=True)
        for batch in range(last + 1):
            text = f'v1\n{{"batchWatermarkMs":0}}\n{{"clicks":{{"0":{batch * 10},"1":{batch}}}}}'
            (folder / kind / str(batch)).write_text(text if kind == "offsets" else 'v1\n{"nextBatchWatermarkMs":0}')


def test_the_first_generation_begins_at_the_hubs_start(checkpoints: QueryCheckpoints) -> None:
    assert checkpoints.latest() is None
    generation = checkpoints.begin(1, None, NOW)
    assert checkpoints.latest() == generation
    assert (generation.number, generation.plan, generation.starts_at) == (1, 1, None)


def test_no_two_generations_share_a_writer_not_even_in_a_folder_made_anew(spark: SparkSession, tmp_path: Path) -> None:
    writers = set()
    for folder in ("a", "b"):
        checkpoints = QueryCheckpoints(spark, str(tmp_path / folder), "bronze", "clicks")
        writers |= {checkpoints.begin(plan, None, NOW).writer for plan in (1, 2)}
    assert len(writers) == 4


@pytest.mark.parametrize(
    ("committed", "in_table", "end"),
    [
        (2, 2, {"clicks": {"0": 20, "1": 2}}),
        (2, 3, {"clicks": {"0": 30, "1": 3}}),  # killed between Delta's commit and Spark's
        (3, 3, {"clicks": {"0": 30, "1": 3}}),
    ],
)
def test_a_generation_ended_where_its_rows_did(
    checkpoints: QueryCheckpoints, committed: int, in_table: int, end: Offsets
) -> None:
    generation = checkpoints.begin(1, None, NOW)
    write_log(checkpoints, generation, planned=3, committed=committed)
    assert checkpoints.end_offsets(generation, in_table, "clicks") == end


def test_a_generation_without_a_batch_ends_where_it_began(checkpoints: QueryCheckpoints) -> None:
    start: Offsets = {"clicks": {"0": 7}}
    assert checkpoints.end_offsets(checkpoints.begin(1, start, NOW), None, "clicks") == start
    assert checkpoints.end_offsets(checkpoints.begin(2, None, NOW), None, "clicks") is None


def test_damage_is_named(checkpoints: QueryCheckpoints, tmp_path: Path) -> None:
    generation = checkpoints.begin(1, None, NOW)
    write_log(checkpoints, generation, planned=1, committed=1)
    Path(checkpoints.location(generation), "offsets", "1").write_text("v1\n")
    with pytest.raises(CheckpointError, match="offsets/1 is damaged: restore the checkpoint of bronze/clicks"):
        checkpoints.end_offsets(generation, None, "clicks")
    (file,) = tmp_path.rglob("generation.json")
    for checksum in tmp_path.rglob(".*.crc"):
        checksum.unlink()
    file.write_text('{"number": 1}')
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoints.latest()
    file.unlink()
    with pytest.raises(CheckpointError, match="can't be read"):
        checkpoints.latest()


def test_partitions_that_are_new_begin_at_their_start() -> None:
    assert complete_offsets({"clicks": {"0": 5}}, {"clicks": 3, "other": 1}) == {
        "clicks": {"0": 5, "1": EARLIEST, "2": EARLIEST}
    }

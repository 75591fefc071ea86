from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import pytest
from pyspark.sql import Row, SparkSession

from hub.ledger import digest
from lake.audit import Acknowledged, TableAudit, audit_bronze, places_in_bronze
from lake.commit import append_once, create_if_missing
from lake.tables import bronze_table
from orchestration.command.audit import Wait

TABLE = bronze_table("clicks")
NOW = datetime(2026, 1, 1, tzinfo=UTC)
Rows = list[tuple[int, int, bytes | None, int | None]]
"""Partition, sequence number, body, number in the ledger (None: somebody else's record)."""


def number_of(headers: list[tuple[str, bytes | None]]) -> int | None:
    return next((int(value) for name, value in headers if name == "n" and value), None)


def audited(spark: SparkSession, lake: Path, rows: Rows, acknowledged: list[Acknowledged]) -> TableAudit:
    create_if_missing(spark, TABLE, str(lake))
    frame = spark.createDataFrame(
        [
            (body, None, [Row(key="n", value=str(number).encode())] if number else None, "clicks", p, s, NOW, NOW, NOW)
            for p, s, body, number in rows
        ],
        ", ".join(f"{c.name} {c.type}" for c in TABLE.columns),
    )
    append_once(frame, TABLE, str(lake), "w", 0)
    return audit_bronze(TABLE, str(lake), acknowledged, digest, number_of, lambda number: number == 99)


def entry(number: int, partition: int, sequence_number: int, body: bytes | None) -> Acknowledged:
    return Acknowledged(number, partition, sequence_number, digest(body))


BOOKS = [entry(1, 0, 0, b"a"), entry(2, 0, 1, None), entry(3, 1, 0, b"")]
WHOLE: Rows = [(0, 0, b"a", 1), (0, 1, None, 2), (1, 0, b"", 3)]


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        (WHOLE, {}),
        ([*WHOLE, (5, 0, b"someone else", None)], {}),
        (WHOLE[:2], {"lost": 1}),
        ([*WHOLE, WHOLE[0], WHOLE[0]], {"duplicated": 2}),
        ([(0, 0, b"b", 1), *WHOLE[1:]], {"changed": 1}),
        ([WHOLE[0], (0, 1, b"", 2), WHOLE[2]], {"changed": 1}),  # null is not empty
        ([*WHOLE, (3, 3, b"ghost", 4)], {"unexplained": 1}),
        ([*WHOLE, (3, 3, b"sent", 99)], {"unconfirmed": 1}),
    ],
)
def test_the_audit_finds(spark: SparkSession, tmp_path: Path, rows: Rows, expected: dict[str, int]) -> None:
    audit = audited(spark, tmp_path, rows, BOOKS)
    figures = {name: value for name, value in asdict(audit).items() if isinstance(value, int) and value}
    assert figures == {"acknowledged": 3, **expected}
    assert audit.clean == (not set(expected) - {"unconfirmed"})
    assert bool(audit.examples) != audit.clean


def test_a_table_that_does_not_exist_has_lost_everything(tmp_path: Path) -> None:
    audit = audit_bronze(TABLE, str(tmp_path), BOOKS, digest, number_of, lambda number: False)
    assert (audit.lost, audit.clean) == (3, False)
    assert places_in_bronze(TABLE, str(tmp_path)) == set()


def test_what_a_batch_in_work_looks_like_is_looked_at_again_and_damage_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestration.command.audit.LOOK_SECONDS", 0.01)
    monkeypatch.setattr("orchestration.command.audit.BATCH_SECONDS", 0.5)
    looks = iter([TableAudit("silver", 1, lost=1), TableAudit("silver", 1, changed=2), TableAudit("silver", 1)])
    said: list[str] = []
    assert Wait(0, said.append).until_clean(lambda: next(looks), "it is done").clean
    assert said == ["Looking again, until it is done"]
    assert Wait(0, said.append).until_clean(lambda: TableAudit("silver", 1, lost=1), "it is done").lost == 1

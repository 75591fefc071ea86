"""The processor of heartbeats without a query: state that is kept between batches, and rows as Spark wants them."""

from datetime import UTC, datetime, timedelta

import numpy as np
import pandas as pd
from hypothesis import given
from pyspark.sql.streaming.tws_tester import TwsTester

from streaming.machine_health import Machines, Patience
from streaming.machine_processor import STATE, MachineProcessor, from_bytes, to_bytes
from tests.test_machine_health import PATIENCE, Batches, as_frame, histories, read

START = datetime(2026, 3, 1, tzinfo=UTC)
SECONDS = 1_000_000


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def records(*rows: tuple[str | None, int, float]) -> pd.DataFrame:
    micros = [(machine, partition, round(at(seconds).timestamp() * SECONDS)) for machine, partition, seconds in rows]
    return as_frame(micros)


def test_changes_are_told_as_rows_and_the_state_lives_from_batch_to_batch() -> None:
    tester = TwsTester(MachineProcessor(Patience(5 * SECONDS, 3600 * SECONDS), one_clock=True))
    before = datetime.now(UTC)
    first = tester.testInPandas(0, records(("press", 0, 0), ("lathe", 0, 0.5), ("press", 0, 1)))
    assert first[["machine_name", "previous", "status"]].to_numpy().tolist() == [
        ["press", None, "Initializing"],
        ["lathe", None, "Initializing"],
        ["press", "Initializing", "Healthy"],
    ]
    second = tester.testInPandas(0, records((None, 0, 5.5)))
    (row,) = second.to_dict("records")
    assert before <= row.pop("detected_at") <= datetime.now(UTC)
    assert row == {
        "machine_name": "lathe",
        "previous": "Initializing",
        "status": "Unhealthy",
        "since": at(5.5),
        "last_heartbeat": at(0.5),
    }
    assert tester.testInPandas(0, records((None, 0, 5.9))).empty
    stored = tester.peekValueState(STATE, 0)
    assert stored is not None and set(from_bytes(stored[0]).known["machine"]) == {"press", "lathe"}
    assert tester.peekValueState(STATE, 1) is None


@given(histories())
def test_what_is_stored_is_what_is_read_again(history: tuple[Batches, Batches]) -> None:
    machines, _ = read(history[1])
    again = from_bytes(to_bytes(machines))
    pd.testing.assert_frame_equal(again.known, machines.known)
    pd.testing.assert_frame_equal(again.waiting.reset_index(drop=True), machines.waiting)
    assert dict(again.clocks) == dict(machines.clocks)


def test_the_state_of_no_machine_can_be_stored_too() -> None:
    assert from_bytes(to_bytes(Machines.none())).clocks == {}


def test_a_state_with_single_heartbeats_can_be_read() -> None:
    """As it was stored before of runs only the ends were kept."""
    machines, _ = read([[("a", 0, 0), (None, 1, 0)], [("a", 0, 1), ("a", 0, 2)]])
    before = Machines(machines.known, machines.waiting.drop(columns="unbroken_since"), machines.clocks)
    pd.testing.assert_frame_equal(from_bytes(to_bytes(before)).waiting, machines.waiting)


def test_patience_is_that_of_the_processor() -> None:
    tester = TwsTester(MachineProcessor(PATIENCE, one_clock=True))
    told = tester.testInPandas(0, as_frame([("a", 0, 0), (None, 0, PATIENCE.retirement)]))
    assert told["status"].tolist() == ["Initializing", "Unhealthy", "Retired"]
    assert told["previous"].to_numpy(object).tolist() == [None, "Initializing", "Unhealthy"]
    assert np.all(told["detected_at"] >= told["since"])

"""The benchmark of heartbeats: what counts as sustained, how many silences it takes, and pauses that are none."""

import itertools
from collections import defaultdict
from typing import Any, cast

from confluent_kafka import Producer

from bench.beating import Machines
from bench.heartbeat import BY_DEFAULT, DETECTION, LEAST_SILENCES, PATIENCE, Detected, highest, result_of
from bench.heartbeat_parts import measured, parts
from lake.machine_audit import UNHEALTHY, story


def test_what_holds_no_level_has_none() -> None:
    assert highest((10, 20, 30), lambda level: level < 25, at_least=0) == 20
    assert highest((10, 20, 30), lambda level: False, at_least=0) == 0
    assert highest((10, 20, 30), lambda level: False, at_least=10) == 10


def test_few_silences_show_nothing() -> None:
    def silences(count: int) -> bool:
        detected = {level: [Detected([0.1] * (count // 2), 0, 0)] for level in DETECTION}
        sustained = {"ours": [40_000.0], "keyed": [500.0]}
        figures = result_of(sustained, detected, Detected([0.7, 0.9], 0, 0), {"state_calls_1k": [2.0]}).figures
        assert figures["detect_p50_s_1k_by_default"].value == 0.8 and figures["missed"].ok
        return figures["silences"].ok

    assert BY_DEFAULT in DETECTION
    assert silences(LEAST_SILENCES) and not silences(LEAST_SILENCES - 4)


class Beats:
    """In place of a producer: when each machine beat, in milliseconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self.of: dict[bytes, list[int]] = defaultdict(list)

    def produce(self, topic: str, body: bytes, key: bytes) -> None:
        self.of[key].append(round(self.now * 1000))


def test_pauses_are_silences_and_near_misses() -> None:
    """A machine is silent up to a beat more than it pauses: some pauses end just before the silence is due."""
    beats = Beats()
    machines = Machines(cast(Producer, cast(Any, beats)))
    machines.set(200, 0.02)
    for second in range(300):
        beats.now = float(second)
        machines.beat(0.0, 1.0, beats.now)
    gaps = [after - before for times in beats.of.values() for before, after in itertools.pairwise(times)]
    pauses = [gap for gap in gaps if gap > 1000]
    near = [gap for gap in pauses if 0 < PATIENCE.silence - gap <= 1000]
    told = [change for times in beats.of.values() for change in story(times, PATIENCE, times[-1])]
    silent = [change for change in told if change.status == UNHEALTHY]
    assert len(near) > 50 and len(silent) > 500
    assert len(silent) == sum(gap >= PATIENCE.silence for gap in pauses)


def test_a_step_takes_what_it_has_more_than_the_one_before() -> None:
    def batches(*in_tasks: int) -> list[dict[str, Any]]:
        """The last has no records."""
        times = {"latestOffset": 2, "queryPlanning": 20, "walCommit": 3, "commitOffsets": 4}
        return [
            {
                "numInputRows": rows,
                "durationMs": {**times, "addBatch": milliseconds, "triggerExecution": milliseconds + 30},
                "stateOperators": [{"commitTimeMs": 6}],
            }
            for rows, milliseconds in zip([5] * (len(in_tasks) - 1) + [0], in_tasks, strict=True)
        ]

    steps = {"reading": [batches(40, 50, 60, 1)], "python": [batches(150, 160, 170, 1)], "sink": [batches(200, 220, 1)]}
    found = parts({step: [measured(each) for each in rounds] for step, rounds in steps.items()})
    assert found == {
        "batch": [240],
        **{"ends": [2], "planning": [20], "offset_log": [3], "commit_log": [4]},
        **{"reading": [50], "python": [110], "sink": [50]},
        "state_commit": [6],
    }

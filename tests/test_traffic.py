import itertools
import json
import math
import random
from collections import Counter
from datetime import UTC, datetime
from statistics import median, quantiles

import pytest

from hub import CLICKS, HEARTBEATS, INPUT_HUBS, SENSORS
from hub.traffic.clicks import Clicks
from hub.traffic.faults import BAD_BYTES, BAD_FIELDS, Faults
from hub.traffic.heartbeats import Heartbeats
from hub.traffic.planned import Planned
from hub.traffic.run import sources
from hub.traffic.sensors import Sensors

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def body(planned: Planned) -> dict[str, object]:
    assert planned.record.body is not None
    fields: dict[str, object] = json.loads(planned.record.body)
    return fields


def test_the_same_seed_repeats_the_same_records() -> None:
    def records(seed: int) -> list[Planned]:
        source = random.Random(seed)
        return [planned for each in sources(INPUT_HUBS, 300, source) for planned in each.due(3, NOW)]

    assert records(1) == records(1) != records(2)


def test_the_rate_is_shared_and_kept_whatever_the_rhythm_of_the_calls() -> None:
    for hub in INPUT_HUBS:
        (source,) = sources([hub], 100, random.Random(1))
        count = sum(1 for tick in range(1, 251) for _ in source.due(tick * 0.04, NOW))
        assert 850 <= count <= 1000, hub  # heartbeats pause now and then
    shared = Counter(p.record.hub for each in sources(INPUT_HUBS, 300, random.Random(1)) for p in each.due(10, NOW))
    assert all(850 <= shared[hub] <= 1000 for hub in INPUT_HUBS)


def test_clicks_are_heavy_tailed_with_true_anomalies_and_popular_products() -> None:
    clicks = list(Clicks(20_000, random.Random(1)).due(1, NOW))
    normal = [float(str(body(p)["page_loading_seconds"])) for p in clicks if not p.about["anomaly"]]
    anomalous = [float(str(body(p)["page_loading_seconds"])) for p in clicks if p.about["anomaly"]]
    assert 0.008 < len(anomalous) / len(clicks) < 0.012
    assert min(anomalous) > quantiles(normal, n=1000)[-1]
    assert sum(normal) / len(normal) > 1.08 * median(normal)
    products = Counter(body(p)["productId"] for p in clicks)
    assert sum(count for _, count in products.most_common(20)) > 0.4 * len(clicks)
    assert len({p.about["id"] for p in clicks}) == len(clicks)
    assert all(p.record.key and p.record.key.startswith(b"user-") for p in clicks)


def test_machines_beat_once_a_second_pause_and_resume() -> None:
    beats: dict[str, list[float]] = {}
    source = Heartbeats(200, random.Random(1))
    for tick in range(1, 1201):
        for planned in source.due(tick / 10, NOW):
            beats.setdefault(planned.about["id"], []).append(tick / 10)
    gaps = [after - before for times in beats.values() for before, after in itertools.pairwise(times)]
    assert len(beats) == 200
    assert median(gaps) == pytest.approx(1.0, abs=0.11)
    pauses = [gap for gap in gaps if gap > 5]
    assert pauses and max(pauses) <= 41


def test_devices_report_negative_frequencies_now_and_then() -> None:
    readings = list(Sensors(10_000, random.Random(1)).due(1, NOW))
    for planned in readings:
        assert (float(str(body(planned)["sensor_freq"])) < 0) == planned.about["anomaly"]
    assert 0.002 < sum(p.about["anomaly"] for p in readings) / len(readings) < 0.009


@pytest.mark.parametrize("hub", [CLICKS, HEARTBEATS, SENSORS])
def test_faults_keep_their_shares_and_lose_nothing(hub: str) -> None:
    (source,) = sources([hub], 10_000, random.Random(1))
    planned = list(source.due(1, NOW))
    faults = Faults(random.Random(2), bad=0.1, duplicate=0.2, late=0.3)
    now = [actual for each in planned for actual in faults.apply(each, 0)]
    later = list(faults.due(math.inf))
    kinds = Counter(actual.kind.split(":")[0] for actual in now + later)
    size = len(planned)
    assert kinds["good"] + kinds["bad"] + kinds["late"] == size
    assert kinds["bad"] == pytest.approx(0.1 * size, rel=0.15)
    assert kinds["duplicate"] == pytest.approx(0.2 * size, rel=0.15)
    assert kinds["late"] == pytest.approx(0.3 * size, rel=0.15)
    bad = {actual.kind.removeprefix("bad:") for actual in now if actual.kind.startswith("bad")}
    assert bad == {*BAD_BYTES, *BAD_FIELDS[hub]}
    good_bodies = Counter(actual.record.body for actual in now if actual.kind == "good")
    assert all(good_bodies[actual.record.body] for actual in later if actual.kind == "duplicate")


def test_late_records_wait_for_their_time() -> None:
    (planned,) = Clicks(1, random.Random(1)).due(1, NOW)
    faults = Faults(random.Random(1), late=1)
    assert not list(faults.apply(planned, 100))
    assert not list(faults.due(100.9))
    assert [late.kind for late in faults.due(146)] == ["late"]
    assert not list(faults.due(math.inf))

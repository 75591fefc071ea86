"""`tidewatch status` while nothing runs: what a person stopped stays told so, all else waits for `tidewatch up`."""

import pytest

from orchestration.command.status import UNSUPERVISED, stream_states
from settings import Settings
from streaming.files import StreamFiles
from streaming.health import HealthState, StreamHealth

LONG_AGO = "2026-01-01T00:00:00+00:00"


@pytest.mark.parametrize("seen", HealthState)
def test_what_was_seen_long_ago_counts_only_for_what_a_person_stopped(settings: Settings, seen: HealthState) -> None:
    health = StreamHealth("sensors", seen, "as it was", LONG_AGO)
    health.write(StreamFiles(settings.run_folder, "sensors").health)
    (told,) = [state for state in stream_states(settings) if state.stream == "sensors"]
    if seen is HealthState.STOPPED:
        assert (told.state, told.note) == ("stopped by you", "as it was")
    else:
        assert told.state == UNSUPERVISED and "start `tidewatch up`" in (told.note or "")

"""Hours, or minutes, of deaths, double launches, hangs, idleness and load under the supervisor: `python -m bench.soak`.

Prints a line for each event and a report as JSON at the end; exits 1 unless every promise was kept.
"""

import argparse
import itertools
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from bench.drivers import batches_in, host_by_hand, stale_commits
from bench.recovery import BACK_SECONDS, BAR, VICTIMS, bare_start, recovery
from bench.rig import CODE_SERVER, DAEMON, FAULTS, STREAM, Rig, wait_for
from hub import HEARTBEATS
from settings import BronzeSettings
from streaming.catalog import STREAMS
from streaming.failures import FailureClass
from streaming.lease import is_held

SILENCE_SECONDS = 10.0
QUIET_SECONDS = 20.0
SEEN_SECONDS = 20.0
SATURATED = 0.95
"""Of the machine's cores, what a loaded system, its hub and the sender have to use together."""
SERVICES = {"code server": CODE_SERVER, "daemon": DAEMON}
"""Whose deaths leave the streams alone."""
AS_IN_USE = {
    "TIDEWATCH_SUPERVISOR_STREAMS": json.dumps(list(STREAMS)),
    "TIDEWATCH_BRONZE_TRIGGER_SECONDS": str(BronzeSettings().trigger_seconds),
    "TIDEWATCH_SILVER_ACTIVITY_TRIGGER_SECONDS": "20",
    "TIDEWATCH_SILVER_ANOMALY_TRIGGER_SECONDS": "20",
    "TIDEWATCH_SENSORS_ALERT_INTERVAL_SECONDS": "20",
}
"""All streams with the triggers of `make up`, but for those that would have a test wait for a first batch."""


class Soak:
    def __init__(self, folder: Path, seed: int, streams: Sequence[str]) -> None:
        """`streams` are those that are launched twice, hung, left idle and loaded; deaths hit all there are."""
        self.draw = random.Random(seed)
        self.folder = folder
        self.streams = streams
        self.report: dict[str, Any] = {}
        self.failures: list[str] = []

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)

    def expect(self, right: bool, what: str) -> None:
        if not right:
            self.failures.append(what)
            self.say(f"BROKEN: {what}")

    def rig(self, name: str, **settings: str) -> Rig:
        """Well after a second, so that each fault meets the first backoff, as it does in a long life; and with the same
        short limits for what must be seen as hung and for what must not."""
        (self.folder / name).mkdir()
        limits = {
            "TIDEWATCH_SUPERVISOR_STREAMS": json.dumps(self.streams),
            "TIDEWATCH_SUPERVISOR_HEALTHY_SECONDS": "1",
            "TIDEWATCH_SUPERVISOR_SILENCE_SECONDS": str(SILENCE_SECONDS),
            "TIDEWATCH_SUPERVISOR_QUIET_SECONDS": str(QUIET_SECONDS),
        }
        return Rig(self.folder / name / "home", **{**limits, **settings})

    def deaths(self, count: int) -> None:
        """Random kills over all streams in turn; what hurts a stream is timed against its bare starts, what does not
        must leave all of them alone."""
        recovered: dict[str, list[float]] = {stream: [] for stream in STREAMS}
        ledger = self.folder / "deaths.ledger"
        with self.rig("deaths", **AS_IN_USE) as rig:
            with rig.traffic(ledger):
                bare = {stream: [self._bare_start(rig, stream)] for stream in STREAMS}
                turns = itertools.cycle(STREAMS)
                for number in range(count):
                    for stream in STREAMS:
                        rig.wait_for_rows(stream)
                    victim = self.draw.choice([*VICTIMS, *SERVICES])
                    if victim in VICTIMS:
                        stream = next(turns)
                        recovered[stream].append(recovery(rig, VICTIMS[victim](rig, stream), stream))
                        self.say(f"death {number + 1}: {victim} of {stream}, back after {recovered[stream][-1]:.1f} s")
                    else:
                        self._unhurt(rig, victim)
                        self.say(f"death {number + 1}: {victim}, the streams went on")
                for stream in STREAMS:
                    bare[stream].append(self._bare_start(rig, stream))
            self._audit(rig, ledger)
        for stream, seconds in recovered.items():
            usual = statistics.median(bare[stream])
            ratios = [each / usual for each in seconds]
            self.expect(bool(ratios), f"{stream} was never killed: ask for more deaths")
            self.expect(max(ratios, default=0.0) <= BAR, f"a recovery of {stream} took {max(ratios):.2f} bare starts")
            self.report.setdefault("deaths", {"kills": count})[stream] = {
                "recovered_s": seconds,
                "bare_start_s": bare[stream],
                "recovery_vs_bare_start": ratios,
            }

    def _bare_start(self, rig: Rig, stream: str) -> float:
        """With all other streams beside it, as a stream that comes back has them."""
        for each in STREAMS:
            rig.wait_for_rows(each)
        seconds = bare_start(rig, stream)
        self.say(f"bare start of {stream}: {seconds:.1f} s")
        rig.launch(stream)
        rig.wait_for_rows(stream)
        return seconds

    def doubles(self, count: int) -> None:
        """Second drivers of every kind; only one ever writes."""
        ledger = self.folder / "doubles.ledger"
        kinds = itertools.cycle(
            (self._launch_twice, self._start_by_hand, self._stopped_and_replaced, self._declared_dead_and_continued)
        )
        turns = itertools.cycle(stream for stream in self.streams for _ in range(4))
        with (
            self.rig("doubles") as rig,
            rig.traffic(ledger),
        ):
            for number in range(count):
                kind, stream = next(kinds), next(turns)
                rig.wait_for_rows(stream)
                kind(rig, stream)
                self.say(f"double {number + 1}: {kind.__name__.strip('_')} of {stream}")
            for stream in self.streams:
                rig.wait_for_rows(stream)
            stale = [each for stream in self.streams for each in stale_commits(rig, stream)]
        self.expect(not stale, f"{len(stale)} commits came after a successor's: {stale[:3]}")
        self.report["doubles"] = {"launches": count, "stale_commits": len(stale)}
        with Rig(self.folder / "doubles" / "home", **rig.environment) as again:
            for stream in self.streams:
                again.wait_for_rows(stream)
            self._audit(again, ledger)

    def hangs(self, count: int) -> None:
        """Each seen soon after its deadline, and the stream back."""
        seen: list[float] = []
        ledger = self.folder / "hangs.ledger"
        kinds = itertools.cycle(("jvm", "host", "deadlock", "task"))
        turns = itertools.cycle(stream for stream in self.streams for _ in range(4))
        with self.rig("hangs", HANGS=str(self.folder), PYTHONPATH=str(FAULTS)) as rig:
            with rig.traffic(ledger):
                for number in range(count):
                    for stream in self.streams:
                        rig.wait_for_rows(stream)
                    kind, stream = next(kinds), next(turns)
                    seen.append(self._hang(rig, kind, stream))
                    self.say(f"hang {number + 1}: {kind} of {stream}, seen {seen[-1]:.1f} s after its deadline")
            for stream in self.streams:
                rig.wait_for_rows(stream)
            self._audit(rig, ledger)
        self.expect(max(seen) <= SEEN_SECONDS, f"a hang was seen {max(seen):.1f} s after its deadline")
        self.report["hangs"] = {"hangs": count, "seen_after_deadline_s": seen}

    def machines(self, count: int, minutes: int) -> None:
        """Machines that beat once a second with pauses, and a death a minute of the stream that judges them."""
        stream, ledger = "heartbeat", self.folder / "machines.ledger"
        faults = ("--bad-fraction", "0.01", "--duplicate-fraction", "0.01", "--late-fraction", "0.01")
        with self.rig("machines", TIDEWATCH_SUPERVISOR_STREAMS=json.dumps([stream])) as rig:
            rig.wait_for_rows(stream)
            with rig.traffic(ledger, count, HEARTBEATS, faults):
                end = time.monotonic() + minutes * 60
                for minute in range(minutes):
                    time.sleep(max(0.0, end - time.monotonic() - (minutes - minute - 0.5) * 60))
                    victim = self.draw.choice(list(VICTIMS))
                    seconds = recovery(rig, VICTIMS[victim](rig, stream), stream)
                    self.say(f"machines, minute {minute + 1}: {victim} killed, back after {seconds:.1f} s")
                time.sleep(max(0.0, end - time.monotonic()))
            told = self._audit(rig, ledger, wait=600)
            self.expect(told["acknowledged"] >= 0.8 * count * minutes * 60, "fewer heartbeats were sent than asked for")

    def quiet(self, minutes: float) -> None:
        """Nothing arrives: nothing is restarted."""
        with self.rig("quiet", TIDEWATCH_TRAFFIC_RATE="0.001") as rig:
            self._left_alone(rig, minutes, "idle")

    def load(self, minutes: float, rate: float) -> None:
        """More than the machine can do: nothing is restarted."""
        with self.rig("load") as rig:
            for stream in self.streams:
                rig.wait_for_rows(stream)
            ledger = self.folder / "load.ledger"
            with rig.traffic(ledger, rate):
                self._left_alone(rig, minutes, "loaded")
            busy, behind = self.report["loaded"]["cores_busy"], self.report["loaded"]["most_behind"]
            self.expect(behind > rate, f"the load was too little: never more than {behind:,} records behind")
            self.expect(busy >= SATURATED, f"the load was too little: it used {busy:.0%} of the cores' time")
            self._audit(rig, ledger, wait=1800)

    def _unhurt(self, rig: Rig, victim: str) -> None:
        before = {stream: rig.holder(stream) for stream in STREAMS}
        os.kill(rig.service(SERVICES[victim]), signal.SIGKILL)
        commits = {stream: len(rig.commits(stream)) for stream in STREAMS}
        time.sleep(20)  # until what was killed is back
        for stream, holder in before.items():
            told = f"{stream} was hurt when its {victim} was killed"
            self.expect(rig.holder(stream) == holder and holder.host.is_alive(), told)
            self.expect(is_held(rig.files(stream).lease), told)
            wait_for(f"{stream} goes on", partial(_has_more_commits, rig, stream, commits[stream]), BACK_SECONDS)

    def _launch_twice(self, rig: Rig, stream: str) -> None:
        before = rig.holder(stream)
        runs = len(rig.runs(stream))
        rig.launch(stream)
        wait_for(
            "the second is refused",
            lambda: len(rig.runs(stream)) > runs and rig.statuses(stream)[0] == "FAILURE",
            BACK_SECONDS,
        )
        self.expect(rig.holder(stream) == before, "a second launch disturbed the first")

    def _start_by_hand(self, rig: Rig, stream: str) -> None:
        before = rig.holder(stream)
        host = host_by_hand(rig, stream)
        code = host.wait(BACK_SECONDS)
        self.expect(code == FailureClass.LEASE_HELD, f"a second host ended with {code}")
        self.expect(rig.holder(stream) == before, "a second host disturbed the first")

    def _stopped_and_replaced(self, rig: Rig, stream: str) -> None:
        """The supervisor kills it first: nothing is left that could go on."""
        old = rig.holder(stream)
        assert old.jvm is not None
        os.killpg(old.host.pid, signal.SIGSTOP)
        wait_for("it is replaced", lambda: rig.took_over(old, stream), BACK_SECONDS)
        for process in (old.host, old.jvm):
            self.expect(not process.is_alive(), "a stopped driver was alive when its successor wrote")

    def _declared_dead_and_continued(self, rig: Rig, stream: str) -> None:
        """A driver that the supervisor does not kill, because a person started it: stopped, its lease taken away by
        that person, replaced, and then continued."""
        lease = rig.files(stream).lease
        rig.terminate(stream)
        wait_for("the stream is stopped", lambda: rig.statuses(stream)[0] == "CANCELED" and not is_held(lease), 90)
        commits = len(batches_in(rig, stream))
        host = host_by_hand(rig, stream)
        wait_for("the driver writes", lambda: len(batches_in(rig, stream)) > commits, BACK_SECONDS)
        old = rig.holder(stream)
        os.killpg(host.pid, signal.SIGSTOP)
        written = [batch for batch in batches_in(rig, stream) if batch.run is None]
        lease.rename(lease.with_suffix(".taken"))
        rig.launch(stream)
        wait_for("it is replaced", lambda: rig.took_over(old, stream), BACK_SECONDS)
        os.killpg(host.pid, signal.SIGCONT)
        try:
            self.expect(host.wait(60) != 0, "a stale driver ended as if nothing had happened")
        except subprocess.TimeoutExpired:
            self.expect(False, "a stale driver went on")
            os.killpg(host.pid, signal.SIGKILL)
            host.wait()
        now = [batch for batch in batches_in(rig, stream) if batch.run is None]
        self.expect(now == written, f"a stale driver committed {len(now) - len(written)} batches")

    def _hang(self, rig: Rig, kind: str, stream: str) -> float:
        """Seconds from the deadline until the supervisor acted."""
        old = rig.holder(stream)
        before = rig.counts(stream).get("restarts_hung", 0)
        in_batch = kind in ("deadlock", "task")
        progress = rig.progress(stream)
        assert progress is not None
        trigger = max(query.trigger_seconds for query in progress.queries.values())
        limit = QUIET_SECONDS + trigger if in_batch else SILENCE_SECONDS
        began = time.monotonic()
        if in_batch:
            (self.folder / kind).touch()
        else:
            os.kill(rig.jvm(stream) if kind == "jvm" else old.host.pid, signal.SIGSTOP)
        wait_for("the hang is seen", lambda: rig.counts(stream).get("restarts_hung", 0) > before, BACK_SECONDS)
        late = time.monotonic() - began - limit
        (self.folder / kind).unlink(missing_ok=True)
        wait_for("it is back", lambda: rig.took_over(old, stream), BACK_SECONDS)
        return late

    def _left_alone(self, rig: Rig, minutes: float, how: str) -> None:
        for stream in self.streams:
            wait_for(f"{stream} runs", partial(_runs, rig, stream), BACK_SECONDS)
        before = {stream: rig.holder(stream) for stream in self.streams}
        end, most_behind = time.monotonic() + minutes * 60, 0
        began, used_before = time.monotonic(), rig.cpu_seconds()
        while time.monotonic() < end:
            time.sleep(5)
            for stream, holder in before.items():
                if rig.holder(stream) != holder or not holder.host.is_alive():
                    self.expect(False, f"{stream}, {how}, was restarted")
                    wait_for(f"{stream} runs", partial(_runs, rig, stream), BACK_SECONDS)
                    before[stream] = rig.holder(stream)
            most_behind = max(most_behind, *(_lag(rig, stream) for stream in self.streams))
        restarts = sum(
            times
            for stream in self.streams
            for kind, times in rig.counts(stream).items()
            if kind.startswith("restarts")
        )
        self.expect(not restarts, f"the supervisor restarted what was {how} {restarts} times")
        busy = (rig.cpu_seconds() - used_before) / (time.monotonic() - began) / (os.cpu_count() or 1)
        self.report[how] = {
            "minutes": minutes,
            "restarts": restarts,
            "most_behind": most_behind,
            "cores_busy": busy,
        }
        told = f"{restarts} restarts, {most_behind:,} records behind at most, {busy:.0%} of the cores' time used"
        self.say(f"{how} for {minutes:g} minutes: {told}")

    def _audit(self, rig: Rig, ledger: Path, wait: float = 180) -> dict[str, Any]:
        audit = rig.audit(ledger, wait)
        told = {name: audit[name] for name in ("acknowledged", "lost", "duplicated", "changed", "unexplained")}
        self.report.setdefault("audits", {})[ledger.stem] = told
        self.expect(audit["clean"] and audit["ledger_closed"] and audit["acknowledged"] > 0, f"{ledger.stem}: {told}")
        self.say(f"audit of {ledger.stem}: {told}")
        return told


def _has_more_commits(rig: Rig, stream: str, before: int) -> bool:
    return len(rig.commits(stream)) > before


def _runs(rig: Rig, stream: str) -> bool:
    health = rig.health(stream)
    return rig.progress(stream) is not None and health is not None and health.state == "running"


def _lag(rig: Rig, stream: str) -> int:
    progress = rig.progress(stream)
    return sum(query.lag_records or 0 for query in progress.queries.values()) if progress else 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--deaths", type=int, default=30)
    parser.add_argument("--doubles", type=int, default=20)
    parser.add_argument("--hangs", type=int, default=20)
    parser.add_argument("--machines", type=int, default=10_000)
    parser.add_argument("--machine-minutes", type=int, default=5)
    parser.add_argument("--quiet-minutes", type=float, default=20)
    parser.add_argument("--load-minutes", type=float, default=20)
    parser.add_argument("--load-rate", type=float, default=20_000)
    parser.add_argument("--streams", nargs="+", choices=STREAMS, default=[STREAM])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidewatch-soak-") as folder:
        soak = Soak(Path(folder), chosen.seed, chosen.streams)
        phases: list[tuple[float, Callable[[], None]]] = [
            (chosen.deaths, lambda: soak.deaths(chosen.deaths)),
            (chosen.doubles, lambda: soak.doubles(chosen.doubles)),
            (chosen.hangs, lambda: soak.hangs(chosen.hangs)),
            (
                chosen.machines * chosen.machine_minutes,
                lambda: soak.machines(chosen.machines, chosen.machine_minutes),
            ),
            (chosen.quiet_minutes, lambda: soak.quiet(chosen.quiet_minutes)),
            (chosen.load_minutes, lambda: soak.load(chosen.load_minutes, chosen.load_rate)),
        ]
        for wanted, phase in phases:
            if wanted:
                phase()
    report = {**soak.report, "broken": soak.failures}
    print(json.dumps(report, indent=2))
    if chosen.json:
        chosen.json.write_text(json.dumps(report, indent=2))
    return 1 if soak.failures else 0


if __name__ == "__main__":
    sys.exit(main())

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
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.recovery import BACK_SECONDS, BAR, VICTIMS, bare_start, recovery
from bench.rig import CODE_SERVER, DAEMON, FAULTS, STREAM, Rig, wait_for
from hub import HEARTBEATS
from streaming.catalog import STREAMS
from streaming.failures import FailureClass

SILENCE_SECONDS = 10.0
QUIET_SECONDS = 20.0
SEEN_SECONDS = 20.0
LONGEST_RECOVERY_SECONDS = 90.0
STEADY = {
    "TIDEWATCH_BRONZE_TRIGGER_SECONDS": "5",
    "TIDEWATCH_SILVER_TRIGGER_SECONDS": "5",
    "TIDEWATCH_HEARTBEAT_TABLE_TRIGGER_SECONDS": "5",
    "TIDEWATCH_SENSORS_TRIGGER_SECONDS": "5",
    "TIDEWATCH_SENSORS_ALERT_INTERVAL_SECONDS": "10",
}
"""So that all streams together leave the machine some time, as they do in use: starts are what is measured."""


class Soak:
    def __init__(self, folder: Path, seed: int) -> None:
        self.draw = random.Random(seed)
        self.folder = folder
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
            "TIDEWATCH_SUPERVISOR_HEALTHY_SECONDS": "1",
            "TIDEWATCH_SUPERVISOR_SILENCE_SECONDS": str(SILENCE_SECONDS),
            "TIDEWATCH_SUPERVISOR_QUIET_SECONDS": str(QUIET_SECONDS),
        }
        return Rig(self.folder / name / "home", **limits, **settings)

    def deaths(self, count: int) -> None:
        """Random kills over all streams; what hurts a stream is timed against its bare starts, what does not must leave
        all of them alone."""
        recovered: dict[str, list[float]] = {stream: [] for stream in STREAMS}
        ledger = self.folder / "deaths.ledger"
        with self.rig("deaths", TIDEWATCH_SUPERVISOR_STREAMS=json.dumps(list(STREAMS)), **STEADY) as rig:
            with rig.traffic(ledger):
                bare = {stream: self._bare_starts(rig, stream) for stream in STREAMS}
                for number in range(count):
                    for stream in STREAMS:
                        rig.wait_for_rows(stream)
                    victim = self.draw.choice([*VICTIMS, "code server", "daemon"])
                    if victim in VICTIMS:
                        stream = self.draw.choice(list(STREAMS))
                        recovered[stream].append(recovery(rig, VICTIMS[victim](rig, stream), stream))
                        self.say(f"death {number + 1}: {victim} of {stream}, back after {recovered[stream][-1]:.1f} s")
                    else:
                        self._unhurt(rig, victim)
                        self.say(f"death {number + 1}: {victim}, the streams went on")
            for stream in STREAMS:
                rig.wait_for_rows(stream)
            self._audit(rig, ledger)
        for stream, seconds in recovered.items():
            ratio = statistics.median(seconds) / statistics.median(bare[stream]) if seconds else 0.0
            self.expect(ratio <= BAR, f"recovery of {stream} took {ratio:.2f} times a bare start")
            longest = max(seconds, default=0.0)
            self.expect(longest <= LONGEST_RECOVERY_SECONDS, f"one recovery of {stream} took {longest:.0f} s")
            self.report.setdefault("deaths", {"kills": count})[stream] = {
                "recovered_s": seconds,
                "bare_start_s": bare[stream],
                "recovery_vs_bare_start": ratio,
            }

    def _bare_starts(self, rig: Rig, stream: str, count: int = 3) -> list[float]:
        """With all other streams beside it, as a stream that comes back has them."""
        for each in STREAMS:
            rig.wait_for_rows(each)
        found = []
        for _ in range(count):
            found.append(bare_start(rig, stream))
            rig.launch(stream)
            rig.wait_for_rows(stream)
        self.say(f"bare starts of {stream}: {', '.join(f'{seconds:.1f}' for seconds in found)} s")
        return found

    def doubles(self, count: int) -> None:
        """Second drivers of every kind; only one ever writes."""
        ledger = self.folder / "doubles.ledger"
        kinds = itertools.cycle((self._launch_twice, self._start_by_hand, self._stopped_and_continued))
        with (
            self.rig("doubles") as rig,
            rig.traffic(ledger),
        ):
            for number in range(count):
                rig.wait_for_rows()
                kind = next(kinds)
                kind(rig)
                self.say(f"double {number + 1}: {kind.__name__.strip('_')}")
            rig.wait_for_rows()
            stale = self._commits_after_a_successor(rig)
        with_stale = len(stale)
        self.expect(not stale, f"{with_stale} commits came after a successor's")
        self.report["doubles"] = {"launches": count, "stale_commits": with_stale}
        with Rig(self.folder / "doubles" / "home", **rig.environment) as again:
            again.wait_for_rows()
            self._audit(again, ledger)

    def hangs(self, count: int) -> None:
        """Each seen soon after its deadline, and the stream back."""
        seen: list[float] = []
        ledger = self.folder / "hangs.ledger"
        kinds = itertools.cycle(("jvm", "host", "deadlock", "task"))
        with self.rig("hangs", HANGS=str(self.folder), PYTHONPATH=str(FAULTS)) as rig:
            rig.wait_for_rows()
            with rig.traffic(ledger):
                for number in range(count):
                    rig.wait_for_rows()
                    kind = next(kinds)
                    seen.append(self._hang(rig, kind))
                    self.say(f"hang {number + 1}: {kind}, seen {seen[-1]:.1f} s after its deadline")
            rig.wait_for_rows()
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
            self._audit(rig, ledger, wait=600)

    def quiet(self, minutes: float) -> None:
        """Nothing arrives: nothing is restarted."""
        with self.rig("quiet", TIDEWATCH_TRAFFIC_RATE="0.001") as rig:
            self._left_alone(rig, minutes, "idle")

    def load(self, minutes: float, rate: float) -> None:
        """More than the machine can do: nothing is restarted."""
        with self.rig("load") as rig:
            rig.wait_for_rows()
            ledger = self.folder / "load.ledger"
            with rig.traffic(ledger, rate):
                self._left_alone(rig, minutes, "loaded")
            self._audit(rig, ledger, wait=1800)

    def _unhurt(self, rig: Rig, victim: str) -> None:
        before = {stream: rig.holder(stream) for stream in STREAMS}
        os.kill(rig.service({"code server": CODE_SERVER, "daemon": DAEMON}[victim]), signal.SIGKILL)
        commits = len(rig.commits())
        wait_for("the streams go on", lambda: len(rig.commits()) > commits + 3, 60)
        for stream, holder in before.items():
            self.expect(rig.holder(stream) == holder, f"{stream} was restarted when its {victim} was killed")
        time.sleep(20)  # until what was killed is back

    def _launch_twice(self, rig: Rig) -> None:
        before = rig.holder()
        runs = len(rig.runs())
        rig.launch()
        wait_for("the second is refused", lambda: len(rig.runs()) > runs and rig.statuses()[0] == "FAILURE", 90)
        self.expect(rig.holder() == before, "a second launch disturbed the first")

    def _start_by_hand(self, rig: Rig) -> None:
        before = rig.holder()
        done = subprocess.run(
            [sys.executable, "-m", "streaming", STREAM],
            env={**os.environ, **rig.environment},
            capture_output=True,
            timeout=60,
            check=False,
        )
        self.expect(done.returncode == FailureClass.LEASE_HELD, f"a second host ended with {done.returncode}")
        self.expect(rig.holder() == before, "a second host disturbed the first")

    def _stopped_and_continued(self, rig: Rig) -> None:
        old = rig.holder()
        assert old.jvm is not None
        os.killpg(old.host.pid, signal.SIGSTOP)
        wait_for("it is replaced", lambda: rig.took_over(old), BACK_SECONDS)
        for process in (old.host, old.jvm):
            self.expect(not process.is_alive(), "a stopped driver was alive when its successor wrote")
            if process.is_alive():
                os.kill(process.pid, signal.SIGCONT)

    def _hang(self, rig: Rig, kind: str) -> float:
        """Seconds from the deadline until the supervisor acted."""
        old = rig.holder()
        before = rig.counts().get("restarts_hung", 0)
        in_batch = kind in ("deadlock", "task")
        limit = QUIET_SECONDS + 1 if in_batch else SILENCE_SECONDS
        began = time.monotonic()
        if in_batch:
            (self.folder / kind).touch()
        else:
            os.kill(rig.jvm() if kind == "jvm" else old.host.pid, signal.SIGSTOP)
        wait_for("the hang is seen", lambda: rig.counts().get("restarts_hung", 0) > before, BACK_SECONDS)
        late = time.monotonic() - began - limit
        (self.folder / kind).unlink(missing_ok=True)
        wait_for("it is back", lambda: rig.took_over(old), BACK_SECONDS)
        return late

    def _left_alone(self, rig: Rig, minutes: float, how: str) -> None:
        wait_for("the stream runs", lambda: rig.progress() is not None and _runs(rig), 180)
        before = rig.holder()
        end = time.monotonic() + minutes * 60
        while time.monotonic() < end:
            time.sleep(5)
            self.expect(rig.holder() == before, f"an {how} stream was restarted")
            before = rig.holder()
        restarts = sum(count for kind, count in rig.counts().items() if kind.startswith("restarts"))
        self.report[how] = {"minutes": minutes, "restarts": restarts, "lag": _lag(rig)}
        self.say(f"{how} for {minutes:g} minutes: {restarts} restarts")

    def _audit(self, rig: Rig, ledger: Path, wait: float = 180) -> None:
        audit = rig.audit(ledger, wait)
        told = {name: audit[name] for name in ("acknowledged", "lost", "duplicated", "changed", "unexplained")}
        self.report.setdefault("audits", {})[ledger.stem] = told
        self.expect(audit["clean"] and audit["ledger_closed"] and audit["acknowledged"] > 0, f"{ledger.stem}: {told}")
        self.say(f"audit of {ledger.stem}: {told}")

    def _commits_after_a_successor(self, rig: Rig) -> list[str]:
        found = []
        for _, commits in itertools.groupby(rig.commits(), key=lambda commit: commit[0]):
            runs = [run for run, _ in itertools.groupby(run for _, run, _ in commits)]
            found += [run for run in set(runs) if runs.count(run) > 1]
        return found


def _runs(rig: Rig) -> bool:
    health = rig.health()
    return health is not None and health.state == "running"


def _lag(rig: Rig) -> int:
    progress = rig.progress()
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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="tidewatch-soak-") as folder:
        soak = Soak(Path(folder), chosen.seed)
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

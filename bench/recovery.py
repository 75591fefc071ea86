"""From the death of a stream to the first commit of the next run, against a bare start to its first commit."""

import os
import random
import signal
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from bench.drivers import host_by_hand
from bench.figures import Figure, Result
from bench.rig import STREAM, Rig, wait_for
from processes.child import end_group
from processes.identity import ProcessIdentity
from streaming.lease import is_held

BAR = 2.5
BACK_SECONDS = 180
VICTIMS: dict[str, Callable[[Rig, str], int]] = {
    "worker": Rig.worker,
    "host": lambda rig, stream: rig.holder(stream).host.pid,
    "jvm": Rig.jvm,
}


def measure(runs: int, say: Callable[[str], None], seed: int = 1) -> Result:
    """Bare starts and deaths in turn, each death of a process of the run that is drawn by the seed."""
    draw = random.Random(seed)
    bare: list[float] = []
    recovered: list[float] = []
    with tempfile.TemporaryDirectory(prefix="tidewatch-bench-") as folder:
        home, ledger = Path(folder, "home"), Path(folder, "ledger")
        # The demo traffic and the ledger's together keep every batch small and every trigger busy.
        with Rig(home) as rig:
            rig.wait_for_rows()
            with rig.traffic(ledger):
                for number in range(runs):
                    bare.append(bare_start(rig))
                    rig.launch()
                    rig.wait_for_rows()
                    victim = draw.choice(sorted(VICTIMS))
                    recovered.append(recovery(rig, VICTIMS[victim](rig, STREAM)))
                    rig.wait_for_rows()
                    told = f"bare start {bare[-1]:.1f} s, after the death of its {victim} {recovered[-1]:.1f} s"
                    say(f"{number + 1}: {told}")
            audit = rig.audit(ledger)
    lost = audit["lost"] + audit["duplicated"] + audit["changed"] + audit["unexplained"]
    ratios = [after / before for after, before in zip(recovered, bare, strict=True)]
    return Result(
        "recovery",
        {
            "recovery_vs_bare_start": Figure.at_most(BAR, ratios),
            "bare_start_s": Figure.plain(bare, "s"),
            "recovery_s": Figure.plain(recovered, "s"),
            "lost_or_duplicated": Figure.at_most(0, [float(lost)], "records"),
        },
    )


def bare_start(rig: Rig, stream: str = STREAM) -> float:
    """Seconds from the start of a host by hand, on a stream that was stopped, to its first commit."""
    lease = rig.files(stream).lease
    rig.terminate(stream)
    wait_for("the stream is stopped", lambda: rig.statuses(stream)[0] == "CANCELED" and not is_held(lease), 90)
    began = time.time()
    known = _commits(rig, stream)
    host = host_by_hand(rig, stream)
    identity = ProcessIdentity.of(host.pid)
    assert identity is not None
    try:
        wait_for("a bare start commits", lambda: bool(_commits(rig, stream).keys() - known.keys()), BACK_SECONDS)
        found = _commits(rig, stream)
        return min(found[file] for file in found.keys() - known.keys()) - began
    finally:
        end_group(identity, grace_seconds=60)
        host.wait()
        wait_for("the lease is free", lambda: not is_held(lease), 30)


def recovery(rig: Rig, victim: int, stream: str = STREAM) -> float:
    """Seconds from the death of a process of the stream to the first commit of the next run."""
    old = rig.holder(stream)
    died = time.time()
    os.kill(victim, signal.SIGKILL)
    wait_for("another run commits", lambda: rig.took_over(old, stream), BACK_SECONDS)
    new = rig.holder(stream).run_id
    return min(at for _, run, at in rig.commits(stream) if run == new) - died


def _commits(rig: Rig, stream: str) -> dict[Path, float]:
    """The commits of all tables of the stream, and when each was made."""
    files = (file for files in rig.commit_files(stream).values() for file in files)
    return {commit: commit.stat().st_mtime for commit in files}

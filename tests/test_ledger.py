import json
import os
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from hub.ledger import LedgerError, LedgerWriter, digest, read_ledger
from hub.publisher import NotDelivered, Receipt

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    with LedgerWriter(file, NOW) as ledger:
        ledger.add(1, Receipt("clicks", 3, 42, 1000), b"body", "good", {"id": "e1"})
        ledger.add(2, NotDelivered("clicks", "timed out"), b"lost?", "good", {"id": "e2"})
        ledger.add(3, Receipt("sensors", 0, 7, 1001), None, "bad:null_body", {})
    contents = read_ledger(file)
    assert [(e.number, e.hub, e.partition, e.sequence_number, e.enqueued_ms, e.kind) for e in contents.entries] == [
        (1, "clicks", 3, 42, 1000, "good"),
        (3, "sensors", 0, 7, 1001, "bad:null_body"),
    ]
    assert contents.entries[0].digest == digest(b"body")
    assert contents.entries[0].about == {"id": "e1"}
    assert set(contents.unconfirmed) == {2}
    assert contents.closed
    assert (ledger.acknowledged, ledger.failed) == (2, 1)


def test_nothing_counts_before_it_is_written(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    ledger = LedgerWriter(file, NOW)
    ledger.add(1, Receipt("clicks", 0, 0, 0), b"", "good", {})
    assert ledger.acknowledged == 0
    ledger.commit()
    assert ledger.acknowledged == 1
    assert len(read_ledger(file).entries) == 1
    assert not read_ledger(file).closed
    ledger.close()


def test_a_killed_writer_loses_no_line_it_spoke_of(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    writer = (
        "import pathlib, sys; from datetime import UTC, datetime\n"
        "from hub.ledger import LedgerWriter; from hub.publisher import Receipt\n"
        f"ledger = LedgerWriter(pathlib.Path({str(file)!r}), datetime.now(UTC))\n"
        "for n in range(10**9):\n"
        "    ledger.add(n, Receipt('clicks', 0, n, 0), b'x' * 100, 'good', {}); ledger.commit()\n"
        "    print(ledger.acknowledged, flush=True)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", writer], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    spoken = 0
    for line in process.stdout:
        spoken = int(line)
        if spoken >= 500:
            os.kill(process.pid, signal.SIGKILL)
            break
    spoken = max([spoken, *(int(line) for line in process.stdout if line.endswith("\n"))])
    process.stdout.close()
    process.wait()
    contents = read_ledger(file)
    assert len(contents.entries) >= spoken >= 500
    assert not contents.closed


def test_a_line_cut_short_is_no_line(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    with LedgerWriter(file, NOW) as ledger:
        ledger.add(1, Receipt("clicks", 0, 0, 0), b"", "good", {})
    whole = file.read_bytes()
    for cut in range(len(whole.splitlines(keepends=True)[0]), len(whole)):
        file.write_bytes(whole[:cut])
        assert len(read_ledger(file).entries) == whole[:cut].count(b"\n") - 1
        assert not read_ledger(file).closed


def test_files_that_are_no_ledgers_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    with pytest.raises(LedgerError, match="can't be read: No such file"):
        read_ledger(file)
    for content, said in [("", "is empty"), ('{"a": 1}\n', "no ledger of version"), ("x\n", "Line 1 of .* is no line")]:
        file.write_text(content)
        with pytest.raises(LedgerError, match=said):
            read_ledger(file)


def test_an_existing_file_is_never_overwritten_and_a_new_one_is_private(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    LedgerWriter(file, NOW).close()
    before = file.read_bytes()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    with pytest.raises(LedgerError, match="exists already"):
        LedgerWriter(file, NOW)
    assert file.read_bytes() == before
    with pytest.raises(LedgerError, match="can't be created"):
        LedgerWriter(tmp_path / "no" / "folder", NOW)


def test_digests_tell_null_from_empty() -> None:
    assert len({digest(None), digest(b""), digest(b"null")}) == 3
    assert json.dumps(digest(b"\xff"))


def test_a_full_disk_leaves_whole_lines_only(tmp_path: Path) -> None:
    file = tmp_path / "ledger"
    writer = (
        "import pathlib, resource, signal; from datetime import UTC, datetime\n"
        "from hub.ledger import LedgerError, LedgerWriter; from hub.publisher import Receipt\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "try:\n"
        f"    with LedgerWriter(pathlib.Path({str(file)!r}), datetime.now(UTC)) as ledger:\n"
        "        for n in range(1000):\n"
        "            ledger.add(n, Receipt('clicks', 0, n, 0), b'', 'good', {}); ledger.commit()\n"
        "except LedgerError as error:\n"
        "    print(ledger.acknowledged, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", writer], capture_output=True, text=True, check=True)
    counted, _, said = done.stdout.partition(" ")
    assert said == "The ledger can't be written any more: File too large.\n"
    assert file.read_bytes().endswith(b"\n")
    assert len(read_ledger(file).entries) == int(counted) > 50

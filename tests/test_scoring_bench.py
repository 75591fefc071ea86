"""The scoring benchmark finds both ways in agreement, on few clicks."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

# In a process of its own, since it ends its session.
MEASURED = """
import json
from bench.scoring import measure
print(json.dumps(measure(1, lambda text: None, rows=20_000).to_dict()))
"""


def test_both_ways_agree() -> None:
    done = subprocess.run(
        [sys.executable, "-c", MEASURED], capture_output=True, text=True, cwd=Path(__file__).parents[1], timeout=300
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(done.stdout.splitlines()[-1])["figures"]
    assert figures["mismatches"]["value"] == 0
    assert figures["scoring_rows_per_s"]["value"] > 0

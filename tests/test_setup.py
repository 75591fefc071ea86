"""What a newcomer meets before anything runs: `make setup` and its refusals."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from streaming.class_archive import archive_settings

REPOSITORY = Path(__file__).parents[1]


def make(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    make_program = shutil.which("make")
    assert make_program
    return subprocess.run(
        [make_program, "--no-print-directory", *arguments],
        cwd=REPOSITORY,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def old_java(folder: Path, version: str) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2018-09-25' >&2\n")
    java.chmod(0o755)
    return folder


def test_a_second_set_up_does_nothing() -> None:
    stamps = [REPOSITORY / ".venv" / ".prepared", REPOSITORY / "jars" / ".prepared", REPOSITORY / "jars" / ".archived"]
    before = [stamp.stat().st_mtime_ns for stamp in stamps]
    done = make("setup", f"PYTHON={sys.executable}")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert [stamp.stat().st_mtime_ns for stamp in stamps] == before


def test_no_python_is_one_sentence_that_says_what_to_install(tmp_path: Path) -> None:
    done = make("setup", PATH=str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.splitlines()[0].startswith("No Python 3.11 or newer found on PATH: install one")


@pytest.mark.parametrize(("version", "major"), [("11.0.2", "11"), ("1.8.0_292", "8")])
def test_an_old_java_is_one_sentence_that_says_what_to_install(tmp_path: Path, version: str, major: str) -> None:
    done = make("setup", JAVA_HOME=str(old_java(tmp_path, version)))
    assert done.returncode != 0
    said = done.stderr.splitlines()[0]
    assert f"is version {major}, but 17 or newer is needed: install a JDK 17 or 21" in said


def test_no_java_is_one_sentence_that_says_what_to_install(tmp_path: Path) -> None:
    done = make("setup", JAVA_HOME=str(tmp_path))
    assert done.returncode != 0
    assert done.stderr.startswith(f"No Java found at {tmp_path}/bin/java: install a JDK 17 or 21")


def test_every_package_is_pinned_with_hashes_and_no_file_names_a_registry() -> None:
    for name in ("requirements.txt", "setup/requirements-build.txt"):
        text = (REPOSITORY / name).read_text()
        blocks = re.split(r"\n(?=\S)", text.strip())
        assert all("==" in block.splitlines()[0] and "--hash=sha256:" in block for block in blocks)
        assert "://" not in text
    assert "://" not in (REPOSITORY / "setup" / "ivysettings.xml").read_text()


def test_every_jar_is_the_one_that_was_pinned() -> None:
    pinned = {line.split("  ")[1] for line in (REPOSITORY / "setup" / "jars.sha256").read_text().splitlines()}
    assert pinned == {str(jar.relative_to(REPOSITORY / "jars")) for jar in (REPOSITORY / "jars").glob("*/*.jar")}


def test_the_class_archive_is_made_without_anything_of_the_users(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"LAKE": "/users/lake", "CHECKPOINTS": "/users/checkpoints", "HUB_KAFKA_SERVERS": "h:1"}.items():
        monkeypatch.setenv(f"TIDEWATCH_{name}", value)
    settings = archive_settings(tmp_path, tmp_path / "archive")
    assert settings.hub.embedded
    assert settings.lake_root == str(tmp_path / "lake")
    assert settings.checkpoint_root == str(tmp_path / "checkpoints")

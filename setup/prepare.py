"""Prepares a clone: the virtual environment, the project in it, and the JVM jars.

Uses the standard library alone, because it runs before anything is installed. What is already prepared, judged by
the content of the files it depends on, is left alone.
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from processes.java import JavaMissing, java_program, java_release, java_version  # noqa: E402

VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
JARS = ROOT / "jars"
SETUP = ROOT / "setup"
JAR_DIGESTS = SETUP / "jars.sha256"
ARCHIVE_SECONDS = 300
ARCHIVE_TRIES = 3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--relock-jars", action="store_true", help="resolve the jars anew and write their digests")
    relock = parser.parse_args().relock_jars
    try:
        java = java_program()
        java_version(java)  # refused here when it is too old
    except JavaMissing as missing:
        sys.exit(str(missing))
    with one_at_a_time():
        prepare_python()
        prepare_jars(java, relock)
        prepare_class_archive(java)


def prepare_python() -> None:
    stamp = VENV / ".prepared"
    state = digest(
        ROOT / "requirements.txt", SETUP / "requirements-build.txt", ROOT / "pyproject.toml", extra=sys.version
    )
    if read(stamp) == state:
        return
    if read(VENV / ".python") != sys.version:
        print("Creating .venv", flush=True)
        try:
            venv.create(VENV, clear=True, with_pip=True)
        except subprocess.CalledProcessError:
            version = f"{sys.version_info.major}.{sys.version_info.minor}"
            sys.exit(
                f"Python {version} can't make a virtual environment: install its venv package "
                f"(Debian: apt install python{version}-venv)."
            )
        (VENV / ".python").write_text(sys.version)
    print("Installing the Python packages (2 to 4 minutes the first time)", flush=True)
    pip("--require-hashes", "-r", str(SETUP / "requirements-build.txt"))
    pip("--require-hashes", "--no-build-isolation", "-r", str(ROOT / "requirements.txt"))
    pip("--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    stamp.write_text(state)


def pip(*arguments: str) -> None:
    run([str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", "--quiet", *arguments])


def prepare_jars(java: str, relock: bool) -> None:
    stamp = JARS / ".prepared"
    state = digest(SETUP / "ivy.xml", SETUP / "ivysettings.xml", JAR_DIGESTS)
    if read(stamp) == state and not relock:
        return
    print("Resolving the JVM jars (about 2 minutes the first time)", flush=True)
    shutil.rmtree(JARS, ignore_errors=True)
    run(
        [
            *(java, "-cp", str(ivy_jar()), "org.apache.ivy.Main", "-warn"),
            *("-settings", str(SETUP / "ivysettings.xml"), "-ivy", str(SETUP / "ivy.xml")),
            *("-retrieve", str(JARS / "[conf]" / "[artifact]-[revision].[ext]"), "-types", "jar", "bundle"),
        ]
    )
    found = "".join(
        f"{hashlib.sha256(jar.read_bytes()).hexdigest()}  {jar.relative_to(JARS)}\n"
        for jar in sorted(JARS.glob("*/*.jar"))
    )
    if relock:
        JAR_DIGESTS.write_text(found)
        state = digest(SETUP / "ivy.xml", SETUP / "ivysettings.xml", JAR_DIGESTS)
    elif found != JAR_DIGESTS.read_text():
        differing = sorted({line.split("  ")[1] for line in set(found.splitlines()) ^ set(read_lines(JAR_DIGESTS))})
        sys.exit(
            f"These jars are not the ones that setup/jars.sha256 names: {', '.join(differing)}. "
            "If you changed setup/ivy.xml, run `make lock`; otherwise clear ~/.ivy2 and try again."
        )
    stamp.write_text(state)


def prepare_class_archive(java: str) -> None:
    """Only makes starts faster, so that a machine where it can't be made goes on without it."""
    stamp = JARS / ".archived"
    made_by = ROOT / "streaming" / "class_archive.py"
    state = digest(JAR_DIGESTS, ROOT / "requirements.txt", made_by, extra=java_release(java))
    stamped, _, failed_before = read(stamp).partition(" failed ")
    tries = int(failed_before) if stamped == state and failed_before else 0
    if stamped == state and not tries:
        return
    print("Archiving the classes that streams load, so that they start faster (about a minute)", flush=True)
    # Without the user's settings: it must not touch the user's hub, lake or checkpoints.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TIDEWATCH_")}
    command = [str(PYTHON), "-m", "streaming.class_archive", str(JARS / "classes.jsa")]
    try:
        subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=JARS, env=environment, timeout=ARCHIVE_SECONDS
        )
        stamp.write_text(state)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as failed:
        said = failed.stderr.decode() if isinstance(failed.stderr, bytes) else failed.stderr or ""
        reason = (said.strip().splitlines() or [str(failed)])[-1]
        print(f"No archive could be made ({reason}); streams start slower without it.", flush=True)
        tries += 1
        stamp.write_text(f"{state} failed {tries}" if tries < ARCHIVE_TRIES else state)


def ivy_jar() -> Path:
    jars = sorted(VENV.glob("lib/python*/site-packages/pyspark/jars/ivy-*.jar"))
    if not jars:
        sys.exit("PySpark's copy of Ivy is missing from .venv: remove .venv and run `make setup` again.")
    return jars[0]


def run(command: list[str]) -> None:
    if (code := subprocess.run(command, check=False).returncode) != 0:
        sys.exit(
            f"Set-up stopped: `{' '.join(command[:4])} …` ended with code {code}; its reason stands above. "
            "Set-up needs the package registries the first time; run it again once they answer."
        )


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """Two `make` calls in one clone wait for each other."""
    with (SETUP / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def digest(*files: Path, extra: str = "") -> str:
    together = hashlib.sha256(extra.encode())
    for file in files:
        together.update(read(file).encode() + b"\0")
    return together.hexdigest()


def read(file: Path) -> str:
    return file.read_text() if file.is_file() else ""


def read_lines(file: Path) -> list[str]:
    return read(file).splitlines()


if __name__ == "__main__":
    main()

"""The Java that Spark and the embedded broker run on."""

import os
import re
import shutil
import subprocess
from pathlib import Path

OLDEST_JAVA = 17
CURE = "install a JDK 17 or 21 (Debian: apt install openjdk-17-jre-headless) or point JAVA_HOME at one."


class JavaMissing(Exception):
    """There is no Java, or it is too old; the message says what to install."""


def java_program() -> str:
    """Path of the Java program, found the way Spark finds it."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    if not java or not os.access(java, os.X_OK):
        raise JavaMissing(f"No Java found {f'at {java}' if java else 'on PATH'}: {CURE}")
    return java


def java_release(java: str) -> str:
    """Its full version, in words of its own, whatever options the environment adds."""
    said = subprocess.run([java, "-fullversion"], capture_output=True, text=True, check=False).stderr
    return "".join(line for line in said.splitlines() if not line.startswith("Picked up "))


def java_version(java: str) -> int:
    """Its major version, refused when Spark can't run on it."""
    version = re.search(r'version "(?:1\.)?(\d+)', java_release(java))
    if not version:
        raise JavaMissing(f"{java} is no Java that tells its version: {CURE}")
    if int(version[1]) < OLDEST_JAVA:
        raise JavaMissing(f"The Java at {java} is version {version[1]}, but {OLDEST_JAVA} or newer is needed: {CURE}")
    return int(version[1])

"""Why a stream ended: classes that decide whether a restart can help, and sentences for people."""

import enum
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from streaming.files import replace_text


class FailureClass(enum.IntEnum):
    """The exit codes of a stream host. 0 is a graceful stop; any other code means that the host was killed."""

    TRANSIENT = 10
    SETTINGS = 11
    CHECKPOINT = 12
    SOURCE_DATA_LOST = 13
    LEASE_HELD = 14
    SURROUNDINGS = 15
    """The hub or the lake can't be used now. Nothing is wrong with the stream, so it is tried until they can."""


@dataclass(frozen=True)
class Failure:
    """What happened, and what to do about it."""

    kind: FailureClass
    what: str
    cure: str
    query: str | None = None
    """The query that failed, if it was one."""

    def __str__(self) -> str:
        return f"{self.what} {self.cure}"

    def write(self, file: Path) -> None:
        replace_text(file, json.dumps({**asdict(self), "kind": self.kind.name}))

    @classmethod
    def read(cls, file: Path) -> Self | None:
        try:
            fields = json.loads(file.read_text())
            return cls(FailureClass[fields["kind"]], fields["what"], fields.get("cure", ""), fields.get("query"))
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None


class StreamFailed(Exception):
    """Ends a host with a known failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(str(failure))
        self.failure = failure


@dataclass(frozen=True)
class _Sign:
    pattern: str
    kind: FailureClass
    what: str
    cure: str
    frame: str | None = None
    """A call in the Java trace that tells it too, where the error's own words do not."""


_SIGNS = (
    _Sign(
        r"data may have been lost|KAFKA_DATA_LOSS|OffsetOutOfRange",
        FailureClass.SOURCE_DATA_LOST,
        "The hub no longer has records that were not read yet: its retention overtook the stream, or the topic was "
        "deleted and made anew.",
        "Find out what is missing; then `tidewatch accept-loss STREAM QUERY` goes on with what the hub still has.",
    ),
    _Sign(
        r"SaslAuthenticationException|TopicAuthorizationException|GroupAuthorizationException|SSLHandshakeException",
        FailureClass.SETTINGS,
        "The hub refused the login.",
        "Check TIDEWATCH_HUB_CONNECTION_STRING or the TIDEWATCH_HUB_KAFKA_… login and its rights.",
    ),
    _Sign(
        r"No space left on device|Disk quota exceeded",
        FailureClass.SURROUNDINGS,
        "The disk is full; nothing was half written.",
        "Free some space under the lake and the home folder.",
    ),
    _Sign(
        r"Read-only file system|Permission denied|AccessControlException|AccessDenied|Mkdirs failed|NotADirectory"
        r"|Not a directory|ParentNotDirectoryException|AuthorizationPermissionMismatch",
        FailureClass.SURROUNDINGS,
        "The lake or the checkpoint can't be written.",
        "Give this account the right to write there.",
    ),
    _Sign(
        r"LockTimeout",
        FailureClass.SURROUNDINGS,
        "Another job has held the lock of its tables for too long.",
        "It is tried again by itself; if that lasts, terminate the run that has the lock.",
    ),
    _Sign(
        r"FilesRewritten|A rebuild of \S+ was cut off",
        FailureClass.CHECKPOINT,
        "A rebuild that was cut off can't be completed.",
        "Do what is said there.",
    ),
    _Sign(
        r"[Mm]alformed|StreamMetadata|IncompatibleStreamingQuery|INCOMPATIBLE_CHECKPOINT|STATE_STORE_(?!.*TIMEOUT)"
        r"|CHECKPOINT_|DIFFERENT_DELTA_TABLE|batch \d+ doesn't exist|No batch file|sources in the checkpoint",
        FailureClass.CHECKPOINT,
        "The query can't resume from its checkpoint.",
        "Restore the checkpoint from a backup.",
        frame=r"\.StreamMetadata\$?\.read\(",
    ),
    _Sign(
        r"org\.apache\.kafka\.common\.errors\.(Timeout|Disconnect|Network)|UnknownTopicOrPartition"
        r"|Timed out waiting for a node|KafkaException",
        FailureClass.SURROUNDINGS,
        "The hub does not answer.",
        "The stream is tried again by itself; check that the hub runs and can be reached.",
    ),
    _Sign(
        r"OutOfMemoryError",
        FailureClass.TRANSIENT,
        "The stream's driver ran out of memory.",
        "Raise TIDEWATCH_SPARK_DRIVER_MEMORY or lower the records taken in one batch.",
    ),
)


def classify(error: str, stream: str, query: str = "") -> Failure:
    """Reads the class of a failure from Spark's words. What nobody knows is transient: a restart may help."""
    who = f"{stream}, query {query}" if query else stream
    told = _without_plan(error)
    detail = _first_cause(told)
    words, calls = _words_and_calls(told)
    by_words = [sign for sign in _SIGNS if re.search(sign.pattern, words)]
    by_calls = [sign for sign in _SIGNS if sign.frame and re.search(sign.frame, calls)]
    for sign in (*by_words, *by_calls):
        return Failure(sign.kind, f"{who}: {sign.what} ({detail})", sign.cure, query or None)
    return Failure(FailureClass.TRANSIENT, f"{who}: {detail}", "The stream is tried again by itself.", query or None)


def _without_plan(error: str) -> str:
    """Spark adds the query's plan and options, whose words and paths say nothing about the failure."""
    head, _, rest = error.partition("=== Streaming Query ===")
    return head + rest.partition("JVM stacktrace:")[2]


_JAVA_CALL = re.compile(r"\s*(at [\w.$/<>@-]+\(.*|\.\.\. \d+ (more|common frames omitted))\s*")
_PYTHON_CALL = re.compile(r"([\s|]*)File \".*\", line \d+")


def _words_and_calls(error: str) -> tuple[str, str]:
    """What the errors say, apart from the calls in Java that led there. Calls in Python are left out, and the lines of
    source below them: they may name any error, whatever went wrong."""
    words: list[str] = []
    calls: list[str] = []
    source_from: int | None = None
    for line in error.splitlines():
        if call := _PYTHON_CALL.match(line):
            source_from = len(call[1])
        elif source_from is not None and _indent(line) > source_from:
            continue
        else:
            source_from = None
            (calls if _JAVA_CALL.fullmatch(line) else words).append(line)
    return "\n".join(words), "\n".join(calls)


def _indent(line: str) -> int:
    return len(line) - len(line.lstrip(" \t|"))


def _first_cause(error: str) -> str:
    """The innermost cause of a Java stack trace, or the error of a Python one inside it, in one line."""
    python = _python_error(error)
    if python is not None:
        return _short(python)
    causes = [line.strip() for line in error.splitlines() if line.strip().startswith("Caused by:")]
    line = (
        causes[-1].removeprefix("Caused by:").strip() if causes else next(iter(error.strip().splitlines()), "unknown")
    )
    return _short(line)


def _python_error(error: str) -> str | None:
    """The last line of a Python traceback; where that only tells of a Java error, the Java error."""
    _, found, traceback = error.partition("Traceback (most recent call last):\n")
    ends = [line for line in traceback.splitlines() if line and not line.startswith((" ", "\t"))]
    if not found or not ends:
        return None
    if ends[0].startswith("py4j.") and len(ends) > 1:
        return ends[1].removeprefix(": ")
    return ends[0]


def _short(line: str) -> str:
    return line if len(line) <= 300 else f"{line[:300]}…"

"""What is checked of silver: its books, how fresh it is, what it puts aside, and fields that nobody knows."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path

from dagster import AssetCheckResult, AssetChecksDefinition, AssetCheckSeverity, MetadataValue, asset_check

from assets.streams import running_query, table_key
from lake.click_books import Books, Day, click_books, newest_click, newest_window, unknown_fields
from lake.silver import CLICK_ACTIVITY, CLICK_QUARANTINE, clicks_table
from settings import Settings, load_settings
from streaming.catalog import SILVER
from streaming.click_tables import REPLAY_NOTE, SWAP_NOTE

CLICKS = clicks_table({}).name
RECENT = timedelta(days=1)
# Beyond a few of its own triggers and of those of bronze.
PATIENCE_SECONDS = 120.0
MOST_CLICKS = 100_000
COMPLETED_BY = {
    "rebuild": "the next batch of silver completes it",
    "replay": "launch replay_quarantine again, which completes it",
}


def silver_checks() -> list[AssetChecksDefinition]:
    return [
        _check(CLICKS, "books_balanced", "Every record of bronze is in clicks, duplicates or quarantine, once", _books),
        _check(CLICKS, "fresh", "Silver is not far behind bronze", _fresh),
        _check(CLICKS, "known_fields", "Events have no fields that the schema does not have", _known_fields),
        _check(CLICKS, "few_duplicates", "Few records repeat an event", _few_duplicates),
        _check(CLICK_QUARANTINE.name, "few_quarantined", "Few records fail", _few_quarantined),
        _check(CLICK_ACTIVITY.name, "windows_follow", "The windows are not far behind the clicks", _windows_follow),
    ]


def _check(
    table: str, name: str, description: str, look: Callable[[Settings, datetime], AssetCheckResult]
) -> AssetChecksDefinition:
    @asset_check(asset=table_key(table), name=name, description=description)
    def check() -> AssetCheckResult:
        return look(load_settings(), datetime.now(UTC))

    return check


def _books(settings: Settings, now: datetime) -> AssetCheckResult:
    change = _being_changed(settings)
    version, books = _read_books(settings)
    if _problems(books):  # a rebuild may have swapped its tables in meanwhile, one after the other
        version, books = _read_books(settings)
    problems = _problems(books)
    if problems and (change := change or _being_changed(settings)):
        told = f"a {change} is changing the tables, or was cut off: {COMPLETED_BY[change]}"
        problems, version = [], None
    elif problems:
        told = f"{'; '.join(problems)}. `tidewatch audit` with a ledger of these days tells which."
    elif version is None and books.bronze:
        told = "nothing is there twice; what silver has read nobody knows until it has run for a while"
    else:
        told = "balanced"
    return AssetCheckResult(
        passed=not problems and (version is not None or not books.bronze),
        severity=AssetCheckSeverity.ERROR if problems else AssetCheckSeverity.WARN,
        description=told,
        metadata={
            "bronze": sum(books.bronze.values()),
            "clicks": sum(books.clicks.values()),
            "duplicates": sum(books.duplicates.values()),
            "quarantined": sum(books.quarantine.values()),
        },
    )


def _read_books(settings: Settings) -> tuple[int | None, Books]:
    """With the version of bronze that silver reads next, where that is known."""
    query = running_query(settings, SILVER, "clicks")
    version = query.read_to.get("version") if query else None
    return version, click_books(settings.lake_root, version)


def _problems(books: Books) -> list[str]:
    missing, surplus = (sorted(each.items(), key=str) for each in (books.missing, books.surplus))
    return [
        *(f"{count:,} records of {day} are missing" for day, count in missing),
        *(f"{count:,} records of {day} are there more than once" for day, count in surplus),
    ]


def _being_changed(settings: Settings) -> str | None:
    """What writes to one table of clicks after the other just now; not known where checkpoints are not local."""
    notes = {SWAP_NOTE: "rebuild", REPLAY_NOTE: "replay"}
    folder = Path(settings.checkpoint_root, SILVER.name)
    return next((name for note, name in notes.items() if (folder / note).exists()), None)


def _fresh(settings: Settings, now: datetime) -> AssetCheckResult:
    """That nobody sends anything is no fault of silver."""
    query, newest = running_query(settings, SILVER, "clicks"), newest_click(settings.lake_root)
    if query is None or query.lag_seconds is None:
        return AssetCheckResult(
            passed=False,
            severity=AssetCheckSeverity.WARN,
            description="silver does not run, or has just started: the check stream_health says more",
        )
    metadata = {"seconds behind": query.lag_seconds, "records behind": query.lag_records or 0}
    if newest is not None:
        metadata["age of the newest click in seconds"] = (now - newest).total_seconds()
    return AssetCheckResult(
        passed=query.lag_seconds <= PATIENCE_SECONDS + 3 * query.trigger_seconds,
        severity=AssetCheckSeverity.WARN,
        description=f"{query.lag_seconds:.0f} s behind bronze",
        metadata=metadata,
    )


def _known_fields(settings: Settings, now: datetime) -> AssetCheckResult:
    unknown = unknown_fields(settings.lake_root, now - RECENT, MOST_CLICKS)
    rows = [
        f"| `{name}` | {count:,} | {', '.join(unknown.examples[name])} |"
        for name, count in unknown.counts.most_common(20)
    ]
    names = ", ".join(name for name, _ in unknown.counts.most_common(5))
    return AssetCheckResult(
        passed=not unknown.clicks,
        severity=AssetCheckSeverity.WARN,
        description=f"{_at_least(unknown.clicks)} clicks of the last day have fields that the schema does not know: "
        f"{names}. They are kept in unknown_fields; TIDEWATCH_SILVER_PROMOTED_FIELDS makes a field a column."
        if unknown.clicks
        else "none in the last day",
        metadata={
            "clicks with unknown fields": unknown.clicks,
            "fields": MetadataValue.md("\n".join(["| field | clicks | examples |", "|---|---|---|", *rows])),
        },
    )


def _few_duplicates(settings: Settings, now: datetime) -> AssetCheckResult:
    books = click_books(settings.lake_root, None)
    return _share("repeat an event", books, books.duplicates, settings.silver.most_duplicates, now)


def _few_quarantined(settings: Settings, now: datetime) -> AssetCheckResult:
    books = click_books(settings.lake_root, None)
    return _share("are in quarantine", books, books.quarantine, settings.silver.most_quarantined, now)


def _share(words: str, books: Books, table: dict[Day, int], most: float, now: datetime) -> AssetCheckResult:
    share = books.share(table, (now - RECENT).date())
    return AssetCheckResult(
        passed=share <= most,
        severity=AssetCheckSeverity.WARN,
        description=f"{share:.2%} of the records of today and yesterday {words}; {most:.2%} are taken for normal",
        metadata={"share": share},
    )


def _windows_follow(settings: Settings, now: datetime) -> AssetCheckResult:
    """By the table itself: the newest click has to be in one of its windows, once there was time for it."""
    clicks, windows = newest_click(settings.lake_root), newest_window(settings.lake_root)
    allowed = PATIENCE_SECONDS + 3 * settings.silver.activity_trigger_seconds
    lag = max(0.0, (clicks - windows).total_seconds()) if clicks and windows else None
    missing = clicks is not None and windows is None and (now - clicks).total_seconds() > allowed
    return AssetCheckResult(
        passed=not missing and (lag or 0.0) <= allowed,
        severity=AssetCheckSeverity.WARN,
        description="there are clicks, but no windows"
        if missing
        else f"the newest click is {lag or 0:.0f} s after the end of the newest window",
        metadata={} if lag is None else {"watermark lag in seconds": lag},
    )


def _at_least(clicks: int) -> str:
    return f"{clicks:,} or more" if clicks >= MOST_CLICKS else f"{clicks:,}"

"""Days and times in the configuration of a job."""

from datetime import UTC, date, datetime

from dagster import Config, Failure
from pydantic import Field

from streaming.click_rebuild import Days


class DaysConfig(Config):
    first_day: str | None = Field(None, description="Only days (UTC) from this one on, like 2026-03-01")
    last_day: str | None = Field(None, description="Only days up to this one; with neither, all there are")

    def days(self) -> Days:
        first, last = _day("first_day", self.first_day), _day("last_day", self.last_day)
        if first and last and first > last:
            raise Failure(f"first_day {first} is after last_day {last}.")
        return Days(first, last)


def _day(name: str, text: str | None) -> date | None:
    if text is None:
        return None
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise Failure(f"{name} is {text!r}, which is no day: write it like 2026-03-01.") from None


def time_of(name: str, text: str | None) -> datetime | None:
    """Without a zone it is in UTC."""
    if text is None:
        return None
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise Failure(f"{name} is {text!r}, which is no time: write it like 2026-03-01 or 2026-03-01T12:00Z.") from None
    return at if at.tzinfo else at.replace(tzinfo=UTC)

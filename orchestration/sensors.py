"""The sensors that supervise the streams: they look, let `supervisor` decide, act, and report."""

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from dagster import (
    AssetCheckEvaluation,
    AssetObservation,
    DagsterInstance,
    DefaultSensorStatus,
    RunRequest,
    RunsFilter,
    SensorDefinition,
    SensorEvaluationContext,
    SensorResult,
    SkipReason,
    sensor,
)

from assets.streams import health_evaluations, observations
from orchestration import tags
from orchestration.ending import end_active_run, end_leftover, end_lost_beside
from orchestration.health import Health, health_of
from orchestration.refusals import Refusal, note_refusal
from orchestration.sight import REFUSED, Sight, limits_of, look
from orchestration.supervisor import CleanUp, Decision, Hold, Restart, RunState, Start, decide
from settings import Settings, load_settings
from streaming.catalog import StreamSpec
from streaming.files import StreamFiles
from streaming.health import HealthState, StreamHealth
from streaming.progress import StreamProgress

# At every turn of the daemon's loop, which takes 5 s: a second interval of 5 s would make it skip every other turn.
LOOK_SECONDS = 1
# A check that says the same is repeated now and then, so that its age tells that somebody looks.
CHECK_AGAIN = timedelta(minutes=10)
READING = {HealthState.RUNNING, HealthState.CATCHING_UP}


def utc_now() -> datetime:
    return datetime.now(UTC)


def stream_sensor(stream: StreamSpec, clock: Callable[[], datetime] = utc_now) -> SensorDefinition:
    @sensor(
        name=f"{stream.name}_supervisor",
        job_name=stream.name,
        description=f"Starts the stream {stream.name}, starts it again when it failed or hangs, and reports its state.",
        minimum_interval_seconds=LOOK_SECONDS,
        default_status=DefaultSensorStatus.RUNNING,
    )
    def supervise(context: SensorEvaluationContext) -> SensorResult:
        tick = Tick(context.instance, load_settings(), stream, clock)
        sight, decision = tick.act()
        events = tick.events(sight, decision, Reported.from_cursor(context.cursor))
        if isinstance(decision, Start):
            return SensorResult(
                run_requests=[run_request(context.instance, stream, decision)],
                asset_events=events.all,
                cursor=events.reported.to_cursor(),
            )
        return SensorResult(
            skip_reason=SkipReason(decision.reason), asset_events=events.all, cursor=events.reported.to_cursor()
        )

    return supervise


def run_request(instance: DagsterInstance, stream: StreamSpec, start: Start) -> RunRequest:
    """Its key is of the last run, so that one and the same state of things never starts two."""
    attempt = {tags.ATTEMPT: str(start.attempt), tags.FRUITLESS: str(start.fruitless)}
    if start.not_before is not None:
        attempt[tags.NOT_BEFORE] = start.not_before.isoformat()
    newest = instance.get_run_records(RunsFilter(job_name=stream.name), limit=1)
    last = newest[0].dagster_run.run_id if newest else "first"
    return RunRequest(run_key=f"{stream.name}:{last}", tags=attempt)


@dataclass(frozen=True)
class Reported:
    """What was reported last and when, kept in the sensor's cursor."""

    figures_at: datetime | None = None
    health: str = ""
    health_at: datetime | None = None

    @classmethod
    def from_cursor(cls, cursor: str | None) -> "Reported":
        kept = json.loads(cursor) if cursor else {}
        return cls(_time(kept.get("figures_at")), kept.get("health", ""), _time(kept.get("health_at")))

    def to_cursor(self) -> str:
        return json.dumps(
            {
                "figures_at": self.figures_at.isoformat() if self.figures_at else None,
                "health": self.health,
                "health_at": self.health_at.isoformat() if self.health_at else None,
            }
        )


@dataclass(frozen=True)
class Events:
    figures: list[AssetObservation]
    checks: list[AssetCheckEvaluation]
    reported: Reported

    @property
    def all(self) -> list[AssetObservation | AssetCheckEvaluation]:
        return [*self.figures, *self.checks]


class Tick:
    """One look at one stream."""

    def __init__(
        self, instance: DagsterInstance, settings: Settings, stream: StreamSpec, clock: Callable[[], datetime]
    ) -> None:
        self._instance = instance
        self._settings = settings
        self._stream = stream
        self._clock = clock
        self._now = clock()
        self._limits = limits_of(settings)
        self._file = StreamFiles(settings.run_folder, stream.name).health
        self._earlier = StreamHealth.read(self._file)
        self._said: list[Health] = []
        self._done: Counter[str] = Counter()

    def act(self) -> tuple[Sight, Decision]:
        """Ends what has to end; when that is done, the decision that follows from it."""
        sight, decision = self._look()
        if isinstance(decision, Restart):
            self._done["restarts_hung" if decision.hung else "restarts_lost"] += 1
        elif isinstance(decision, CleanUp):
            self._done["clean_ups"] += 1
        else:
            return sight, self._counted(decision)
        self._write(sight, decision)  # so that it can be seen while it is being done
        if self._end(sight, decision):
            self._now = self._clock()
            sight, decision = self._look()
        return sight, self._counted(decision)

    def _counted(self, decision: Decision) -> Decision:
        if isinstance(decision, Start):
            self._done["starts"] += 1
        return decision

    def _end(self, sight: Sight, decision: Restart | CleanUp) -> bool:
        """True when everything that had to end has ended."""
        if isinstance(decision, Restart):
            kind = tags.HUNG if decision.hung else tags.LOST
            return end_active_run(self._instance, self._settings, sight, decision.reason, kind, decision.query)
        run = sight.seen.run
        holder = sight.holder
        stale = holder is not None and holder.run_id is not None and (run is None or holder.run_id != run.run_id)
        if run is not None and run.state is RunState.CANCELING and not stale:
            return end_active_run(self._instance, self._settings, sight, decision.reason, tags.KILLED)
        return end_leftover(self._settings, sight, self._stream.name)

    def events(self, sight: Sight, decision: Decision, before: Reported) -> Events:
        """Also leaves the health in its file, for everything outside Dagster."""
        self._write(sight, decision)
        figures: list[AssetObservation] = []
        figures_at = before.figures_at
        active = sight.seen.run is not None and sight.seen.run.state is RunState.STARTED
        if sight.progress is not None and active and self._is_due(figures_at, self._settings.stream.report_seconds):
            figures = list(observations(self._stream, sight.progress))
            figures_at = self._now
        checks: list[AssetCheckEvaluation] = []
        told, told_at = before.health, before.health_at
        for health in self._said:
            key = _news(health)
            if key != told or self._is_due(told_at, CHECK_AGAIN.total_seconds()):
                checks += health_evaluations(self._stream, health.state, health.sentence)
                told, told_at = key, self._now
        return Events(figures, checks, Reported(figures_at, told, told_at))

    def _look(self) -> tuple[Sight, Decision]:
        sight = look(self._instance, self._settings, self._stream, self._now)
        end_lost_beside(self._instance, sight)
        decision = decide(sight.seen, self._limits, self._now)
        run = sight.seen.run
        if run is not None and run.state is RunState.FAILED and REFUSED in run.reason:
            note_refusal(self._settings.run_folder, Refusal(run.run_id, run.since), self._now)
        before = self._earlier.state if self._earlier else None
        self._said.append(health_of(sight.seen, decision, sight.progress, before))
        return sight, decision

    def _write(self, sight: Sight, decision: Decision) -> None:
        health = self._said[-1]
        counts = Counter(self._earlier.counts if self._earlier else {}) + self._done
        if isinstance(decision, Hold) and (self._earlier is None or self._earlier.state is not health.state):
            counts["holds"] += 1
        StreamHealth(
            self._stream.name,
            health.state,
            health.sentence,
            looked_at=self._now.isoformat(),
            run_id=sight.run.run_id if sight.run else None,
            attempt=health.attempt,
            next_attempt_at=health.next_attempt_at.isoformat() if health.next_attempt_at else None,
            unread_kept_until=self._unread_kept_until() if health.state not in READING else None,
            counts=dict(counts),
        ).write(self._file)

    def _unread_kept_until(self) -> str | None:
        """From what the last host left, whichever run it was of."""
        left = StreamProgress.read(StreamFiles(self._settings.run_folder, self._stream.name).progress)
        return min(left.unread_kept_until().values(), default=None) if left else None

    def _is_due(self, last: datetime | None, seconds: float) -> bool:
        return last is None or (self._now - last).total_seconds() >= seconds


def _news(health: Health) -> str:
    """What makes a health another than the last; estimates change with every look, and are no news."""
    return str(health.state) if health.state is HealthState.CATCHING_UP else f"{health.state}: {health.sentence}"


def _time(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None

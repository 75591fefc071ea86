"""Tells the outside when a run failed."""

import json
import time
import urllib.request

from dagster import DefaultSensorStatus, RunFailureSensorContext, SensorDefinition, run_failure_sensor

from orchestration import tags
from settings import load_settings
from streaming.failures import FailureClass

ANSWER_SECONDS = 5
BETWEEN_TRIES = (1, 3, 9)


class AlertLost(Exception):
    """Nobody was told of a failed run."""


def failure_alert() -> SensorDefinition:
    @run_failure_sensor(
        name="failure_alert",
        description="Posts each failed run to the URL in TIDEWATCH_ALERT_WEBHOOK; without one it only logs it.",
        default_status=DefaultSensorStatus.RUNNING,
    )
    def alert(context: RunFailureSensorContext) -> None:
        message = failure_message(context)
        context.log.warning(message["text"])
        webhook = load_settings().alert.webhook
        if webhook is not None and message["class"] != FailureClass.LEASE_HELD.name:
            _post(webhook.get_secret_value(), message)

    return alert


def failure_message(context: RunFailureSensorContext) -> dict[str, str]:
    """Has `text`, which chat programs show, and its parts for machines."""
    run = context.dagster_run
    noted = tags.noted(run)
    reason = noted.get(tags.REASON) or context.failure_event.message or "its log says why"
    return {
        "text": f"Tidewatch: run {run.run_id[:8]} of {run.job_name} failed: {reason}",
        "job": run.job_name,
        "run_id": run.run_id,
        "class": noted.get(tags.FAILURE, ""),
        "attempt": tags.planned(run).get(tags.ATTEMPT, "1"),
    }


def _post(url: str, message: dict[str, str]) -> None:
    """Tries for a while, because Dagster looks at each failed run once. What went wrong is told without the URL, which
    is a secret."""
    request = urllib.request.Request(url, json.dumps(message).encode(), {"content-type": "application/json"})
    for wait in (*BETWEEN_TRIES, None):
        try:
            with urllib.request.urlopen(request, timeout=ANSWER_SECONDS):
                return
        except OSError as error:
            if wait is None:
                told = getattr(error, "reason", None) or type(error).__name__
                raise AlertLost(
                    f"TIDEWATCH_ALERT_WEBHOOK did not take the message: {told}. {message['text']}"
                ) from None
            time.sleep(wait)

"""The models of the registry: listed, promoted and rolled back from a terminal."""

import getpass
import json
from collections.abc import Callable
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from ml.model import Model, ModelRefused
from ml.registry import Registry, RegistryError
from settings import Settings


class ModelError(Exception):
    """What was asked can't be done; the message says why."""


def models(settings: Settings) -> list[dict[str, Any]]:
    """In the order of their making: who made each and why, what its evaluation found, who promoted it when and why, and
    which is current."""
    registry = Registry(settings.model_folder)
    current, promotions = registry.current_or_none(), registry.promotions()
    return [
        {
            **asdict(record),
            "evaluation": registry.evaluation(record.version),
            "promotions": [asdict(each) for each in promotions if each.version == record.version],
            "current": current is not None and current.version == record.version,
        }
        for record in registry.versions()
    ]


def as_report(found: list[dict[str, Any]]) -> str:
    return "\n".join(map(_line, found)) or "There is no model yet: launch the job retrain in the Dagster UI."


def to_json(found: list[dict[str, Any]]) -> str:
    return json.dumps(found, indent=2)


def promote(settings: Settings, version: str, why: str) -> str:
    return _change(settings, lambda registry, by, now: registry.promote(version, by, why, now))


def roll_back(settings: Settings, why: str) -> str:
    return _change(settings, lambda registry, by, now: registry.roll_back(by, why, now))


def _change(settings: Settings, change: Callable[[Registry, str, datetime], Model]) -> str:
    try:
        model = change(Registry(settings.model_folder), getpass.getuser(), datetime.now(UTC))
    except (RegistryError, ModelRefused) as error:
        raise ModelError(str(error)) from None
    return f"{model.version} is current; the stream silver takes it up with its next batch."


def _line(model: dict[str, Any]) -> str:
    evaluation = model["evaluation"]
    flagged = f"flags {evaluation['share_flagged']:.2%}" if evaluation else "not evaluated"
    made = f"{'*' if model['current'] else ' '} {model['version']}  {flagged}, made by {model['by']}: {model['why']}"
    promoted = [f"    promoted {each['at'][:16]} by {each['by']}: {each['why']}" for each in model["promotions"]]
    return "\n".join([made, *promoted])

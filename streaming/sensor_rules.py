"""Which readings are anomalous: outside a range, or too far from a device's own normal. All of it becomes SQL."""

import math
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from settings import SensorSettings, SettingsError
from streaming.strict_json import sql_text

MOST_DEVICES = 1000
LARGEST_FILE = 2**20
Finite = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class Normal(BaseModel):
    """What is normal for one device; `limit` is how many standard deviations from the mean are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    mean: Finite
    deviation: Positive
    limit: Positive | None = None


class DeviceRules(BaseModel):
    """The rules file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    limit: Positive = 6.0
    devices: dict[str, Normal] = Field(default={}, max_length=MOST_DEVICES)

    @classmethod
    def read(cls, file: Path) -> Self:
        try:
            if file.stat().st_size > LARGEST_FILE:
                raise _refused(file, f"is larger than {LARGEST_FILE} bytes")
            return cls.model_validate_json(file.read_bytes())
        except OSError as error:
            raise _refused(file, f"can't be read: {error.strerror}") from None
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise _refused(file, f"{place}: {first['msg']}" if place else first["msg"]) from None


def _refused(file: Path, why: str) -> SettingsError:
    return SettingsError(
        f'TIDEWATCH_SENSORS_RULES={file}: {why}. Write {{"limit": 6, "devices": {{"NAME": {{"mean": 50, "deviation": '
        "0.8}}}, with at most "
        f"{MOST_DEVICES} devices."
    )


def anomaly(settings: SensorSettings) -> str:
    """SQL of why a reading of `device_id` and `sensor_freq` is anomalous, null where it is not."""
    cases = []
    if settings.lowest is not None:
        cases.append(f"WHEN sensor_freq < {_number(settings.lowest)} THEN 'below_range'")
    if settings.highest is not None:
        cases.append(f"WHEN sensor_freq > {_number(settings.highest)} THEN 'above_range'")
    rules = DeviceRules.read(settings.rules) if settings.rules else DeviceRules()
    if rules.devices:
        normal = f"try_element_at({_normals(rules)}, device_id)"
        cases.append(f"WHEN abs(sensor_freq - {normal}.mean) > {normal}.most THEN 'z_score'")
    return f"CASE {' '.join(cases)} END" if cases else "cast(NULL AS STRING)"


def judge(settings: SensorSettings) -> Callable[[str, float], bool]:
    """The same told plainly, for single readings."""
    lowest = -math.inf if settings.lowest is None else settings.lowest
    highest = math.inf if settings.highest is None else settings.highest
    rules = DeviceRules.read(settings.rules) if settings.rules else DeviceRules()

    def anomalous(device: str, frequency: float) -> bool:
        normal = rules.devices.get(device)
        if not lowest <= frequency <= highest or normal is None:
            return not lowest <= frequency <= highest
        return abs(frequency - normal.mean) > normal.deviation * (normal.limit or rules.limit)

    return anomalous


def _normals(rules: DeviceRules) -> str:
    """A map from a device to its mean and how far from it is normal."""
    entries = (
        f"{sql_text(name)}, named_struct('mean', {_number(normal.mean)}, 'most', "
        f"{_number(normal.deviation * (normal.limit or rules.limit))})"
        for name, normal in rules.devices.items()
    )
    return f"map({', '.join(entries)})"


def _number(value: float) -> str:
    return f"double('{value!r}')"

"""All settings of Tidewatch: typed, read once at a process's start, from `TIDEWATCH_…` variables and a `.env` file."""

from settings.load import SettingsError, load_settings
from settings.model import (
    BronzeSettings,
    DagsterSettings,
    HeartbeatSettings,
    HubSettings,
    SensorSettings,
    Settings,
    SilverSettings,
    SparkSettings,
    TrafficSettings,
)

__all__ = [
    "BronzeSettings",
    "DagsterSettings",
    "HeartbeatSettings",
    "HubSettings",
    "SensorSettings",
    "Settings",
    "SettingsError",
    "SilverSettings",
    "SparkSettings",
    "TrafficSettings",
    "load_settings",
]

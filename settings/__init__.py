"""All settings of Tidewatch: typed, read once at a process's start, from `TIDEWATCH_…` variables and a `.env` file."""

from settings.load import SettingsError, load_settings
from settings.model import (
    AnomalySettings,
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
    "AnomalySettings",
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

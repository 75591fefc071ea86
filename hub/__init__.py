"""The hub: Event Hubs, a Kafka cluster or the embedded broker, and what is sent to it."""

CLICKS = "clicks"
HEARTBEATS = "heartbeats"
SENSORS = "sensors"

INPUT_HUBS = (CLICKS, HEARTBEATS, SENSORS)

MACHINE_STATUS = "machine-status"
SENSOR_ALERTS = "sensor-alerts"
SENSOR_ECHOES = "sensor-echoes"

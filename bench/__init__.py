"""Measurements of the whole system, each side by side in one run, and the rig that drives it from outside."""

BENCHES = ("recovery", "ingest", "heartbeat", "alerts", "samples", "scoring")

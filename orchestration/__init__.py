"""Dagster around the streams and assets, and the `tidewatch` command."""

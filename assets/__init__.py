"""What Dagster shows as assets: thin shells over the other rooms."""

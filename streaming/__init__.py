"""The streams: Spark applications that carry records from the hub through the lake, supervised from outside."""

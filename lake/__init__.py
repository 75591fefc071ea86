"""The lake: Delta tables, what they are called, what is in them, and how rows get into them exactly once."""

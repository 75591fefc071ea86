"""Realistic traffic for the three hubs, with faults on request, and a ledger of what the hub acknowledged."""

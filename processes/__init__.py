"""Processes of this machine: who they are beyond a reusable pid, how they start and how they end.

Imports nothing here, so that set-up can use `processes.java` before anything is installed.
"""

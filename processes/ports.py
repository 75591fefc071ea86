"""Ports of this machine."""

import contextlib
import socket

LOOPBACK = "127.0.0.1"


def why_taken(port: int, host: str = LOOPBACK) -> str | None:
    """Why nothing can listen there, or None when it can."""
    with contextlib.closing(socket.socket()) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            return error.strerror or str(error)
    return None


def answers(port: int, host: str = LOOPBACK) -> bool:
    with contextlib.closing(socket.socket()) as probe:
        probe.settimeout(1)
        return probe.connect_ex((host, port)) == 0


def free_port() -> int:
    """A port that is free at the moment."""
    with contextlib.closing(socket.socket()) as probe:
        probe.bind((LOOPBACK, 0))
        return int(probe.getsockname()[1])

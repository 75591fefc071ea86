"""Ports of this machine."""

import contextlib
import random
import socket

LOOPBACK = "127.0.0.1"
PORTS = (20_000, 32_000)


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
    """A port that is free now, from a range that systems do not hand out to clients by themselves."""
    while True:
        port = random.SystemRandom().randrange(*PORTS)
        if why_taken(port) is None:
            return port

"""Ports for processes that find each other by one."""

import random
import socket
from pathlib import Path

_LOWEST = 20_000
"""Workers of Ray have lower ones."""


def free_port() -> int:
    """A port that nobody has, and that the system gives to nobody until it is used.

    Where a process asks for any port, it gets one of a range that is left out here: seconds may pass before
    the one that was chosen here is taken.
    """
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    everywhere = range(_LOWEST, 1 << 16)
    ports = [port for port in everywhere if not first <= port <= last] or everywhere
    # Not from the generator that tests may have seeded: processes that run tests would choose the same.
    for port in random.SystemRandom().sample(ports, len(ports)):
        with socket.socket() as tried:
            try:
                tried.bind(("", port))
            except OSError:
                continue
            return port
    raise OSError(f"no port is free from {_LOWEST} on")

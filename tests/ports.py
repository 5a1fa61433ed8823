import itertools
import os
import socket
from collections.abc import Iterator
from functools import cache
from pathlib import Path

RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")  # the ports from which Linux takes those of outgoing connections
EACH = 200  # ports of each of pytest-xdist's workers


@cache
def _own() -> Iterator[int]:
    """This worker's ports, from one on that another pytest of this machine rarely begins with."""
    # Elsewhere outgoing connections begin at 49152.
    lowest = int(RANGE.read_text(encoding="ascii").split()[0]) if RANGE.exists() else 49152
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    first = max(lowest, 10_000) - (worker + 1) * EACH
    start = os.getpid() % EACH
    return itertools.cycle(first + (start + number) % EACH for number in range(EACH))


def free_port() -> int:
    """A port that nobody listens at and that no outgoing connection gets before a server listens there."""
    for port in itertools.islice(_own(), EACH):
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"all of this worker's {EACH} ports are in use")

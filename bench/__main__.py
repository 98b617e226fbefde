"""`python -m bench [NAME ...]`: run benchmarks on the built server, print Markdown tables."""

import argparse
import os
import platform
import signal
import sys
from pathlib import Path

from bench import download, gateway, graft, inspect, many, scrape, speculation, streams, swap
from orchestrator.servers import find_binary
from orchestrator.settings import Settings

BENCHMARKS = {
    "speculation": speculation.run,
    "scrape": scrape.run,
    "gateway": gateway.run,
    "graft": graft.run,
    "inspect": inspect.run,
    "download": download.run,
    "streams": streams.run,
    "swap": swap.run,
    "many": many.run,
}


def main() -> None:
    """Parse arguments, run in order."""
    parser = argparse.ArgumentParser(prog="bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(BENCHMARKS)} (default: all)")
    parser.add_argument("--rounds", type=int, default=7, help="interleaved rounds (default: 7)")
    parser.add_argument("--server", type=Path, help="llama-server to use (default: the newest one built)")
    arguments = parser.parse_args()
    for name in arguments.names:
        if name not in BENCHMARKS:
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    # What was started is ended on the way out, also when a time limit ends us.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    settings = Settings()
    server = find_binary(arguments.server or settings.llama_server, settings.cache)
    print(f"{platform.machine()}, {os.cpu_count()} cores, {server.parent.name}")
    for name in arguments.names or BENCHMARKS:
        BENCHMARKS[name](server, arguments.rounds)


if __name__ == "__main__":
    main()

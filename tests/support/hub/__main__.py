"""`python -m tests.support.hub REPOSITORY FILE [DELAY_SECONDS WINDOW_BYTES]`: a hub in a process of its own.

Prints its address and the commit, then serves until its input ends.
"""

import sys
from pathlib import Path

from tests.support.hub import running_hub
from tests.support.relay import Relay


def main() -> None:
    repository, file, *line = sys.argv[1:]
    with running_hub() as hub:
        if line:
            hub.relay(lambda port: Relay(port, float(line[0]), int(line[1])).port)
        path = Path(file)
        commit = hub.add(repository, path.name, path)
        hub.file(repository, path.name).sha256  # noqa: B018
        print(hub.url, commit, flush=True)
        sys.stdin.read()


if __name__ == "__main__":
    main()

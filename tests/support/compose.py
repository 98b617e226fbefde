"""Compose projects for tests: each with a name, ports and volumes of its own, and nothing from a user's .env."""

import json
import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests import REPOSITORY
from tests.support.commands import must

NO_COMPOSE = "NOT TESTED: no `docker compose`"


def clean_environment() -> dict[str, str]:
    """Our environment without anything that the compose files would read."""
    listed = set(re.findall(r"^#([A-Z_]+)=", (REPOSITORY / ".env.example").read_text(), re.M))
    return {name: value for name, value in os.environ.items() if name not in listed}


def config(*argv: str, **settings: str) -> "subprocess.CompletedProcess[str]":
    """`docker compose config` with nothing but these settings."""
    command = ["docker", "compose", "--env-file", os.devnull, *argv, "config", "--format", "json"]
    env = clean_environment() | settings
    return subprocess.run(command, cwd=REPOSITORY, env=env, capture_output=True, text=True, timeout=60, check=False)


def services(*argv: str, **settings: str) -> dict[str, Any]:
    """The services of a configuration that must be valid."""
    done = config(*argv, **settings)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)["services"]
    return found


@dataclass(frozen=True)
class Stack:
    """One compose project."""

    project: str
    env: Mapping[str, str]

    def compose(self, *args: str, timeout_seconds: float = 120) -> str:
        """Standard output of a `docker compose` command that must succeed."""
        argv = ("docker", "compose", "--env-file", os.devnull, "--project-name", self.project, *args)
        return must(argv, env=self.env, timeout_seconds=timeout_seconds).strip()

    def up(self, *args: str) -> None:
        """Start services and wait until they are healthy."""
        try:
            self.compose("up", "--detach", "--wait", "--wait-timeout", "180", *args, timeout_seconds=240)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.compose('logs', '--tail', '60')}") from None

    def url(self, service: str, port: int) -> str:
        """Where a port of a service is published."""
        return f"http://{self.compose('port', service, str(port))}"

    def exec(self, service: str, *argv: str) -> str:
        """Standard output of a command in a container of a service."""
        return self.compose("exec", "--no-TTY", service, *argv)

    def inspect(self, service: str) -> dict[str, Any]:
        """The engine's record of a service's container."""
        container = self.compose("ps", "--all", "--quiet", service)
        found: list[dict[str, Any]] = json.loads(must(["docker", "inspect", container], env=self.env))
        return found[0]

    def leftovers(self) -> str:
        """Ids of containers, networks and volumes of the project."""
        mine = ("--filter", f"label=com.docker.compose.project={self.project}", "--quiet")
        lists = [("ps", "--all", *mine), ("network", "ls", *mine), ("volume", "ls", *mine)]
        return "".join(must(["docker", *argv], env=self.env).strip() for argv in lists)

"""Kinds of jobs of the tests. Apart, so that a program can have them without what the fixtures import."""

from orchestrator.jobs import Kind

MODULE = "tests.unit.jobs.work"
KINDS = (Kind("toy", MODULE), Kind("other", MODULE), Kind("absent", "tests.unit.jobs.nothing"))

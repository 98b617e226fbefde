"""Makers of problems."""

from orchestrator.schemas.gguf import Problem


def error(code: str, message: str) -> Problem:
    """What makes llama-server abort, or not draft."""
    return Problem(code=code, severity="error", message=message)


def warning(code: str, message: str) -> Problem:
    """What an operator should know."""
    return Problem(code=code, severity="warning", message=message)

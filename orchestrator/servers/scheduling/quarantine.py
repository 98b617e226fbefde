"""How long a model that keeps failing is left alone."""

FIRST_SECONDS = 10.0
LONGEST_SECONDS = 300.0


def backoff_seconds(strikes: int) -> float:
    """Rest after so many failures in a row: 10 s, doubled with each to 300 s; none without a failure."""
    if strikes <= 0:
        return 0.0
    # The exponent is bounded: a model may fail for weeks, and 2.0 ** 1024 is no float.
    return min(FIRST_SECONDS * 2.0 ** min(strikes - 1, 16), LONGEST_SECONDS)

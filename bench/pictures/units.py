"""Values in the units that panels name."""

import time

_PREFIXES = ("", "k", "M", "G", "T")
_BYTES = ("B", "KiB", "MiB", "GiB", "TiB")


def written(value: float, unit: str | None, decimals: int | None = None) -> str:
    """A value as a panel shows it."""
    if value != value:
        return ""
    match unit:
        case "percentunit":
            return f"{100 * value:.{1 if decimals is None else decimals}f} %"
        case "s":
            return _seconds(value)
        case "bytes":
            return _scaled(value, 1024, _BYTES)
        case "Bps":
            return f"{_scaled(value, 1000, _PREFIXES)}B/s"
        case "dateTimeAsIso":
            return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(value / 1000))
        case "watt":
            return f"{value:.0f} W"
        case "celsius":
            return f"{value:.0f} °C"
    suffix = unit.removeprefix("suffix:") if unit and unit.startswith("suffix:") else ""
    return f"{_plain(value) if decimals is None else f'{value:.{decimals}f}'}{suffix}"


def _seconds(value: float) -> str:
    if value and abs(value) < 1e-3:
        return f"{1e6 * value:.0f} µs"
    if abs(value) < 1:
        return f"{1000 * value:.3g} ms"
    return f"{value:.3g} s"


def _plain(value: float) -> str:
    return f"{value:.0f}" if value == round(value) and abs(value) < 1e5 else _scaled(value, 1000, _PREFIXES).strip()


def _scaled(value: float, base: int, names: tuple[str, ...]) -> str:
    for name in names[:-1]:
        if abs(value) < base:
            return f"{value:.3g} {name}"
        value /= base
    return f"{value:.3g} {names[-1]}"

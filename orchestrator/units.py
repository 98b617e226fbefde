"""How figures are written for people."""


def in_bytes(size_bytes: int) -> str:
    """`5.9 MB`; powers of ten, as disks and hubs count."""
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} TB"


def in_figures(
    done_bytes: int, total_bytes: int | None, bytes_per_second: float | None, seconds_left: float | None
) -> str:
    """`12.3 MB of 1.2 GB, 10.5 MB/s, 1 min 54 s left`, as far as it is known."""
    parts = []
    if total_bytes is not None:
        parts.append(f"{in_bytes(done_bytes)} of {in_bytes(total_bytes)}")
    elif done_bytes:
        parts.append(in_bytes(done_bytes))
    if bytes_per_second is not None:
        parts.append(f"{in_bytes(round(bytes_per_second))}/s")
    if seconds_left is not None:
        parts.append(f"{in_seconds(seconds_left)} left")
    return ", ".join(parts)


def in_seconds(seconds: float) -> str:
    """`48 s`, `3 min 20 s`, `2 h 5 min`, `4 d 3 h`."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60} min"
    return f"{whole // 86400} d {whole % 86400 // 3600} h"


def times_in_a_row(number: int) -> str:
    """`once`, `3 times in a row`."""
    return "once" if number == 1 else f"{number} times in a row"

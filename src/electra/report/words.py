"""Numbers -> what a person reads."""

_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))

_TIMES = ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s"))


def short(value: float | None) -> str:
    """About three digits: 0.123, 12.3, 1.23M; a dash for nothing; powers of ten where no prefix reaches."""
    if value is None:
        return "–"
    size = abs(value)
    if size >= 1e18 or 0 < size < 1e-3:
        return f"{value:.2e}".replace("e-0", "e-").replace("e+", "e")
    for scale, prefix in _PREFIXES:
        if size >= scale:
            return f"{_digits(value / scale)}{prefix}"
    return _digits(value)


def _digits(value: float) -> str:
    decimals = 3 if abs(value) < 1 else 2 if abs(value) < 10 else 1 if abs(value) < 100 else 0
    text = f"{value:.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def percent(value: float | None) -> str:
    """A fraction in percent, with one decimal."""
    return "–" if value is None else f"{value:.1%}"


def duration(seconds: float | None) -> str:
    """Two units of time: 42 s, 7 min 5 s, 3 h 12 min, 4 d 3 h."""
    if seconds is None:
        return "–"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s" if seconds >= 9.95 else f"{seconds:.1f} s"
    large, unit, small, rest_unit = next(units for units in _TIMES if whole >= units[0])
    count, rest = divmod(whole, large)
    return f"{count} {unit}" + (f" {rest // small} {rest_unit}" if rest // small else "")

"""How figures stand on a page."""
import statistics

PROFILES = {"emmc": "eMMC, modelled", "ufs31": "UFS 3.1, modelled", "ufs4": "UFS 4.0, modelled",
            "nvme": "the machine's own disk"}
MIB = 1 << 20


def table(head, rows):
    """-> a Markdown table, or None where it would have no rows."""
    if not rows:
        return None
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def number(value, digits=1):
    """-> a number with thousands separated; "" where there is none."""
    return "" if value is None else f"{value:,.{digits}f}"


def count(value):
    return number(value, 0)


def percent(value, digits=0):
    return "" if value is None else f"{100 * value:.{digits}f} %"


def mib(value):
    return number(value and value / MIB)


def points(value):
    return "" if value is None else f"{value:+.1f}"


def times(value, than):
    """-> how many times one value is of another."""
    return f"{value / than:.2f} times" if value is not None and than else ""


def spread(values, show=number):
    """-> the median of all, with the least and the most in brackets where there are several."""
    values = [value for value in values if value is not None]
    if not values:
        return ""
    middle, least, most = (show(of(values)) for of in (statistics.median, min, max))
    return middle if least == most else f"{middle} ({least} to {most})"


def rate(value):
    """-> tokens a second, with as many digits as say something."""
    return number(value, 0 if value >= 100 else 1 if value >= 10 else 2)


def right(pairs):
    """-> right answers of seeds to the same questions, of how many; "" where nothing was asked."""
    pairs = [pair for pair in pairs if pair[1]]
    if not pairs:
        return ""
    return f"{spread([pair[0] for pair in pairs], score)} of {pairs[0][1]}"


def score(value):
    return f"{value:g}" if isinstance(value, int) or float(value).is_integer() else f"{value:.1f}"


def how_many(values):
    """-> "3", or "1 to 3" where counts differ."""
    values = sorted(set(values))
    return "" if not values else str(values[0]) if len(values) == 1 else f"{values[0]} to {values[-1]}"

"""Plots of a comparison, as PNG files."""
import math
import textwrap

from .options import CommandError
from .report_format import how_many

# (end of the file's name, title, field of the comparison, what a value is divided by)
PLOTS = (
    ("speed", "Decoded tokens per second", "decode_tokens_per_second", 1),
    ("bytes", "MiB read from flash per token", "read_bytes_per_token", 1 << 20),
    ("accuracy", "Right answers, %", "accuracy", 1 / 100),
)
DOTS_PER_INCH = 120
INCHES_HIGH = 3.6
INCHES_OF_A_BAR = 0.9
LETTERS_OF_AN_INCH = 14
# Of a normal distribution: 95 of 100 cases lie so near to the mean.
CONFIDENCE_DEVIATIONS = 1.96


def check_installed():
    """Raises CommandError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    except ImportError as error:
        raise CommandError(f"plots need Debian's python3-matplotlib ({error}): install it, or give "
                           "--no-plots") from error


def draw(stem, rows, title):
    """Writes STEM-NAME.png for each of PLOTS -> their paths. rows: of compare_command.comparison. title: what they are
    of.
    """
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")  # there need not be a screen
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    contexts = sorted({row["context"] for row in rows})
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    paths = []
    for name, what, field, unit in PLOTS:
        # Answers do not depend on the length that speed is measured at.
        groups = contexts[:1] if field == "accuracy" else contexts
        width = 2 + INCHES_OF_A_BAR * len(policies) * len(groups)
        figure, axes = pyplot.subplots(figsize=(width, INCHES_HIGH))
        for index, context in enumerate(groups):
            values = bar_values(rows, context, policies, field, unit)
            bar = 0.8 / len(groups)
            shift = (index - (len(groups) - 1) / 2) * bar
            bars = axes.bar([at + shift for at in range(len(policies))], values, bar, label=f"{context} tokens",
                            yerr=bar_errors(rows, context, policies, field, unit), capsize=3, ecolor="0.3")
            axes.bar_label(bars, fmt="%.3g", fontsize=8)
        axes.margins(y=0.18)  # room for the labels above errors, and for the legend
        axes.set_xticks(range(len(policies)), policies)
        axes.set_title(f"{what}\n{counted(rows, field)}", fontsize=10)
        # Under everything, in as many lines as its width needs.
        axes.set_xlabel("\n".join(textwrap.wrap(title, int(width * LETTERS_OF_AN_INCH))), fontsize=7)
        if len(groups) > 1:
            axes.legend(fontsize=8, loc="upper center", bbox_to_anchor=(0.5, 1.0), ncols=len(groups))
        figure.tight_layout()
        paths.append(f"{stem}-{name}.png")
        figure.savefig(paths[-1], dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return paths


def bar_values(rows, context, policies, field, unit):
    """-> the field's value of each policy at a context length; 0 where there is none."""
    values = {row["policy"]: row.get(field) for row in rows if row["context"] == context}
    return [(values.get(policy) or 0) / unit for policy in policies]


def bar_errors(rows, context, policies, field, unit):
    """-> how far the ends of each bar's error lie below and above it: of answers the interval that has the true share
    in 95 of 100 cases, of all else the least and the most of all rounds.
    """
    ends = {row["policy"]: ends_of(row, field) for row in rows if row["context"] == context}
    below, above = [], []
    for policy, value in zip(policies, bar_values(rows, context, policies, field, unit)):
        low, high = ends.get(policy) or (value * unit, value * unit)
        below.append(max(0, value - low / unit))
        above.append(max(0, high / unit - value))
    return [below, above]


def ends_of(row, field):
    if field == "accuracy":
        return share_interval(row["right"], row["asked"]) if row.get("asked") else None
    return row["ranges"].get(field)


def share_interval(right, asked):
    """-> Wilson's interval for a share of which right of asked were seen."""
    share, spread = right / asked, CONFIDENCE_DEVIATIONS ** 2 / asked
    middle = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * (share * (1 - share) + spread / 4)) / (1 + spread)
    return max(0, middle - half), min(1, middle + half)


def counted(rows, field):
    """-> what a bar and its error are of, and of how many."""
    if field == "accuracy":
        return f"n = {how_many(row.get('asked') or 0 for row in rows)} questions, 95 % interval"
    return f"median and range of n = {how_many(row['round_count'] for row in rows)} rounds"

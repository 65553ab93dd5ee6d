"""Plots of a comparison, as PNG files."""
from .options import CommandError

# (end of the file's name, title, field of the comparison, what a value is divided by)
PLOTS = (
    ("speed", "Decoded tokens per second", "decode_tokens_per_second", 1),
    ("bytes", "MiB read from flash per token", "read_bytes_per_token", 1 << 20),
    ("accuracy", "Right answers, %", "accuracy", 1 / 100),
)
DOTS_PER_INCH = 120
INCHES_HIGH = 3.6
INCHES_OF_A_BAR = 0.9


def check_installed():
    """Raises CommandError where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401  pylint: disable=unused-import,import-outside-toplevel
    except ImportError as error:
        raise CommandError(f"plots need Debian's python3-matplotlib ({error}): install it, or give "
                           "--no-plots") from error


def draw(stem, rows):
    """Writes STEM-NAME.png for each of PLOTS -> their paths. rows: of compare_command.comparison."""
    import matplotlib  # pylint: disable=import-outside-toplevel
    matplotlib.use("Agg")  # there need not be a screen
    from matplotlib import pyplot  # pylint: disable=import-outside-toplevel
    contexts = sorted({row["context"] for row in rows})
    policies = list(dict.fromkeys(row["policy"] for row in rows))
    paths = []
    for name, title, field, unit in PLOTS:
        # Answers do not depend on the length that speed is measured at.
        groups = contexts[:1] if field == "accuracy" else contexts
        figure, axes = pyplot.subplots(figsize=(2 + INCHES_OF_A_BAR * len(policies) * len(groups), INCHES_HIGH))
        for index, context in enumerate(groups):
            values = bar_values(rows, context, policies, field, unit)
            width = 0.8 / len(groups)
            shift = (index - (len(groups) - 1) / 2) * width
            bars = axes.bar([at + shift for at in range(len(policies))], values, width, label=f"{context} tokens")
            axes.bar_label(bars, fmt="%.3g", fontsize=8)
        axes.set_xticks(range(len(policies)), policies)
        axes.set_title(title)
        if len(groups) > 1:
            axes.legend()
        figure.tight_layout()
        paths.append(f"{stem}-{name}.png")
        figure.savefig(paths[-1], dpi=DOTS_PER_INCH)
        pyplot.close(figure)
    return paths


def bar_values(rows, context, policies, field, unit):
    """-> the field's value of each policy at a context length; 0 where there is none."""
    values = {row["policy"]: row.get(field) for row in rows if row["context"] == context}
    return [(values.get(policy) or 0) / unit for policy in policies]

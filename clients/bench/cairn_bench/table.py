"""Tables of results, as text with columns that are aligned."""
import textwrap

from .results import by, is_counted, ratio, share, summary
from .speed import best_peer, spread
from .tasks import UNCOUNTED_TASKS

REFERENCE = "full"
COLUMNS = 100


def with_notes(table, *notes):
    """-> a table and what must be said of it, as far as there is something."""
    return "\n\n".join([table, *(textwrap.fill(note, COLUMNS) for note in notes if note)])


def task_tables(runs):
    """-> the tables of `tasks`: policy by length, policy by task, and what each policy cost.

    runs: of TaskResults. The seeds of a policy are pooled. Net is what a policy has right more than full attention has
    of the same questions, in points.
    """
    policies = {}
    for run in runs:
        policies.setdefault(run["policy"], []).append(run)
    pooled = {policy: [question for run in some for question in run["questions"]]
              for policy, some in policies.items()}
    counted = {policy: list(filter(is_counted, questions)) for policy, questions in pooled.items()}
    reference = {_key(question): question["score"] for question in pooled.get(REFERENCE, [])}
    every = [question for some in pooled.values() for question in some]
    title = "".join(["right/asked" if all("correct" in question for question in every) else "sum of scores/asked",
                     f", net against `{REFERENCE}` in points" if REFERENCE in policies else "",
                     "" if all(map(is_counted, every)) else f", without {', '.join(sorted(UNCOUNTED_TASKS))}"])
    return "\n\n".join([
        f"{title}\n{_answers(counted, reference, 'length', with_all=True)}",
        f"the same by task\n{_answers(pooled, reference, 'task', with_all=False)}",
        _costs(policies)])


def _answers(questions, reference, name, with_all):
    columns = list(by([question for some in questions.values() for question in some], name))
    rows = [["policy", *columns, *(["all"] if with_all else [])]]
    for policy, some in questions.items():
        groups = by(some, name)
        cells = [_cell(groups.get(column, []), policy, reference) for column in columns]
        rows.append([policy, *cells, *([_cell(some, policy, reference)] if with_all else [])])
    return aligned(rows)


def _cell(questions, policy, reference):
    if not questions:
        return "-"
    counts = share(questions)
    text = right_of(counts)
    shared = [question for question in questions if _key(question) in reference]
    if policy == REFERENCE or not shared:
        return text
    net = sum(question["score"] - reference[_key(question)] for question in shared)
    return f"{text} {100 * net / len(shared):+.1f}"


def right_of(counts):
    """-> "3/4", or "2.7/4" where answers have scores between 0 and 1. counts: of results.share."""
    right = counts["right"]
    return f"{right:.1f}/{counts['asked']}" if isinstance(right, float) else f"{right}/{counts['asked']}"


def _key(question):
    return question["document"], question["question"]


def _costs(policies):
    rows = [["policy", "document tokens/s", "decode tokens/s", "read/token", "KV DRAM peak"]]
    for policy, runs in policies.items():
        sums = summary({name: [value for run in runs for value in run[name]] for name in ("documents", "questions")})
        rows.append([policy, _number(ratio(sums["document_tokens"], sums["document_seconds"])),
                     _number(sums["decode_tokens_per_second"]), _mib(sums["read_bytes_per_token"]),
                     _mib(sums["kv_dram_peak_bytes"])])
    return aligned(rows)


def speed_table(value):
    """-> the tables of `speed`. value: SpeedResults as JSON has them."""
    return "\n\n".join([*speed_tables(value["runs"]), *peer_lines(value["peers"])])


def compare_table(rows, speed):
    """-> the tables of `compare`. rows: of compare_command.comparison, speed: SpeedResults as JSON has them."""
    lines = [["policy", "right", "%", *(column for column, _, _ in CLOSENESS_COLUMNS)]]
    for row in rows:
        if row["context"] == rows[0]["context"]:  # what is asked does not depend on it
            right = ["-", "-"] if row.get("accuracy") is None else [right_of(row), f"{100 * row['accuracy']:.1f}"]
            lines.append([row["policy"], *right, *cells(row, CLOSENESS_COLUMNS)])
    return "\n\n".join([f"answers, and how near to full attention\n{aligned(lines)}",
                        *speed_tables(rows, speed["runs"]), *peer_lines(speed["peers"])])


def speed_tables(rows, runs=None):
    """-> a table for each of SPEED_GROUPS. rows: with the medians; runs: with the rounds, if these are not the rows."""
    rounds = {(run["context"], run["policy"]): run["rounds"] for run in runs or rows}
    tables = []
    for title, columns in SPEED_GROUPS:
        lines = [["policy", "context", *(column for column, _, _ in columns)]]
        for row in rows:
            of_row = {**row, "rounds": rounds[row["context"], row["policy"]]}
            lines.append([row["policy"], str(row["context"]), *cells(of_row, columns)])
        tables.append(f"{title}\n{aligned(lines)}")
    return tables


def peer_lines(peers):
    """-> a line for each context length: the best that another engine reached."""
    lines = []
    for context in sorted({run["context"] for run in peers}):
        best = best_peer(peers, context)
        settings = sum(run["context"] == context for run in peers)
        if best:
            lines.append(f"{best['peer']} at {context}: {best['decode_tokens_per_second']:.2f} tokens/s, the best of "
                         f"{settings} settings")
    return lines


def cells(run, columns):
    """-> what stands in columns of SPEED_GROUPS or CLOSENESS_COLUMNS for a run of SpeedResults or of a comparison."""
    return [show(run.get(field)) for _, field, show in columns]


def _times(value):
    return "-" if value is None else f"{value:.2f}x"


def _number(value, digits=1):
    return "-" if value is None else f"{value:.{digits}f}"


def _share(value, digits=0):
    return "-" if value is None else f"{value:.{digits}%}"


def _mib(value):
    return "-" if value is None else f"{value / (1 << 20):.2f} MiB"


def _range(rounds):
    values = spread(rounds, "decode_tokens_per_second")
    return f"{values[0]:.1f} to {values[1]:.1f}" if values else "-"


def _kib(value):
    return _number(value and value / 1024)


def _seconds(value):
    return _number(value, 3)


# (title, columns: (column, field of a run, how it is shown)). Each table is narrower than a page.
SPEED_GROUPS = (
    ("decoding: medians of rounds", (
        ("tokens/s", "decode_tokens_per_second", _number),
        ("range", "rounds", _range),
        ("rounds", "rounds", lambda rounds: str(len(rounds))),
        ("of full", "speed_to_full", _times),
        ("I/O ms", "io_milliseconds_per_token", lambda value: _number(value, 2)),
        ("exposed ms", "exposed_io_milliseconds_per_token", lambda value: _number(value, 2)),
        ("hidden", "hidden_io_share", _share))),
    ("reading from flash, a token", (
        ("read", "read_bytes_per_token", _mib),
        ("reads", "reads_per_token", _number),
        ("KiB each", "read_mean_bytes", _kib),
        ("entries", "read_mean_entries", _number),
        ("useful MB/s", "effective_read_bytes_per_second", lambda value: _number(value and value / 1e6)),
        ("hits", "cache_hit_rate", _share))),
    ("writing to flash, and memory and flash for keys and values", (
        ("written/token", "write_bytes_per_token", _mib),
        ("of its size", "write_amplification", _times),
        ("memory", "kv_dram_bytes", _mib),
        ("accounted", "kv_dram_accounted_bytes", _mib),
        ("flash", "kv_flash_bytes", _mib))),
    ("the first token: warm, and of a resumed conversation", (
        ("warm s", "first_token_seconds", _seconds),
        ("resumed s", "resume_first_token_seconds", _seconds),
        ("opening s", "resume_open_seconds", _seconds),
        ("steps", "resume_steps", _number),
        ("read of KV", "resume_read_share", lambda value: _share(value, 1)))))
# The same, of a comparison. Divergences are in thousandths of a nat.
CLOSENESS_COLUMNS = (
    ("KL mnat", "kl_mean", lambda value: _number(value and value * 1e3, 2)),
    ("recall", "recall", lambda value: _share(value, 1)),
    ("cluster size", "cluster_mean_size", lambda value: _number(value, 2)),
    ("variance", "cluster_variance", lambda value: _number(value, 3)))


def aligned(rows):
    """-> a table whose first column is text and whose others are numbers."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return "\n".join("  ".join([row[0].ljust(widths[0]),
                                *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:]))]).rstrip()
                     for row in rows)

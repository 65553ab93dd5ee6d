"""Pages from a template: its text with the results put in, so that nobody types a figure.

The template has all pages, each behind a line `%% FILE`. Blocks are separated by empty lines, and what stands in {{ }}
is replaced: {{table NAME}} of report_tables, {{command PART ...}} by the commands that measured parts, {{ran PART ...}}
by what ran beside them, and others by words of a sentence (INLINE). A block of prose is left out where something that
it tells was not measured.
"""
import re
import shlex
import textwrap

from . import measure_plan, report_aims, report_tables
from .manifest import BUSY_SHARE, OTHER_SHARE_MIN
from .report_data import OURS, REFERENCE
from .report_format import PROFILES, how_many, percent
from .report_tables import SPEED, speed_parts
from .result_file import ResultsError

COLUMNS = 100
PLACEHOLDER = re.compile(r"\{\{([\w\s/.-]+)\}\}")
PAGE = re.compile(r"^%% (\S+)$", re.MULTILINE)
NOT_MEASURED = "*Not measured in this set.*"
MADE_BY = "<!-- Made by `cairn-bench report` from data/*.json and templates.txt: change these. -->"
GIGA = 1e9


class _Missing(Exception):
    """Something that a block needs was not measured."""


def pages(template, results):
    """-> {file: text} of a template."""
    names, texts = PAGE.findall(template), PAGE.split(template)
    return {name: page(text, results) for name, text in zip(names, texts[2::2])}


def page(text, results):
    made = []
    for block in re.split(r"\n\s*\n", text.strip("\n")):
        try:
            made.append(rendered(block, results))
        except _Missing:
            continue
    return "\n\n".join([made[0], MADE_BY, *made[1:]]) + "\n"


def rendered(block, results):
    alone = PLACEHOLDER.fullmatch(block.strip())
    kind, *words = alone.group(1).split() if alone else [""]
    if kind == "table":
        return _table(words[0], results)
    if kind == "command":
        parts = [results.parts[name] for name in words if name in results.parts]
        return "\n".join(command(part["command"]) for part in parts) if parts else _missing()
    text = PLACEHOLDER.sub(lambda found: inline(found.group(1), results), block)
    if block.startswith(("#", "    ", "|")):
        return text
    if block.startswith("- "):
        items = re.split(r"\n(?=- )", text)
        return "\n".join(wrapped(item, subsequent_indent="  ") for item in items)
    return wrapped(text)


def wrapped(text, **how):
    return textwrap.fill(" ".join(text.split()), COLUMNS, break_long_words=False, break_on_hyphens=False, **how)


def _missing():
    raise _Missing


def _table(name, results):
    if name not in TABLES:
        raise ResultsError(f"the template asks for a table {name!r}; there are {', '.join(TABLES)}")
    return TABLES[name](results) or NOT_MEASURED


def command(words):
    """-> a command as a block of code, in several lines where it is long."""
    lines, line = [], "   "
    for word in map(shlex.quote, words):
        if len(line) + len(word) + 3 > COLUMNS:
            lines.append(line + " \\")
            line = "       "
        line += " " + word
    return "\n".join([*lines, line])


def inline(text, results):
    """-> what stands for {{text}}; raises _Missing where it was not measured."""
    name, *words = text.split()
    if name not in INLINE:
        raise ResultsError(f"the template asks for {{{{{text}}}}}; there are {', '.join(INLINE)}")
    return INLINE[name](results, *words) or _missing()


def ran(results, *names):
    """-> what parts ran on and beside."""
    parts = [results.parts[name]["manifest"] for name in names if name in results.parts]
    if not parts:
        return None
    busiest = max((part["contention"] for part in parts), key=lambda each: each.get("other_cpu_share") or 0)
    taken = busiest.get("other_cpu_share") or 0
    others = ", ".join(f"{name} {percent(share)}" for name, share in busiest.get("other_programs", {}).items())
    stolen = busiest.get("stolen_cpu_share") or 0
    if stolen > OTHER_SHARE_MIN:
        others += f"{', ' if others else ''}other virtual machines {percent(stolen)}"
    said = (f"Measured {how_many(part['start_time'][:10] for part in parts)}; memory was read at "
            f"{bandwidth(parts)}; other programs took up to {percent(taken)} of the processors' time"
            f"{f' ({others})' if others else ''}.")
    return said + (" **The machine was busy: times say little.**" if taken > BUSY_SHARE else "")


def bandwidth(parts):
    values = how_many(round(part["read_bandwidth"]["bytes_per_second"] / GIGA, 1) for part in parts
                      if part["read_bandwidth"])
    return f"{values} GB/s" if values else "a speed that could not be measured"


def machine(results):
    made = results.any()["manifest"]
    return f"{made['cpu']}, {made['machine']}, Linux {made['kernel']}"


def commit(results):
    name = results.any()["manifest"]["commit"]
    return f"`{name[:12]}`" + (" with changes that were not committed" if name.endswith("+") else "")


def quick(results):
    return "`--quick`" if results.any()["set"] == measure_plan.QUICK else None


def model(results, name):
    return f"`{results.parts[name]['manifest']['model']['name']}`" if name in results.parts else None


def option(results, part, name):
    value = results.parts.get(part, {}).get("options", {}).get(name)
    return None if value is None else f"{value:,g}" if isinstance(value, (int, float)) else str(value)


def peer(results, part):
    """-> the program of the other engine that a part measured."""
    names = sorted({each["peer"].partition(" --fa ")[0] for each in results.parts.get(part, {}).get("peers", ())})
    return ", ".join(f"`{name}`" for name in names)


def planned(_):
    """-> how long the full set takes, as planned."""
    seconds = sum(part.seconds for part in measure_plan.full_parts("tasks.jsonl", measure_plan.SHAPE_FILE))
    return f"{seconds / 60:.0f} minutes"


def rounds(results, *parts):
    return how_many(run.rounds() for part in parts for run in results.runs(part))


def seeds(results, part, policy=OURS):
    answers = results.answers(part, policy)
    return answers and str(answers.seeds())


def pays(results):
    """-> sentences: on which flash and from which length on the default policy is faster."""
    said = []
    for profile, part in speed_parts(results):
        faster = {}
        for context in sorted({run.context for run in results.runs(part)}):
            full, ours = (results.run(part, context, policy) for policy in (REFERENCE, OURS))
            if full and ours:
                faster[context] = ours.median(SPEED) > full.median(SPEED)
        if faster:
            said.append(f"{PROFILES[profile]}: {_from_where(faster)}")
    return "; ".join(said)


def _from_where(faster):
    """-> {context: whether it is faster} in words."""
    contexts = list(faster)
    for index, context in enumerate(contexts):
        if all(faster[later] for later in contexts[index:]):
            return f"from {context:,} tokens on" if index else f"at all lengths, from {context:,} tokens on"
    return f"at none of these lengths, up to {contexts[-1]:,} tokens"


INLINE = {"ran": ran, "machine": machine, "commit": commit, "quick": quick, "model": model, "option": option,
          "peer": peer, "planned": planned, "rounds": rounds, "seeds": seeds, "pays": pays, "tally": report_aims.tally}
TABLES = {**report_tables.TABLES, "missed": report_aims.missed}

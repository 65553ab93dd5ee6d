"""Results as the repository keeps them: what tables need of a JSON of `tasks`, `speed` or `compare`, and no more.

A slim file has, beside its `program`, `slim` (the version of this form), `set` (which of the sets of measure_plan it is
a part of), `manifest`, `build` (digests of the daemons), `command` and `options`:
- of speed: `runs` with `context`, `policy`, `prefill_seconds` and `values`: {figure: one value of each round}; `peers`
- of tasks: `answers` with `policy`, `seed`, `documents`: {number: [length, right, asked]}, without what does not count,
  and `tasks`: {length: {task: [right, asked]}}
- of compare: both, and `near`: {policy: figures of closeness}
docs/cairn-bench.md describes the figures.
"""
import json
import os

from .client import REPOSITORY
from .closeness import ClosenessResults
from .results import is_counted, share
from .result_file import FORMAT, ResultsError

SLIM = 1
FIGURES = (
    "decode_tokens_per_second", "milliseconds_per_token", "first_token_seconds", "resume_first_token_seconds",
    "resume_open_seconds", "resume_steps", "resume_read_share", "read_bytes_per_token", "reads_per_token",
    "write_bytes_per_token", "write_pool_bytes_per_token", "write_split_bytes_per_token", "write_log_bytes_per_token",
    "write_relog_bytes_per_token", "write_index_bytes_per_token", "write_meta_log_bytes_per_token",
    "write_meta_table_bytes_per_token", "write_defragment_bytes_per_token", "write_amplification",
    "io_milliseconds_per_token", "exposed_io_milliseconds_per_token", "hidden_io_share", "kv_dram_bytes",
    "kv_dram_accounted_bytes", "kv_flash_bytes")
NEAR_FIGURES = ("kl_mean", "kl_p99", "same_best", "recall", "attended_tokens")
MANIFEST_FIELDS = ("commit", "start_time", "machine", "cpu", "kernel", "read_bandwidth", "model", "profile", "seeds")
DIGESTS = ("cairn-kv-node (SHA-256)", "cairn-compute-node (SHA-256)")
OPTIONS = ("select", "select_min", "select_max", "cluster_entries", "estimate", "kv_format", "dram_budget", "threads",
           "realtime", "tokens", "rounds", "synthetic_kv", "prefill", "decode")
DIGITS = 5
# Options that say nothing of results; a command that repeats them does not need these.
LOCAL_OPTIONS = ("--build", "--store-dir")
FILE_OPTIONS = ("--json", "--out", "--model", "--tasks", "--peer", "--prompts", "--text")


def load(path, of_set=""):
    """-> the slim form of a JSON file, which may be slim already; of_set: what it is a part of if it is not."""
    try:
        with open(path, encoding="utf-8") as file:
            value = json.load(file)
        if value.get("slim") == SLIM:
            return value
        return slim(value, of_set)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ResultsError(f"{path} has no results of tasks, speed or compare that are understood "
                           f"({type(error).__name__}: {error}): measure them anew") from error


def slim(value, of_set=""):
    """-> the slim form of what a JSON of `tasks`, `speed` or `compare` holds. Raises KeyError, TypeError or ValueError
    for what is none.
    """
    program = value["program"]
    if program not in ("tasks", "speed", "compare") or value["format"] != FORMAT:
        raise ValueError(f"results of {program} in format {value['format']}, not {FORMAT}")
    starts = [*value["earlier_manifests"], value["manifest"]]
    made = {"program": program, "slim": SLIM, "set": of_set,
            "manifest": {**{name: value["manifest"][name] for name in MANIFEST_FIELDS},
                         "contention": worst([start["contention"] for start in starts if "contention" in start])},
            "build": [value["configuration"][name][:16] for name in DIGESTS],
            "command": command(value["manifest"]["command_line"]),
            "options": {name: value["configuration"][name] for name in OPTIONS if name in value["configuration"]}}
    if program != "tasks":
        made.update(slim_speed(value["speed"] if program == "compare" else value))
    if program != "speed":
        made["answers"] = [slim_answers(run) for run in (value["tasks"] if program == "compare" else value)["runs"]]
    if program == "compare":
        near = ClosenessResults([run["policy"] for run in made["answers"]])
        near.load(value["closeness"])
        made["near"] = {policy: {name: rounded(figures[name]) for name in NEAR_FIGURES}
                        for policy, figures in near.means().items()}
    return made


def slim_speed(value):
    return {"runs": [{"context": run["context"], "policy": run["policy"],
                      "prefill_seconds": rounded(run["prefill"]["prefill_seconds"]),
                      "values": {name: [rounded(each.get(name)) for each in run["rounds"]] for name in FIGURES}}
                     for run in value["runs"]],
            "peers": [{"context": run["context"], "peer": os.path.basename(run["peer"]),
                       "values": [rounded(each["decode_tokens_per_second"]) for each in run["rounds"]]}
                      for run in value["peers"]]}


def slim_answers(run):
    documents, tasks = {}, {}
    for question in run["questions"]:
        if is_counted(question):
            documents.setdefault(str(question["document"]), []).append(question)
        of_length = tasks.setdefault(str(question["length"]), {})
        of_length.setdefault(question["task"], []).append(question)
    return {"policy": run["policy"], "seed": run["seed"],
            "documents": {number: [counted["length"], *pair(some)] for number, some in documents.items()
                          for counted in some[:1]},
            "tasks": {length: {task: pair(some) for task, some in of_length.items()}
                      for length, of_length in tasks.items()}}


def pair(questions):
    counts = share(questions)
    return [rounded(counts["right"]), counts["asked"]]


def worst(contentions):
    """-> the contention of the start that other programs disturbed most."""
    return max(contentions, key=lambda each: each.get("other_cpu_share") or 0)


def command(line):
    """-> the command from a clone: paths in the repository from its root on, others by their last part."""
    words, left_out = ["clients/bench/cairn-bench"], False
    for before, word in zip(line, line[1:]):
        if left_out or word in LOCAL_OPTIONS:
            left_out = word in LOCAL_OPTIONS
        elif before in FILE_OPTIONS:
            words.append(place(word))
        else:
            words.append(word)
    return words


def place(path):
    inside = os.path.relpath(os.path.abspath(path), REPOSITORY)
    known = not inside.startswith(("..", "build")) and os.path.exists(path)
    return inside if known else os.path.basename(path)


def rounded(value):
    return float(f"{value:.{DIGITS}g}") if isinstance(value, float) else value


def dump(value):
    """-> JSON with a line for each field, and for each item of a list of objects."""
    lines = []
    for name, field in value.items():
        text = json.dumps(field)
        if isinstance(field, list) and field and isinstance(field[0], dict):
            text = "[\n  " + ",\n  ".join(json.dumps(item) for item in field) + "]"
        lines.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(lines) + "\n}\n"

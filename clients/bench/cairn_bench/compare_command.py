"""`cairn-bench compare`: answers and speed of policies on one model, and how near they are to full attention."""
import argparse
import os

from . import plots
from .bench import Bench, check_program
from .client import REPOSITORY
from .closeness import OPTION_NAMES, PROGRAM, ClosenessResults, closeness_documents, run_closeness
from .manifest import Contention, busy_note, manifest, run_title
from .options import (add_closeness_options, add_policy_option, add_run_options, add_speed_options, add_task_options,
                      check, progress)
from .result_file import ResultFile
from .results import TaskResults, pooled, ratio
from .speed import best_peer, spread
from .speed_command import SPEED_NAMES, run_speed, speed_results, speed_settings, conversation_note
from .table import compare_table, task_tables, with_notes
from .tasks_command import run_tasks, task_configuration, task_keys, task_settings, task_units

MODEL = os.path.join(REPOSITORY, "deploy", "models", "retrieval-3m-f16.gguf")
# Figures of which a comparison has the least and the most of all rounds too, for plots.
RANGED_FIGURES = ("decode_tokens_per_second", "read_bytes_per_token")
TASKS = os.path.join(REPOSITORY, "tests", "data", "tasks-dev-4k.jsonl")

DESCRIPTION = """\
Measures what `speed` measures and asks what `tasks` asks, for the same policies with the same model, budget and
selection; then compares them with full attention on documents of the tasks, by cairn-policy-eval. Puts the figures
beside each other: a table, JSON, and plots beside OUT. Results are kept in OUT after each step: the same command
goes on where it was stopped.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("compare", help="answers and speed of policies, with plots",
                                   description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench compare --policies full,dynakv --profile emmc --json compare.json"
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--model", default=MODEL, metavar="M", help="the GGUF file; default: the model that comes with Cairn")
    add("--tasks", default=TASKS, metavar="FILE",
        help="the tasks, as JSON lines; default: tests/data/tasks-dev-4k.jsonl")
    add_policy_option(add, ["full", "dynakv", "no-cluster"])
    add_speed_options(add, [4096])
    add_task_options(add)
    add_closeness_options(add)
    add_run_options(add)
    add("--no-plots", action="store_true", help="no PNG files; they need Debian's python3-matplotlib")


def run(options):
    """-> the exit status."""
    check(options)
    draws = bool(options.json) and not options.no_plots
    if draws:
        plots.check_installed()
    bench = Bench(options)
    units, counts = task_units(bench)
    near = closeness_documents(options, units, counts)
    programs = (PROGRAM,) if near else ()
    for program in programs:
        check_program(bench.bin_dir, program)
    results = CompareResults(speed_results(options), TaskResults(task_keys(options), counts),
                             ClosenessResults(options.policy))
    file = ResultFile(options.json, "compare",
                      {**bench.configuration(*SPEED_NAMES, *OPTION_NAMES, programs=programs),
                       **task_configuration(bench, units)}, results)
    file.begin(manifest(bench, options.seed, {"speed": speed_settings(bench), "tasks": task_settings(bench, units)}),
               Contention())
    run_speed(bench, results.speed, file)
    run_tasks(bench, units, results.tasks, file)
    run_closeness(bench, near, results.closeness, file)
    value = results.to_json()
    print(run_title(file) + "\n")
    print(task_tables(results.tasks.runs.values()))
    print("\n" + with_notes(compare_table(value["comparison"], value["speed"]), conversation_note(options),
                            busy_note(file.contentions())))
    if draws:
        for path in plots.draw(os.path.splitext(options.json)[0], value["comparison"], run_title(file)):
            progress(f"wrote {path}")
    return 0


class CompareResults:
    """Speed, answers and how near they are to full attention; a part of a ResultFile."""

    def __init__(self, speed, tasks, closeness):
        self.speed, self.tasks, self.closeness = speed, tasks, closeness

    def load(self, value):
        self.speed.load(value["speed"])
        self.tasks.load(value["tasks"])
        self.closeness.load(value["closeness"])

    def to_json(self):
        speed, tasks = self.speed.to_json(), self.tasks.to_json()
        return {"comparison": comparison(speed, pooled(tasks["runs"]), self.closeness.means()), "speed": speed,
                "tasks": tasks, "closeness": self.closeness.to_json()}


def comparison(speed, answers, closeness):
    """-> an object for each context length and policy: medians of its rounds, its answers with all seeds pooled, how
    near it is to full attention, and its speed as a share of that of `full` and of the other engine, as far as they
    are there.

    speed: SpeedResults as JSON has them. answers: {policy: what results.share gives}. closeness: of
    ClosenessResults.means.
    """
    rows = []
    rates = {(run["context"], run["policy"]): run["decode_tokens_per_second"] for run in speed["runs"]}
    for run in speed["runs"]:
        peer = best_peer(speed["peers"], run["context"])
        row = {name: value for name, value in run.items() if name not in ("prefill", "rounds")}
        row.update({"round_count": len(run["rounds"]),
                    "ranges": {name: spread(run["rounds"], name) for name in RANGED_FIGURES}})
        row.update(answers.get(run["policy"], {}))
        row.update(closeness[run["policy"]])
        row["speed_to_full"] = ratio(row["decode_tokens_per_second"], rates.get((run["context"], "full")))
        row["speed_to_peer"] = ratio(row["decode_tokens_per_second"], peer and peer["decode_tokens_per_second"])
        rows.append(row)
    return rows

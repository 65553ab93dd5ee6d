"""`cairn-bench tune`, or `cairn-tune`: which policy, with which settings, is fastest for a model on this device."""
import argparse
import copy
import json
import math
import os
import platform
import tempfile
import time

from . import tune_plan
from .bench import Bench, budget_bytes, check_program, output_of
from .client import version
from .closeness import PROGRAM as CLOSENESS_PROGRAM
from .closeness import PROGRAM_THREADS_MAX
from .folders import temporary_folder
from .manifest import Contention, busy_note, cpu_name, manifest, run_title
from .options import CommandError, UsageError, add_common_options, budget, check, integer, integers, percent, progress
from .report_command import write
from .result_file import ResultFile
from .speed_command import ContextRunner, check_room, speed_results, text_tokens
from .table import aligned, with_notes
from .tune_plan import UNTUNED, Setting

# Of the file: proto/cairn/config/v1/tuning.proto.
FORMAT = 1
MEASURED_SUFFIX = ".measured"
# Of the text, for how near a setting is to full attention: so much of it is fed behind the rest.
NEAR_TOKENS_MAX, FED_TOKENS = 3456, 384
NEAR_TOKENS_MIN = 1024
MIB = 1 << 20

DESCRIPTION = """\
Measures policies and their settings on this device, over real daemons, and writes the best ones for each length of
conversation into OUT, which tuning_path of the compute node's configuration may name. It searches as KVSwap's tuner
does: exact small keys and small groups first, as far as memory reaches and reading hides behind computing. The fastest
setting counts that keeps within the memory, and whose distributions are near enough to full attention's on the text.

It takes some minutes for a small model. Behind --minutes only what is needed for a result is measured. What was
measured is kept in OUT.measured after each step: the same command goes on where it was stopped.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("tune", help="the best policy and settings for a model on this device",
                                   description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-tune --model model.gguf --text book.txt --out tuning.json"
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the GGUF file")
    add("--text", required=True, metavar="FILE",
        help="a text of the kind that the model will read, as long as the longest context")
    add("--context", type=integers(NEAR_TOKENS_MIN), default=[4096, 16384], metavar="N[,N...]",
        help="tokens of conversations to tune for; default 4096,16384")
    add("--tokens", type=integer(2), default=48, metavar="T", help="tokens that a measurement decodes; default 48")
    add("--rounds", type=integer(1, 9), default=3, metavar="N", help="measurements of each setting; default 3")
    add("--hidden", type=percent, default=80.0, metavar="S%",
        help="share of reading that must be hidden behind computing for the search to end; default 80%%")
    add("--divergence-max", type=float, default=2.0, metavar="F",
        help="how many times as far from full attention as the defaults a setting may be; default 2")
    add("--minutes", type=integer(1, 24 * 60), default=30, metavar="N",
        help="no further setting is measured after so long, shared by the lengths; default 30")
    add("--synthetic-kv", action="store_true",
        help="store conversations in pieces of 4096 tokens that attend only themselves: for models whose prefill of "
        "the longest context takes minutes")
    add_common_options(add)
    # The rest is as a daemon has it that nobody has configured.
    parser.set_defaults(json="tuning.json", dram_budget=budget(str(64 * MIB)), policy=[UNTUNED.policy],
                        cluster_entries=UNTUNED.cluster_entries, small_key_bits=UNTUNED.small_key_bits, estimate=0.0,
                        select_ahead=True, peer=[], trace=None, batch=1)


def run(options):
    """-> the exit status."""
    check(options)
    if not 1 <= options.divergence_max < math.inf:
        raise UsageError(f"--divergence-max {options.divergence_max}: it must be 1 or more, to allow for the defaults")
    if os.path.isdir(options.json):
        raise UsageError(f"--out {options.json} is a folder: name a file in it")
    bench = Bench(options)
    check_program(bench.bin_dir, CLOSENESS_PROGRAM)
    check_room(bench)
    options.dram_budget = budget(str(budget_bytes(options.dram_budget,
                                                  max(options.context) * bench.model.kv_token_bytes)))
    tuner = Tuner(bench)
    tuner.run()
    write(options.json, json.dumps(tuner.file(), indent=1) + "\n")
    print(run_title(tuner.kept) + "\n")
    print(with_notes(tuner.table(), busy_note(tuner.kept.contentions())))
    progress(f"wrote {options.json}: start the compute node with tuning_path: \"{os.path.abspath(options.json)}\", and "
             f"the KV node with arena_bytes_max: {bench.settings(0)[0]['arena_bytes_max']}, as it was measured")
    return 0


class TuneResults:
    """Figures of settings; a part of a ResultFile."""

    def __init__(self):
        self.runs, self.near = {}, {}

    def load(self, value):
        self.runs = {(run["context"], Setting(*run["setting"])): run["figures"] for run in value["runs"]}
        self.near = {Setting(*near["setting"]): near["divergence"] for near in value["near"]}

    def to_json(self):
        return {"runs": [{"context": context, "setting": setting, "figures": figures}
                         for (context, setting), figures in self.runs.items()],
                "near": [{"setting": setting, "divergence": divergence} for setting, divergence in self.near.items()]}


class Tuner:
    """Measures settings, unless they were, and takes the best ones."""

    def __init__(self, bench):
        self.bench, self.options = bench, bench.options
        self.text = text_tokens(bench)
        # chosen: by length. missing: why there is none, by length.
        self.results, self.chosen, self.missing = TuneResults(), {}, {}
        # What was measured is of this machine and of the disk of this folder.
        here = {"machine": platform.machine(), "cpu": cpu_name(),
                "store_dir": os.path.realpath(self.options.store_dir or tempfile.gettempdir())}
        self.kept = ResultFile(self.options.json + MEASURED_SUFFIX, "tune",
                               {**bench.configuration("text", "tokens", "rounds", "synthetic_kv",
                                                      programs=[CLOSENESS_PROGRAM]), **here}, self.results)
        self.kept.begin(manifest(bench, self.options.seed[:1], bench.settings(max(self.options.context))), Contention())
        self.kept.write()

    def tune(self, context, deadline):
        """Finds the best setting for conversations of so many tokens. deadline: no setting but the untuned one is begun
        behind it.
        """
        budget_max = int(self.options.dram_budget)
        levels = tune_plan.fitting_levels(self.bench.model, context, max(self.options.context), budget_max)
        try:
            for size in tune_plan.CLUSTER_SIZES:
                self._measure(context, Setting(UNTUNED.policy, size, ""), deadline)
            tune_plan.search(levels, self.options.hidden / 100,
                             lambda setting: self._measure(context, setting, deadline))
        except TimeoutError:
            progress(f"{context} tokens: not all settings were measured within --minutes {self.options.minutes}; the "
                     "same command goes on with them")
        measured = {setting: figures for (at, setting), figures in self.results.runs.items() if at == context}
        fitting = tune_plan.within(measured, budget_max)
        if not fitting:
            least = min(map(self._memory, measured.values()))
            self.missing[context] = (f"--dram-budget {budget_max}: no setting keeps within it at {context} tokens; "
                                     f"give {int(least)} or more")
            return
        limit = self.options.divergence_max * self._divergence(UNTUNED)
        chosen = tune_plan.best(fitting, self._divergence, limit)
        if chosen is None:
            self.missing[context] = (f"--divergence-max {self.options.divergence_max:g}: no setting that keeps within "
                                     f"--dram-budget is as near at {context} tokens; allow more, or give "
                                     f"{int(self._memory(measured[UNTUNED]))}, which {UNTUNED.policy} takes")
        else:
            self.chosen[context] = chosen

    def run(self):
        """Finds them all. Raises CommandError where there is none for any length."""
        lengths, began = self.options.context, time.monotonic()
        for number, context in enumerate(lengths, 1):
            self.tune(context, began + 60 * self.options.minutes * number / len(lengths))
        if not self.chosen:
            raise CommandError("\n".join(self.missing.values()))
        for said in self.missing.values():
            progress(said)

    def _memory(self, figures):
        return tune_plan.memory_bytes(figures, int(self.options.dram_budget))

    def _measure(self, context, setting, deadline):
        """-> the share of its reading that is hidden. Raises TimeoutError where there is no more time for it."""
        if (context, setting) not in self.results.runs:
            if time.monotonic() > deadline and setting != UNTUNED:
                raise TimeoutError
            self.results.runs[context, setting] = self._run(context, setting)
            self.kept.write()
        figures = self.results.runs[context, setting]
        progress(f"{context} tokens, {tune_plan.name(setting)}: {figures['decode_tokens_per_second']:.1f} tokens/s, "
                 f"{self._memory(figures) / MIB:.1f} MiB")
        return figures["hidden_io_share"]

    def _run(self, context, setting):
        """-> medians of a setting's rounds."""
        options = copy.copy(self.options)
        options.policy, options.context = [setting.policy], [context]
        options.cluster_entries, options.small_key_bits = setting.cluster_entries, setting.small_key_bits
        bench = copy.copy(self.bench)
        bench.options = options
        results = speed_results(options)
        ContextRunner(bench, results, _Unwritten(), context, self.text).run()
        return {name: value for name, value in results.to_json()["runs"][0].items()
                if name not in ("rounds", "policy", "context")}

    def _divergence(self, setting):
        """-> the mean divergence from full attention on the text's beginning, in nats."""
        if setting not in self.results.near:
            self.results.near[setting] = self._measure_divergence(setting)
            self.kept.write()
        return self.results.near[setting]

    def _measure_divergence(self, setting):
        prefill = min(len(self.text), self.bench.model.context_tokens, NEAR_TOKENS_MAX) - FED_TOKENS
        options = self.options
        with temporary_folder("cairn-tune-") as folder:
            path = os.path.join(folder, "near.json")
            bits = ["--small-key-bits", setting.small_key_bits] if setting.small_key_bits else []
            output_of(
                [os.path.join(self.bench.bin_dir, CLOSENESS_PROGRAM), "--model", options.model, "--text", options.text,
                 "--policy", setting.policy, "--cluster-entries", str(setting.cluster_entries), *bits,
                 "--prefill", str(prefill), "--tokens", str(FED_TOKENS), "--every", str(FED_TOKENS),
                 "--select", f"{options.select}%", "--select-min", str(options.select_min),
                 "--select-max", str(options.select_max), "--kv-format", options.kv_format,
                 "--seed", str(options.seed[0]), "--threads", str(min(options.threads, PROGRAM_THREADS_MAX)),
                 "--json", path], tune_plan.name(setting))
            with open(path, encoding="utf-8") as file:
                divergence = json.load(file)["policies"][0]["kl"]["mean"]
        progress(f"{tune_plan.name(setting)}: {1000 * divergence:.1f} thousandths of a nat from full attention")
        return divergence

    def file(self):
        """-> the tuning file, as proto/cairn/config/v1/tuning.proto has it."""
        options = self.options
        return {"format_version": FORMAT, "cairn_version": version(), "model_name": os.path.basename(options.model),
                "model_digest": self.bench.model_digest(), "machine": platform.machine(), "cpu": cpu_name(),
                "flash": options.profile, "kv_format": options.kv_format, "dram_budget_bytes": int(options.dram_budget),
                "entries": [self._entry(context, setting) for context, setting in sorted(self.chosen.items())]}

    def _entry(self, context, setting):
        figures, untuned = (self.results.runs[context, each] for each in (setting, UNTUNED))
        return {"conversation_count": 1, "context_tokens": context, "policy": setting.policy,
                "select_percent": self.options.select, "select_tokens_min": self.options.select_min,
                "select_tokens_max": self.options.select_max, "cluster_target_entries": setting.cluster_entries,
                "small_key_bits": setting.small_key_bits,
                "figures": {"tokens_per_second": figures["decode_tokens_per_second"],
                            "untuned_tokens_per_second": untuned["decode_tokens_per_second"],
                            "memory_bytes": int(self._memory(figures)),
                            "divergence": self._divergence(setting), "untuned_divergence": self._divergence(UNTUNED)}}

    def table(self):
        """-> everything that was measured, with what was taken."""
        rows = [["setting", "tokens", "tokens/s", "hidden", "MiB read", "MiB memory", "divergence", ""]]
        for context, chosen in sorted(self.chosen.items()):
            for (at, setting), figures in self.results.runs.items():
                if at != context:
                    continue
                near, hidden = self.results.near.get(setting), figures["hidden_io_share"]
                rows.append([tune_plan.name(setting), str(context), f"{figures['decode_tokens_per_second']:.1f}",
                             "" if hidden is None else f"{100 * hidden:.0f}%",
                             f"{figures['read_bytes_per_token'] / MIB:.2f}",
                             f"{self._memory(figures) / MIB:.1f}",
                             "" if near is None else f"{1000 * near:.1f}",
                             "taken" if setting == chosen else "untuned" if setting == UNTUNED else ""])
        return aligned(rows)


class _Unwritten:
    """Rounds of a setting are kept together, once they are all there."""

    def write(self):
        pass

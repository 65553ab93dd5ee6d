"""How near policies are to full attention on documents of the tasks, as cairn-policy-eval measures it.

The last tokens of a document are fed behind the others, whatever the model would say; docs/policy-eval.md describes
what is measured. No daemon takes part: answers are those of the daemons, bit for bit.
"""
import json
import os
import statistics

from . import interrupts
from .bench import output_of
from .folders import temporary_folder
from .options import CommandError, progress

PROGRAM = "cairn-policy-eval"
# The most that the program takes; its figures do not depend on them.
PROGRAM_THREADS_MAX = 256
OPTION_NAMES = ("closeness", "closeness_tokens")
# Of a policy on a document; docs/cairn-bench.md describes them.
FIGURES = ("kl_mean", "kl_p99", "same_best", "recall", "attended_tokens", "cluster_count", "cluster_mean_size",
           "cluster_variance")
# Of several documents: a tail is that of the worst, everything else a mean.
WORST_FIGURES = frozenset(["kl_p99"])


class ClosenessResults:
    """Figures of each policy, document by document; a part of a ResultFile."""

    def __init__(self, policies):
        self.policies, self.documents = policies, []

    def load(self, value):
        self.documents = [{**document, "policies": list(document["policies"])} for document in value["documents"]]

    def has(self, number):
        """-> whether the document of this number is there."""
        return any(document["document"] == number for document in self.documents)

    def add(self, document):
        self.documents.append(document)

    def means(self):
        """-> {policy: FIGURES over all documents, None where there is none}"""
        return {policy: merged([figures for document in self.documents for figures in document["policies"]
                                if figures["policy"] == policy]) for policy in self.policies}

    def to_json(self):
        return {"documents": self.documents}


def merged(some):
    """-> FIGURES of several documents as one."""
    values = {name: [figures[name] for figures in some if figures[name] is not None] for name in FIGURES}
    return {name: (max if name in WORST_FIGURES else statistics.fmean)(each) if each else None
            for name, each in values.items()}


def closeness_documents(options, units, counts):
    """-> the documents to be measured: of those that the tasks ask about, the longest first.

    units, counts: of tasks_command.task_units. The program finds a document by its number and takes its "context" as
    it is, so that only Cairn's own form, which has its own token count, is the same text to both.
    """
    if not options.closeness:
        return []
    chosen = {unit.length: unit.documents for unit in units}
    own = [document for length in sorted(chosen, reverse=True) for document in chosen[length]
           if document.number not in counts]
    if not own:
        progress(f"{options.tasks}: no document in Cairn's own form is asked about: how near policies are to full "
                 "attention is not measured")
    return own[:options.closeness]


def run_closeness(bench, documents, results, file):
    """Measures what is missing in results; the file is written after each document."""
    for number, document in enumerate(documents):
        if results.has(document.number):
            continue
        interrupts.check()
        token_count = count_tokens(bench, document)
        prefill = max(1, token_count - bench.options.closeness_tokens)
        progress(f"[{number + 1}/{len(documents)}] document {document.number}: the last {token_count - prefill} of "
                 f"{token_count} tokens are compared with full attention")
        results.add(measure(bench, document, prefill))
        file.write()


def count_tokens(bench, document):
    """-> how many tokens the model makes of a document, the one that begins a text included; what a tasks file says
    is the count of the model that it was made for.
    """
    return len(bench.token_ids(f"document {document.number}", document.context))


def measure(bench, document, prefill):
    """Runs the program for all policies -> what results have of a document."""
    with temporary_folder("cairn-bench-") as folder:
        path = os.path.join(folder, "closeness.json")
        output_of(program_command(bench, document.number, prefill, path), f"document {document.number}")
        try:
            with open(path, encoding="utf-8") as file:
                return parse(json.load(file))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise CommandError(f"document {document.number}: {PROGRAM} wrote no figures that are understood "
                               f"({type(error).__name__}: {error}): build it anew") from error


def program_command(bench, number, prefill, path):
    options = bench.options
    return [os.path.join(bench.bin_dir, PROGRAM), "--model", options.model, "--policy", ",".join(options.policy),
            "--tasks", options.tasks, "--document", str(number), "--prefill", str(prefill),
            "--select", f"{options.select}%", "--select-min", str(options.select_min),
            "--select-max", str(options.select_max), "--cluster-entries", str(options.cluster_entries),
            "--estimate", f"{options.estimate}%", *([] if options.select_ahead else ["--no-select-ahead"]),
            "--kv-format", options.kv_format, "--seed", str(options.seed[0]),
            "--threads", str(min(options.threads, PROGRAM_THREADS_MAX)), "--json", path]


def parse(value):
    """-> what results have of a document; raises KeyError or TypeError for what is no JSON of the program."""
    configuration = value["configuration"]
    return {"document": configuration["document"], "token_count": configuration["token_count"],
            "prefill": configuration["prefill"], "policies": [figures_of(policy) for policy in value["policies"]]}


def figures_of(policy):
    """-> FIGURES of a policy; what is of clusters is None where it has no index of them."""
    index = policy["index"][-1] if policy["index"] else {"clusters": 0}
    has = index["clusters"] > 0
    return {
        "policy": policy["policy"],
        "kl_mean": policy["kl"]["mean"],
        "kl_p99": policy["kl"]["p99"],
        "same_best": policy["same_best"],
        "recall": policy["recall"]["mean"],
        "attended_tokens": policy["attended"]["mean"],
        "cluster_count": index["clusters"] if has else None,
        "cluster_mean_size": index["mean_size"] if has else None,
        "cluster_variance": index["variance"] if has else None,
    }

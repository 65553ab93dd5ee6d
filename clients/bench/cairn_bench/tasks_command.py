"""`cairn-bench tasks`: which questions of a tasks file are answered right, by policy, seed and length."""
import argparse
import concurrent.futures
import dataclasses
import fractions
import os
import re
import subprocess
import sys
import threading
import time

import grpc

from .client import REPOSITORY, Client, Retrieval, seconds
from .daemons import PROFILES, DaemonPair
from .manifest import Contention, manifest, sha256
from .results import TaskResults
from .table import task_tables
from .tasks import STOP_TEXT, is_right, load_documents, select_documents

DAEMONS = ("cairn-kv-node", "cairn-compute-node")
DEFAULT_POLICIES = ["full", "dynakv"]
# These make no clusters and draw nothing, so that one seed is all of them.
SEEDLESS_POLICIES = frozenset(["full", "oracle", "streaming", "no-cluster"])
LIST_MAX = 64
PARALLEL_MAX = 16
# The daemon's default, and the least it takes.
GENERATION_COUNT = 8
DRAM_BUDGET_BYTES_MIN = 1 << 20
# Flash for one document: entries move when clusters change, and their old places are freed later.
EXTENT_FILE_SHARE = 4
EXTENT_FILE_BYTES_MIN = 256 << 20
ANSWERS_TOKENS_MAX = 4096
# A daemon that ends closes its connections a little earlier.
END_WAIT_S = 2

DESCRIPTION = """\
Asks the questions of a tasks file and compares the answers. Each line of the file is a document:
  {"token_count": N, "context": TEXT, "questions": [{"task", "question", "answer"}, ...]}
The context is computed once and stored. Each question goes on from there, as "\\nQ: QUESTION\\nA:", and is answered
greedily up to the end of the line. It is right when it equals the answer, leading space included; the items of a
task whose name begins with multivalue may come in any order. multivalue4 is reported and no part of the accuracy.

A KV node with a new store and a compute node are started for each length, seed and policy, and stopped afterwards.
Results are kept in OUT after each document: the same command goes on where it was stopped.
"""


class CommandError(Exception):
    """What the user can change; shown without a traceback."""


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one pair of daemons does."""
    length: int
    key: tuple  # policy, seed
    documents: list


def add_parser(subparsers):
    parser = subparsers.add_parser("tasks", help="answers to questions about long documents", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the GGUF file")
    add("--tasks", required=True, metavar="FILE", help="the tasks, as JSON lines")
    add("--json", "--out", dest="json", metavar="OUT",
        help="where the results go; a file with results of the same configuration is gone on with")
    add("--policy", type=names, default=DEFAULT_POLICIES, metavar="P[,P...]",
        help="how it is chosen what is read; default full,dynakv: DynaKV beside full attention, with "
        "which all others are compared if it is among them")
    add("--seed", type=integers(1), default=[1], metavar="N[,N...]",
        help="of clustering; each policy runs with each, but for those that draw nothing. Default 1")
    add("--select", type=percent, default=3.0, metavar="S%", help="share of the context that is attended; default 3%%")
    add("--select-min", type=integer(1), default=192, metavar="N", help="tokens attended at least; default 192")
    add("--select-max", type=integer(1), default=1024, metavar="N", help="tokens attended at most; default 1024")
    add("--cluster-entries", type=integer(1), default=8, metavar="N", help="mean size of a cluster; default 8")
    add("--prefill", type=integer(0), default=0, metavar="N",
        help="prefill only the first N tokens of a document and compute the others one by one; default 0: all")
    add("--lengths", type=integers(1), default=[], metavar="N[,N...]",
        help="only documents of about so many tokens; default: all, each with the nearest power of two")
    add("--documents", type=integer(0), default=0, metavar="N",
        help="so many of each length, in turn one of each kind; default 0: all")
    add("--kv-format", choices=("f16", "f32", "q8", "q4"), default="f16", help="of keys and values; default f16")
    add("--dram-budget", type=budget, metavar="B",
        help="memory for keys and values: bytes, or a share such as 1/13 of what a document of the length takes")
    add("--profile", choices=tuple(PROFILES), default="nvme", help="how fast the flash is; default nvme: as it is")
    add("--parallel", type=integer(1, PARALLEL_MAX), default=1, metavar="N",
        help=f"questions at once, up to {PARALLEL_MAX}; answers are the same, times are not. Default 1")
    add("--build", default=os.path.join(REPOSITORY, "build", "release"), metavar="DIR",
        help="where bin/ with the daemons is; default build/release")
    add("--store-dir", metavar="DIR", help="where the store is made; default: the temporary directory")


def run(options):
    """-> the exit status."""
    check_lists(options)
    documents = load_documents(options.tasks)
    chosen = select_documents(documents, options.lengths, options.documents)
    bin_dir = os.path.join(options.build, "bin")
    token_bytes = inspect(bin_dir, options.model, options.kv_format)
    keys = [(policy, seed) for policy in options.policy for seed in options.seed
            if policy not in SEEDLESS_POLICIES or seed == options.seed[0]]
    units = [Unit(length, (policy, seed), some) for length, some in chosen.items() for seed in options.seed
             for policy in options.policy if (policy, seed) in keys]
    results = TaskResults(options.json, configuration(options, bin_dir, chosen), keys)
    results.manifest = manifest(options.profile, options.seed, {
        str(length): daemon_settings(options, token_bytes, some) for length, some in chosen.items()})
    runner = Runner(options, bin_dir, token_bytes, results, sum(len(unit.documents) for unit in units))
    for unit in units:
        runner.run_unit(unit)
    print(task_tables(results.runs.values()))
    return 0


class Runner:
    """Runs units; results are kept after each document."""

    def __init__(self, options, bin_dir, token_bytes, results, count):
        self.options, self.bin_dir, self.token_bytes, self.results = options, bin_dir, token_bytes, results
        self.count, self.contention = count, Contention()
        if results.done_count():
            progress(f"{options.json}: {results.done_count()} of {count} documents are there; the others follow")

    def run_unit(self, unit):
        missing = [document for document in unit.documents if not self.results.done(unit.key, document.number)]
        if not missing:
            return
        kv, compute = daemon_settings(self.options, self.token_bytes, unit.documents)
        clients = []
        with DaemonPair(self.bin_dir, self.options.model, kv, compute, self.options.store_dir,
                        on_end=lambda: [client.close() for client in clients]) as daemons:
            client = Client(daemons.socket)
            clients.append(client)
            try:
                for document in missing:
                    self._run_document(unit, document, client, daemons)
            # A closed channel refuses a new call with ValueError.
            except (grpc.RpcError, ValueError) as error:
                daemons.check(END_WAIT_S)
                if isinstance(error, ValueError):
                    raise
                raise CommandError(f"document {document.number}: {error.code().name}: {error.details()}") from error
            finally:
                client.close()

    def _run_document(self, unit, document, client, daemons):
        policy, seed = unit.key
        retrieval = Retrieval(policy, self.options.select, self.options.select_min, self.options.select_max,
                              self.options.cluster_entries, seed)
        start = time.monotonic()
        record, questions = ask_document(client, document, retrieval, self.options)
        took = time.monotonic() - start
        for question in questions:
            question["length"] = unit.length
        self.results.manifest["contention"] = self.contention.to_json(daemons.pids())
        self.results.add(unit.key, {**record, "length": unit.length, "total_seconds": took}, questions)
        right = sum(question["correct"] for question in questions)
        progress(f"[{self.results.done_count()}/{self.count}] {policy} seed {seed}, document {document.number} of "
                 f"{document.token_count} tokens: {right}/{len(questions)} right, stored in "
                 f"{record['document_seconds']:.1f} s, {took:.1f} s in all")


def ask_document(client, document, retrieval, options):
    """Stores a document, asks its questions, deletes it -> what it took, the questions."""
    conversation, stored = client.store(document.context, retrieval, options.prefill)
    one_fork = threading.Lock()  # a conversation that is being forked refuses another fork

    def ask(question):
        with one_fork:
            fork = client.fork(conversation)
        said, finished = client.answer(fork, question.prompt(), question.tokens_max(), STOP_TEXT)
        client.delete(fork)
        return said, finished

    answers = in_threads(ask, document.questions, options.parallel, client.close)
    client.delete(conversation)
    questions = [{"document": document.number, "question": number, "task": question.task,
                  "token_count": document.token_count, "correct": is_right(question, said), "said": said}
                 for number, (question, (said, _)) in enumerate(zip(document.questions, answers))]
    finished = [each for _, each in answers]
    record = {
        "document": document.number,
        "token_count": document.token_count,
        "document_seconds": seconds(stored.prefill_time),
        "document_read_bytes": stored.kv_read_bytes,
        "answer_tokens": sum(each.generated_token_count for each in finished),
        "answer_read_bytes": sum(each.kv_read_bytes for each in finished),
        # The time is that between tokens.
        "decode_tokens": sum(max(0, each.generated_token_count - 1) for each in finished),
        "decode_seconds": sum(seconds(each.decode_time) for each in finished),
        "kv_dram_peak_bytes": max(each.kv_dram_peak_bytes for each in (stored, *finished)),
        "kv_flash_bytes": stored.kv_flash_bytes,
        "io_engine": stored.io_engine,
    }
    return record, questions


def in_threads(function, values, count, cancel):
    """-> function of each value, in order; on an error or an interrupt cancel() ends those that run."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        futures = [pool.submit(function, value) for value in values]
        try:
            return [future.result() for future in futures]
        except BaseException:
            for future in futures:
                future.cancel()
            cancel()
            raise


def daemon_settings(options, token_bytes, documents):
    """-> the settings of the KV node and of the compute node for documents of one length."""
    longest_bytes = token_bytes * (max(document.token_count for document in documents) + ANSWERS_TOKENS_MAX)
    kv = {"extent_file_bytes": max(EXTENT_FILE_BYTES_MIN, EXTENT_FILE_SHARE * longest_bytes),
          "prefill_extent_file": False, "device_profile": PROFILES[options.profile]}
    compute = {"kv_format": options.kv_format, "generation_count_max": max(GENERATION_COUNT, options.parallel)}
    if options.dram_budget:
        share = max(document.token_count for document in documents) * token_bytes
        asked = options.dram_budget * (share if options.dram_budget < 1 else 1)
        compute["dram_budget_bytes"] = max(DRAM_BUDGET_BYTES_MIN, int(asked)) if options.dram_budget < 1 else int(asked)
    return kv, compute


def configuration(options, bin_dir, chosen):
    """-> what decides over the results, by name: a run is only gone on with when all of it is the same."""
    try:
        digests = {f"{name} (SHA-256)": sha256(path) for name, path in (
            ("model", options.model), ("tasks", options.tasks),
            *((name, os.path.join(bin_dir, name)) for name in DAEMONS))}
    except OSError as error:
        raise CommandError(f"cannot read {error.filename}: {error.strerror}") from error
    names_of = ("policy", "seed", "select", "select_min", "select_max", "cluster_entries", "prefill", "kv_format",
                "profile", "parallel")
    return {**digests, **{name: getattr(options, name) for name in names_of},
            "dram_budget": str(options.dram_budget or "default"),
            "documents": {str(length): [document.number for document in some] for length, some in chosen.items()}}


def inspect(bin_dir, model, kv_format):
    """-> bytes of keys and values of one token; raises CommandError for a model that Cairn does not run."""
    for name in ("cairn", *DAEMONS):
        if not os.access(os.path.join(bin_dir, name), os.X_OK):
            raise CommandError(f"no program {os.path.join(bin_dir, name)}: build it (cmake --build --preset release), "
                               "or say with --build where it is")
    done = subprocess.run([os.path.join(bin_dir, "cairn"), "model", "inspect", "--no-probe", model],
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CommandError(done.stderr.strip())
    said = dict(re.findall(r"(\d+) in (\w+)", "".join(re.findall(r"^kv_bytes_token:.*", done.stdout, re.MULTILINE))))
    sizes = {name: int(size) for size, name in said.items()}
    refused = re.findall(r"^runs:\s+no: (.*)", done.stdout, re.MULTILINE)
    if refused or kv_format not in sizes:
        raise CommandError(f"{model} does not run with Cairn: {'; '.join(refused) or 'no keys and values'}")
    return sizes[kv_format]


def check_lists(options):
    for name in ("policy", "seed", "lengths"):
        values = getattr(options, name)
        if len(values) != len(set(values)) or len(values) > LIST_MAX:
            raise CommandError(f"--{name} has {len(values)} values: give each once, at most {LIST_MAX}")
    if options.select_max < options.select_min:
        raise CommandError(f"--select-max {options.select_max} is less than --select-min {options.select_min}")


def names(text):
    values = text.split(",")
    if not all(re.fullmatch(r"[a-z][a-z0-9-]*", value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names")
    return values


def integer(least, most=(1 << 63) - 1):
    def parse(text):
        if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {least} to {most}")
        return int(text)
    return parse


def integers(least):
    return lambda text: [integer(least)(one) for one in text.split(",")]


def percent(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", text)
    if not found or not 0 < float(found.group(1)) <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no share such as 3%")
    return float(found.group(1))


def budget(text):
    found = re.fullmatch(r"[1-9]\d{0,18}|[1-9]\d{0,8}/[1-9]\d{0,8}", text)
    value = fractions.Fraction(text) if found else None
    if not found or ("/" in text and value >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of bytes nor a share such as 1/13")
    return value


def progress(text):
    print(text, file=sys.stderr, flush=True)

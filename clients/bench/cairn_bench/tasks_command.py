"""`cairn-bench tasks`: which questions of a tasks file are answered right, by policy, seed and length."""
import argparse
import concurrent.futures
import dataclasses
import threading
import time

from .bench import Bench
from .client import seconds
from .kv_stats import read_bytes
from .manifest import Contention, manifest
from .options import (SEEDLESS_POLICIES, add_policy_option, add_run_options, add_task_options, check, progress,
                      retrieval)
from .result_file import ResultFile
from .results import TaskResults
from .table import task_tables
from .tasks import STOP_TEXT, is_right, load_documents, select_documents

DESCRIPTION = """\
Asks the questions of a tasks file and compares the answers. Each line of the file is a document:
  {"token_count": N, "context": TEXT, "questions": [{"task", "question", "answer"}, ...]}
The context is computed once and stored. Each question goes on from there, as "\\nQ: QUESTION\\nA:", and is answered
greedily up to the end of the line. It is right when it equals the answer, leading space included; the items of a
task whose name begins with multivalue may come in any order. multivalue4 is reported and no part of the accuracy.

A KV node with a new store and a compute node are started for each length, seed and policy, and stopped afterwards.
Results are kept in OUT after each document: the same command goes on where it was stopped.
"""


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one pair of daemons does."""
    length: int
    key: tuple  # policy, seed
    documents: list

    def token_count(self):
        """-> tokens of the longest document."""
        return max(document.token_count for document in self.documents)


def add_parser(subparsers):
    parser = subparsers.add_parser("tasks", help="answers to questions about long documents", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the GGUF file")
    add("--tasks", required=True, metavar="FILE", help="the tasks, as JSON lines")
    add_policy_option(add, ["full", "dynakv"])
    add_run_options(add)
    add_task_options(add)


def run(options):
    """-> the exit status."""
    check(options)
    units = task_units(options)
    bench = Bench(options)
    results = TaskResults(task_keys(options))
    file = ResultFile(options.json, "tasks", task_configuration(bench, units), results)
    file.manifest = manifest(options.profile, options.seed, task_settings(bench, units))
    run_tasks(bench, units, results, file)
    print(task_tables(results.runs.values()))
    return 0


def task_keys(options):
    """-> [(policy, seed)], each once."""
    return [(policy, seed) for policy in options.policy for seed in options.seed
            if policy not in SEEDLESS_POLICIES or seed == options.seed[0]]


def task_units(options):
    """-> [Unit]: what is compared of one length is close together."""
    chosen = select_documents(load_documents(options.tasks), options.lengths, options.documents)
    keys = task_keys(options)
    return [Unit(length, (policy, seed), some) for length, some in chosen.items() for seed in options.seed
            for policy in options.policy if (policy, seed) in keys]


def task_configuration(bench, units):
    return {**bench.configuration("tasks", "prefill", "parallel"),
            "documents": {str(unit.length): [document.number for document in unit.documents] for unit in units}}


def task_settings(bench, units):
    """-> {length: the daemons' settings}"""
    return {str(unit.length): bench.settings(unit.token_count()) for unit in units}


def run_tasks(bench, units, results, file):
    """Runs what is missing in results; the file is written after each document."""
    runner = TaskRunner(bench, results, file, sum(len(unit.documents) for unit in units))
    for unit in units:
        runner.run_unit(unit)


class TaskRunner:
    """Runs units; results are kept after each document."""

    def __init__(self, bench, results, file, count):
        self.bench, self.results, self.file = bench, results, file
        self.count, self.contention = count, Contention()
        if results.done_count():
            progress(f"{file.path}: {results.done_count()} of {count} documents are there; the others follow")

    def run_unit(self, unit):
        missing = [document for document in unit.documents if not self.results.done(unit.key, document.number)]
        if not missing:
            return
        number = missing[0].number
        with self.bench.running(unit.token_count(), lambda: f"document {number}") as running:
            for document in missing:
                number = document.number
                self._run_document(unit, document, running)

    def _run_document(self, unit, document, running):
        options, (policy, seed) = self.bench.options, unit.key
        start = time.monotonic()
        record, questions = ask_document(running.client, running.kv, document, retrieval(options, policy, seed),
                                         options)
        took = time.monotonic() - start
        for question in questions:
            question["length"] = unit.length
        self.file.manifest["contention"] = self.contention.to_json(running.daemons.pids())
        self.results.add(unit.key, {**record, "length": unit.length, "total_seconds": took}, questions)
        self.file.write()
        right = sum(question["correct"] for question in questions)
        progress(f"[{self.results.done_count()}/{self.count}] {policy} seed {seed}, document {document.number} of "
                 f"{document.token_count} tokens: {right}/{len(questions)} right, stored in "
                 f"{record['document_seconds']:.1f} s, {took:.1f} s in all")


def ask_document(client, kv, document, chosen, options):
    """Stores a document, asks its questions, deletes it -> what it took, the questions.

    chosen: the Retrieval of its conversations.
    """
    before = kv.counters()
    conversation, stored = client.store(chosen, options.prefill, text=document.context)
    between = kv.counters()
    one_fork = threading.Lock()  # a conversation that is being forked refuses another fork

    def ask(question):
        with one_fork:
            fork = client.fork(conversation)
        said, finished = client.answer(fork, question.prompt(), question.tokens_max(), STOP_TEXT)
        client.delete(fork)
        return said, finished

    answers = in_threads(ask, document.questions, options.parallel, client.close)
    after = kv.counters()
    client.delete(conversation)
    questions = [{"document": document.number, "question": number, "task": question.task,
                  "token_count": document.token_count, "correct": is_right(question, said), "said": said}
                 for number, (question, (said, _)) in enumerate(zip(document.questions, answers))]
    finished = [each for _, each in answers]
    record = {
        "document": document.number,
        "token_count": document.token_count,
        "document_seconds": seconds(stored.prefill_time),
        "document_read_bytes": read_bytes(before, between),
        "answer_tokens": sum(each.generated_token_count for each in finished),
        "answer_read_bytes": read_bytes(between, after),
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

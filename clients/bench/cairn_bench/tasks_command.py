"""`cairn-bench tasks`: which questions of a tasks file are answered right, by policy, seed and length."""
import argparse
import concurrent.futures
import dataclasses
import threading
import time

from .bench import Bench
from .client import message, seconds
from .kv_stats import read_bytes
from .manifest import Contention, busy_note, manifest, run_title
from .options import (SEEDLESS_POLICIES, CommandError, UsageError, add_policy_option, add_run_options,
                      add_task_options, check, progress, retrieval)
from .result_file import ResultFile
from .results import TaskResults, share
from .table import right_of, task_tables, with_notes
from .task_file import check_context, load_documents, stored_counts, with_counts
from .tasks import select_documents

DESCRIPTION = """\
Asks the questions of a tasks file and compares the answers. Each line of the file is a document:
  {"token_count": N, "context": TEXT, "questions": [{"task", "question", "answer"}, ...]}
The context is computed once and stored. Each question goes on from there, as "\\nQ: QUESTION\\nA:", and is answered
greedily up to the end of the line. It is right when it equals the answer, leading space included; the items of a
task whose name begins with multivalue may come in any order. multivalue4 is reported and no part of the accuracy.
Files of RULER and LongBench, and needles in haystacks, are taken too; their answers have scores between 0 and 1.
docs/cairn-bench.md says how.

A KV node with a new store and a compute node are started for each length, seed and policy, and stopped afterwards.
Results are kept in OUT after each document: the same command goes on where it was stopped.
"""


@dataclasses.dataclass(frozen=True)
class Unit:
    """What one pair of daemons does."""
    length: int
    key: tuple  # policy, seed
    documents: list

    def token_count(self, options):
        """-> tokens of the longest document, with what is decoded behind it."""
        return max(document.token_count for document in self.documents) + options.decode


def add_parser(subparsers):
    parser = subparsers.add_parser("tasks", help="answers to questions about long documents", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench tasks --model model.gguf --tasks tasks.jsonl --json tasks.json"
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
    bench = Bench(options)
    units, counts = task_units(bench)
    results = TaskResults(task_keys(options), counts)
    file = ResultFile(options.json, "tasks", task_configuration(bench, units), results)
    file.begin(manifest(bench, options.seed, task_settings(bench, units)), Contention())
    run_tasks(bench, units, results, file)
    print(run_title(file) + "\n")
    print(with_notes(task_tables(results.runs.values()), busy_note(file.contentions())))
    return 0


def task_keys(options):
    """-> [(policy, seed)], each once."""
    return [(policy, seed) for policy in options.policy for seed in options.seed
            if options.decode or policy not in SEEDLESS_POLICIES or seed == options.seed[0]]


def task_units(bench):
    """-> [Unit]: what is compared of one length is close together; and {number of a document: token count}, of those
    that the model had to count.
    """
    options = bench.options
    documents, left_out = load_documents(options.tasks, options.prompts)
    for task, count in left_out.items():
        progress(f"{options.tasks}: {count} of {task} left out: its answers are not scored")
    if options.chat and options.decode:
        raise UsageError("--decode goes on with a text, and --chat has messages: give one of them")
    own = next((document for document in documents if document.token_count), None)
    if options.chat and own:
        raise CommandError(f"{options.tasks}:{own.number + 1}: --chat is for RULER, LongBench and needles: answers to "
                           "these questions must be right to the character")
    counts = count_tokens(bench, [document for document in documents if not document.token_count])
    documents = with_counts(documents, counts)
    chosen = select_documents(documents, options.lengths, options.documents)
    check_context(options.tasks, [document for some in chosen.values() for document in some
                                  if document.number in counts or options.decode], bench.model.context_tokens,
                  options.decode)
    keys = task_keys(options)
    return [Unit(length, (policy, seed), some) for length, some in chosen.items() for seed in options.seed
            for policy in options.policy if (policy, seed) in keys], counts


def count_tokens(bench, documents):
    """-> {number of a document: tokens of its context}, as far as possible from the results of an earlier start."""
    if not documents:
        return {}
    counts = stored_counts(bench.options.json, bench.configuration("tasks"))
    missing = [document for document in documents if document.number not in counts]
    if missing:
        progress(f"{bench.options.tasks}: counting the tokens of {len(missing)} documents")
        with bench.running(0, lambda: f"document {document.number}") as running:
            for document in missing:
                counts[document.number] = running.client.token_count(document.context)
    return counts


def task_configuration(bench, units):
    return {**bench.configuration("tasks", "prefill", "decode", "parallel", "chat"),
            "documents": {str(unit.length): [document.number for document in unit.documents] for unit in units}}


def task_settings(bench, units):
    """-> {length: the daemons' settings}"""
    return {str(unit.length): bench.settings(unit.token_count(bench.options)) for unit in units}


def run_tasks(bench, units, results, file):
    """Runs what is missing in results; the file is written after each document."""
    runner = TaskRunner(bench, results, file, sum(len(unit.documents) for unit in units))
    for unit in units:
        runner.run_unit(unit)


class TaskRunner:
    """Runs units; results are kept after each document."""

    def __init__(self, bench, results, file, count):
        self.bench, self.results, self.file = bench, results, file
        self.count = count
        if results.done_count():
            progress(f"{file.path}: {results.done_count()} of {count} documents are there; the others follow")

    def run_unit(self, unit):
        missing = [document for document in unit.documents if not self.results.done(unit.key, document.number)]
        if not missing:
            return
        number = missing[0].number
        with self.bench.running(unit.token_count(self.bench.options), lambda: f"document {number}") as running:
            for document in missing:
                number = document.number
                self._run_document(unit, document, running)

    def _run_document(self, unit, document, running):
        options, (policy, seed) = self.bench.options, unit.key
        start = time.monotonic()
        record, questions = ask_document(running.client, running.kv, document, retrieval(options, policy, seed),
                                         options, self.bench.model.context_tokens)
        took = time.monotonic() - start
        for question in questions:
            question["length"] = unit.length
        self.results.add(unit.key, {**record, "length": unit.length, "total_seconds": took}, questions)
        self.file.write()
        progress(f"[{self.results.done_count()}/{self.count}] {policy} seed {seed}, document {document.number} of "
                 f"{document.token_count} tokens: {right_of(share(questions))} right, stored in "
                 f"{record['document_seconds']:.1f} s, {took:.1f} s in all")


def check_room(client, document, decoded, context_tokens):
    """Raises CommandError where a question and its answer may find no room behind a document and what is decoded."""
    longest = max((client.token_count(question.prompt()) + question.tokens_max() for question in document.questions),
                  default=0)
    if document.token_count + decoded + longest > context_tokens:
        raise CommandError(f"document {document.number} of {document.token_count} tokens, {decoded} of the model's own "
                           f"and a question with its answer, up to {longest}, are more than the model's "
                           f"{context_tokens}: give a smaller --decode, or choose others with --lengths")


def ask_document(client, kv, document, chosen, options, context_tokens):
    """Stores a document, goes on with it, asks its questions, deletes it -> what it took, the questions.

    chosen: options.retrieval of its conversations. context_tokens: the model's.
    """
    in_chat = options.chat and document.chat
    if options.decode:
        check_room(client, document, options.decode, context_tokens)
    before = kv.counters()
    context = message(document.context) if in_chat else {"text": document.context}
    conversation, stored = client.store(chosen, options.prefill, **context)
    decoded_from = kv.counters()
    written = [client.write(conversation, options.decode, chosen["seed"])] if options.decode else []
    for each in written:
        if each.generated_token_count != options.decode:
            raise CommandError(f"document {document.number}: what the model goes on with ended behind "
                               f"{each.generated_token_count} of {options.decode} tokens: give a smaller --decode")
    between = kv.counters()
    one_fork = threading.Lock()  # a conversation that is being forked refuses another fork

    def ask(question):
        with one_fork:
            fork = client.fork(conversation)
        prompt = message(question.message()) if in_chat else {"text": question.prompt()}
        said, finished = client.answer(fork, question.tokens_max(), question.stop, **prompt)
        client.delete(fork)
        if client.is_full(finished):
            raise CommandError(f"document {document.number}: the model's {context_tokens} tokens are full behind "
                               f"{said!r}, before the answer ended: choose shorter documents with --lengths")
        return said, finished

    answers = in_threads(ask, document.questions, options.parallel, client.close)
    after = kv.counters()
    client.delete(conversation)
    questions = [{"document": document.number, "question": number, "task": question.task,
                  "token_count": document.token_count, **question.judge(said), "said": said}
                 for number, (question, (said, _)) in enumerate(zip(document.questions, answers))]
    finished = [each for _, each in answers]
    record = {
        "document": document.number,
        "token_count": document.token_count,
        "document_seconds": seconds(stored.prefill_time),
        "document_read_bytes": read_bytes(before, decoded_from),
        "freely_decoded_tokens": sum(each.generated_token_count for each in written),
        "freely_decoded_seconds": sum(seconds(each.decode_time) for each in written),
        "freely_decoded_read_bytes": read_bytes(decoded_from, between),
        "answer_tokens": sum(each.generated_token_count for each in finished),
        "answer_read_bytes": read_bytes(between, after),
        # The time is that between tokens.
        "decode_tokens": sum(max(0, each.generated_token_count - 1) for each in finished),
        "decode_seconds": sum(seconds(each.decode_time) for each in finished),
        "kv_dram_peak_bytes": max(each.kv_dram_peak_bytes for each in (stored, *written, *finished)),
        "kv_flash_bytes": [stored, *written][-1].kv_flash_bytes,
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

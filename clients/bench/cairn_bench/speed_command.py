"""`cairn-bench speed`: how fast a stored conversation is gone on with, and what that takes, by policy."""
import argparse
import concurrent.futures
import contextlib
import os
import random
import statistics
import subprocess
import time

from .bench import Bench
from .child import run_program
from .client import seconds
from .daemons import MemoryPeak, memory_bytes, temporary_store
from .kv_stats import io_figures, resume_figures
from .manifest import Contention, busy_note, manifest, run_title
from .options import CommandError, add_policy_option, add_run_options, add_speed_options, check, progress, retrieval
from .result_file import ResultFile
from .speed import SpeedResults, parse_peer
from .table import speed_table, with_notes

# Decoded in front of what is measured, behind the first token of daemons that have just started; and behind it, while
# memory is sampled.
WARM_TOKENS = 8
# Below it tokenizers keep special ones; random tokens are drawn from the others.
FIRST_TOKEN = 300
PEER_TIMEOUT_S = 3600
# Of a text conversations that are decoded at once begin at least so many tokens apart.
BATCH_STRIDE_MIN = 64
TRACED_ROUND = 0

DESCRIPTION = """\
Measures decoding behind long conversations. For each context length and policy a conversation of random tokens (drawn
with the seed), or of a text with --text, is computed once and stored. Then, in rounds that take the policies in turn,
daemons are started on its store, a fork of it is gone on with, and so many tokens are decoded; medians of the rounds
are reported. Results are kept in OUT after each measurement: the same command goes on where it was stopped.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("speed", help="how fast stored conversations are gone on with",
                                   description=DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench speed --model model.gguf --context 4096,16384 --dram-budget 1/13"
    parser.set_defaults(run=run)
    add = parser.add_argument
    add("--model", required=True, metavar="M", help="the GGUF file")
    add_policy_option(add, ["full", "dynakv"])
    add_speed_options(add)
    add_run_options(add)


def run(options):
    """-> the exit status."""
    check(options)
    bench = Bench(options)
    results = speed_results(options)
    file = ResultFile(options.json, "speed", bench.configuration(*SPEED_NAMES), results)
    file.begin(manifest(bench, options.seed[:1], speed_settings(bench)), Contention())
    run_speed(bench, results, file)
    print(run_title(file) + "\n")
    print(with_notes(speed_table(results.to_json()), conversation_note(options), busy_note(file.contentions())))
    return 0


def conversation_note(options):
    """-> what the table must say of the conversations that were stored, or ""."""
    notes = [f"conversations of {os.path.basename(options.text)} (--text)"] if options.text else []
    notes += ["synthetic keys and values (--synthetic-kv)"] if options.synthetic_kv else []
    notes += [f"{options.batch} conversations at once (--batch): tokens/s of all together"] if options.batch > 1 else []
    return ", ".join(notes)


SPEED_NAMES = ("context", "tokens", "rounds", "peer", "synthetic_kv", "text", "batch")


def speed_results(options):
    """-> SpeedResults without results, for what the options ask."""
    peers = [(context, f"{path} --fa {attention}") for context in options.context for path in options.peer
             for attention in ("on", "off")]
    return SpeedResults([(context, policy) for context in options.context for policy in options.policy], peers)


def speed_settings(bench):
    """-> {context: the daemons' settings}"""
    return {str(context): bench.settings(context, bench.options.batch) for context in bench.options.context}


def run_speed(bench, results, file):
    """Measures what is missing in results; the file is written after each measurement."""
    check_room(bench)
    text = text_tokens(bench)
    for context in bench.options.context:
        ContextRunner(bench, results, file, context, text).run()


def added_tokens(token_count):
    """-> tokens of a round that measures so many: each of its turns begins with a token of a prompt."""
    return 1 + 1 + 2 * (1 + WARM_TOKENS) + 1 + token_count


def check_room(bench):
    """Raises CommandError where a round would leave the model's context, before a long one is stored."""
    added = added_tokens(bench.options.tokens)
    longest, most = max(bench.options.context), bench.model.context_tokens
    if longest + added > most:
        raise CommandError(f"--context {longest} leaves no room: a round adds {added} tokens, and the model's context "
                           f"is {most} tokens")


def text_tokens(bench):
    """-> the tokens of the text that conversations are of, or None where they are random. Raises CommandError if it has
    fewer than the longest conversation.
    """
    path = bench.options.text
    if not path:
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            ids = bench.token_ids(path, file.read())
    except OSError as error:
        raise CommandError(f"cannot read {path}: {error.strerror}") from error
    longest = max(bench.options.context) + BATCH_STRIDE_MIN * (bench.options.batch - 1)
    if len(ids) < longest:
        asked = "--context asks" if bench.options.batch == 1 else "--context and --batch ask"
        raise CommandError(f"--text {path} has {len(ids)} tokens, and {asked} for {longest}: give a longer text")
    return ids


class ContextRunner:
    """Measures all policies at one context length."""

    def __init__(self, bench, results, file, context, text=None):
        """text: the tokens of which conversations have the first ones; None: random tokens."""
        self.bench, self.results, self.file, self.context, self.text = bench, results, file, context, text
        self.options = bench.options

    def run(self):
        policies = [policy for policy in self.options.policy if self._missing((self.context, policy))]
        with contextlib.ExitStack() as stack:
            stored = {}
            for policy in policies:
                store = stack.enter_context(temporary_store(self.options.store_dir))
                stored[policy] = (store, *self._prefill(policy, store))
            for number in range(self.options.rounds):
                for policy, at in stored.items():
                    self._keep((self.context, policy), number,
                               lambda name=policy, number=number, at=at: self._measure(name, number, *at))
                for key in self.results.peers:
                    if key[0] == self.context:
                        self._keep(key, number, lambda name=key[1]: self._measure_peer(name))

    def _missing(self, key):
        return not all(self.results.has(key, number) for number in range(self.options.rounds))

    def _keep(self, key, number, measure):
        """Measures a round of a policy or a peer, unless it is there."""
        if self.results.has(key, number):
            return
        before = Contention()
        figures = measure()
        figures["other_cpu_share"] = before.to_json()["other_cpu_share"]
        self.results.add(key, number, figures)
        self.file.write()
        progress(f"{key[1]} at {key[0]} tokens, round {number + 1} of {self.options.rounds}: "
                 f"{figures['decode_tokens_per_second']:.2f} tokens/s")

    def _running(self, policy, store, compute=None):
        return self.bench.running(self.context, lambda: f"{policy} at {self.context} tokens", store, compute,
                                  self.options.batch)

    def _prefill(self, policy, store):
        """Stores the conversations -> their ids, and their bytes on flash."""
        local = {"experiment": {"local_prompts": True}} if self.options.synthetic_kv else None
        conversations, flash_bytes, took, accounted = [], 0, 0, 0
        with self._running(policy, store, local) as running:
            for index in range(self.options.batch):
                conversation, finished = running.client.store(
                    retrieval(self.options, policy, self.options.seed[0]),
                    tokens={"ids": self._tokens(index, running.client.vocab_count())})
                conversations.append(conversation)
                flash_bytes += finished.kv_flash_bytes
                took += seconds(finished.prefill_time)
                accounted = max(accounted, finished.kv_dram_peak_bytes)
        count = self.context * self.options.batch
        self.results.runs[self.context, policy]["prefill"] = {
            "prefill_seconds": took, "prefill_tokens_per_second": count / took if took else None,
            "kv_dram_accounted_bytes": accounted}
        self.file.write()
        progress(f"{policy} at {self.context} tokens: stored in {took:.1f} s")
        return conversations, flash_bytes

    def _tokens(self, index, vocab_count):
        """-> the tokens of a conversation, which differ from those of the others."""
        if not self.text:
            return random_tokens(self.context, vocab_count, self.options.seed[0] + index)
        first = index * (len(self.text) - self.context) // max(1, self.options.batch - 1)
        return self.text[first:first + self.context]

    def _measure(self, policy, number, store, conversations, flash_bytes):
        """-> the figures of one round."""
        trace = trace_path(self.options, self.context, policy) if number == TRACED_ROUND else None
        with self._running(policy, store, {"trace_path": os.path.abspath(trace)} if trace else None) as running:
            idle = sum(memory_bytes(pid) for pid in running.daemons.pids())
            token = FIRST_TOKEN % running.client.vocab_count()
            forks = [running.client.fork(conversation) for conversation in conversations]
            opened = running.kv.counters()
            resumed = []
            first = running.client.decode(forks[0], token, 1, lambda: resumed.append(running.kv.counters()))
            decode_all(running.client, forks, token, WARM_TOKENS)
            before = running.kv.counters()
            finished, rate = decode_all(running.client, forks, token, self.options.tokens)
            after = running.kv.counters()
            # Sampling takes time of the processor, so what is timed does without.
            with contextlib.closing(MemoryPeak(running.daemons.pids())) as peak:
                decode_all(running.client, forks, token, WARM_TOKENS)
            for fork in forks:
                running.client.delete(fork)
        timed = together([figures_of(first, each) for each in finished], rate, after["dram_peak_bytes"])
        return {**timed,
                **resume_figures(opened, resumed[0], self.context * self.bench.model.kv_token_bytes),
                **io_figures(before, after, self.options.tokens * len(forks), self.bench.model,
                             timed["io_milliseconds_per_token"] / 1e3),
                "kv_dram_bytes": max(0, peak.total - idle),
                "kv_flash_bytes": flash_bytes + sum(each.kv_flash_bytes for each in finished)}

    def _measure_peer(self, name):
        """-> the figures of one round of another engine."""
        path, _, attention = name.rpartition(" --fa ")
        command = [path, self.options.model, "--depths", str(self.context), "--steps", str(self.options.tokens),
                   "--threads", str(self.options.threads or os.cpu_count()), "--fa", attention]
        try:
            done = run_program(command, timeout=PEER_TIMEOUT_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CommandError(f"--peer: {error}") from error
        speed = parse_peer(done.stdout)
        if done.returncode != 0 or not speed:
            raise CommandError(f"--peer: {' '.join(command)} ended with status {done.returncode} and no "
                               f"decode_tokens_per_s:\n{(done.stderr or done.stdout).strip()}")
        return {"decode_tokens_per_second": speed}


def decode_all(client, conversations, token, count):
    """Decodes so many tokens of each at once -> their Finished messages, and how many a second all together had from
    the first one's first token to the last one's end; None where that cannot be said.
    """
    begun = []

    def decode(conversation):
        finished = client.decode(conversation, token, count, lambda: begun.append(time.monotonic()))
        return finished, time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(conversations)) as pool:
        done = list(pool.map(decode, conversations))
    # A client that heard late of the first token does not make them faster.
    took = max(max(ended for _, ended in done) - min(begun, default=0),
               *(seconds(finished.decode_time) for finished, _ in done))
    tokens = sum(finished.generated_token_count for finished, _ in done) - len(done)
    return [finished for finished, _ in done], tokens / took if begun and tokens > 0 and took > 0 else None


def together(each, rate, kv_peak_bytes):
    """-> the figures of conversations that were decoded at once: means, but tokens a second of all, and the memory of
    all in the compute node and of the KV node once. rate: of decode_all, where there are several.
    """
    def mean(name):
        values = [figures[name] for figures in each if figures[name] is not None]
        return statistics.fmean(values) if values else None
    if len(each) == 1:
        return each[0]
    return {**each[0], **{name: mean(name) for name, value in each[0].items() if not isinstance(value, str)},
            "decode_tokens_per_second": rate,
            "kv_dram_accounted_bytes": kv_peak_bytes + sum(figures["kv_dram_accounted_bytes"] - kv_peak_bytes
                                                           for figures in each)}


def trace_path(options, context, policy):
    """-> the file for the timeline of a context length and policy, or None if none is wanted."""
    if not options.trace or len(options.context) == len(options.policy) == 1:
        return options.trace
    stem, suffix = os.path.splitext(options.trace)
    return f"{stem}-{context}-{policy}{suffix}"


def figures_of(first, finished):
    """-> what the Finished messages of a round's start and of what is measured say."""
    # The time is that between tokens.
    per_token = seconds(finished.decode_time) / max(1, finished.generated_token_count - 1)
    io, exposed = seconds(finished.io_time), seconds(finished.exposed_io_time)
    resumed, index = seconds(first.first_token_time), seconds(first.index_time)
    return {
        "decode_tokens_per_second": 1 / per_token if per_token else None,
        "milliseconds_per_token": per_token * 1e3,
        "first_token_seconds": seconds(finished.first_token_time),
        "resume_first_token_seconds": resumed,
        "resume_open_seconds": seconds(first.open_time),
        "resume_index_seconds": index,
        "resume_steps": (resumed - index) / per_token if per_token else None,
        "io_milliseconds_per_token": io * 1e3 / max(1, finished.generated_token_count),
        "exposed_io_milliseconds_per_token": exposed * 1e3 / max(1, finished.generated_token_count),
        "hidden_io_share": 1 - exposed / io if io else None,
        "kv_dram_accounted_bytes": finished.kv_dram_peak_bytes,
        "io_engine": finished.io_engine,
    }


def random_tokens(count, vocab_count, seed):
    """-> token ids; the same for the same arguments."""
    generator = random.Random(seed)
    return [generator.randrange(min(FIRST_TOKEN, vocab_count // 2), vocab_count) for _ in range(count)]

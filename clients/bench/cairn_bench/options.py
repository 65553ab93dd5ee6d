"""Options that subcommands share, the forms of their values, and what becomes of them in a request."""
import argparse
import fractions
import os
import re
import sys

from .client import REPOSITORY
from .daemons import PROFILES

# These make no clusters and draw nothing, so that one seed is all of them, unless text is drawn.
SEEDLESS_POLICIES = frozenset(["full", "kvswap", "morph", "morph-recall", "morph-sum", "morph-max", "h2o", "snapkv",
                               "oracle", "streaming", "no-cluster", "infinigen", "loki", "shadowkv"])
LIST_MAX = 64
PARALLEL_MAX = 16
BATCH_MAX = 16
ROUNDS_MAX = 1000
THREADS_MAX = 1024
REALTIME_MAX = 99
# What the fields of a request hold.
NUMBER_MAX = (1 << 31) - 1
SEED_MAX = (1 << 63) - 1
# --chat without a family.
CHAT_OF_FILE = "of the model file"


class CommandError(Exception):
    """What the user can change; shown without a traceback."""


class UsageError(CommandError):
    """Options that make no sense, which shows before anything is run."""


def add_policy_option(add, default):
    add("--policy", "--policies", dest="policy", type=names, default=default, metavar="P[,P...]",
        help=f"how it is chosen what is read; default {','.join(default)}. With full among them the others are "
        "compared with it")


def add_run_options(add):
    """What decides how daemons run and what they choose."""
    add_common_options(add)
    add("--cluster-entries", type=integer(1), default=8, metavar="N", help="mean size of a cluster; default 8")
    add("--estimate", type=share, default=0.0, metavar="S%",
        help="share of the clusters not read that dynakv attends by their means; default 0%%: none")
    add("--no-select-ahead", dest="select_ahead", action="store_false",
        help="let dynakv and kvswap select by a layer's queries instead of what the layer before foresees of them")


def add_common_options(add):
    """The same without what is of some policies only."""
    add("--json", "--out", dest="json", metavar="OUT",
        help="where the results go; a file with results of the same configuration is gone on with")
    add("--seed", type=integers(1, SEED_MAX), default=[1], metavar="N[,N...]",
        help="of clustering; for answers each policy runs with each, but for those that draw nothing (with --decode "
        "all draw); speed is measured with the first. Default 1")
    add("--select", type=percent, default=3.0, metavar="S%", help="share of the context that is attended; default 3%%")
    add("--select-min", type=integer(1), default=192, metavar="N", help="tokens attended at least; default 192")
    add("--select-max", type=integer(1), default=1024, metavar="N", help="tokens attended at most; default 1024")
    add("--kv-format", choices=("f16", "f32", "q8", "q4"), default="f16", help="of keys and values; default f16")
    add("--dram-budget", type=budget, metavar="B",
        help="memory for keys and values: bytes, or a share such as 1/13 of what the context takes")
    add("--profile", choices=tuple(PROFILES), default="nvme", help="how fast the flash is; default nvme: as it is")
    add("--threads", type=integer(0, THREADS_MAX), default=0, metavar="N",
        help="threads that compute; default 0: one for each processor")
    add("--realtime", type=integer(0, REALTIME_MAX), default=0, metavar="N",
        help="realtime priority of the daemons' threads that serve reads, which needs permission; default 0: none")
    add_build_options(add)


def add_build_options(add):
    """Which daemons run, and where they keep what they store."""
    add("--build", default=os.path.join(REPOSITORY, "build", "release"), metavar="DIR",
        help="where bin/ with the daemons is; default build/release")
    add("--store-dir", type=os.path.abspath, metavar="DIR",
        help="where stores are made; default: the temporary directory")


def add_task_options(add):
    add("--prefill", type=integer(0), default=0, metavar="N",
        help="prefill only the first N tokens of a document and compute the others one by one; default 0: all")
    add("--decode", type=integer(0), default=0, metavar="N",
        help="go on behind each document with N tokens of the model's own before anything is asked; default 0")
    add("--lengths", type=integers(1), default=[], metavar="N[,N...]",
        help="only documents of about so many tokens; default: all, each with the nearest power of two")
    add("--documents", type=integer(0), default=0, metavar="N",
        help="so many of each length, in turn one of each kind; default 0: all")
    add("--parallel", type=integer(1, PARALLEL_MAX), default=1, metavar="N",
        help=f"questions at once, up to {PARALLEL_MAX}; answers are the same, times are not. Default 1")
    add("--chat", nargs="?", const=CHAT_OF_FILE, metavar="FAMILY",
        help="ask in a conversation, in the form that the model file says, or in that of a family such as chatml; for "
        "RULER, LongBench and needles")
    add("--prompts", metavar="FILE", help="prompts of LongBench, as its dataset2prompt.json has them")


def add_speed_options(add, context=None):
    """context: the default of --context; None: it must be given."""
    add("--context", type=integers(1), default=context, required=context is None, metavar="N[,N...]",
        help="tokens of the stored conversation" + (f"; default {','.join(map(str, context))}" if context else ""))
    add("--tokens", type=integer(2), default=64, metavar="T", help="tokens that a measurement decodes; default 64")
    add("--rounds", type=integer(1, ROUNDS_MAX), default=3, metavar="N",
        help="measurements of each policy, one of each policy in turn; default 3")
    add("--batch", type=integer(1, BATCH_MAX), default=1, metavar="N",
        help="conversations that are decoded at once, each of other tokens, with a part of the memory; default 1")
    add("--text", metavar="FILE",
        help="conversations are the first tokens of this text; default: random tokens, which no text is like: what a "
        "policy reads of them says little")
    add("--synthetic-kv", action="store_true",
        help="store the conversation in pieces of 4096 tokens that attend only themselves: for contexts whose prefill "
        "would take hours. Keys and values are then like the model's, but not the same")
    add("--trace", metavar="FILE",
        help="a timeline of the first round of each policy, for Perfetto or chrome://tracing")
    add("--peer", action="append", default=[], metavar="PATH",
        help="a program that measures another engine, called as PATH MODEL --depths N --threads N --steps T --fa "
        "on|off, and prints decode_tokens_per_s=X. May be given several times: the best counts")


def add_closeness_options(add):
    add("--closeness", type=integer(0), default=1, metavar="N",
        help="documents on which each policy is compared with full attention, token by token, the longest first; "
        "default 1; 0: none")
    add("--closeness-tokens", type=integer(1), default=512, metavar="T",
        help="the last T tokens of such a document are compared, behind the others; default 512")


def check(options):
    """Raises UsageError for values that make no sense together."""
    for name in ("policy", "seed", "lengths", "context"):
        values = getattr(options, name, [])
        if len(values) != len(set(values)) or len(values) > LIST_MAX:
            raise UsageError(f"--{name} has {len(values)} values: give each once, at most {LIST_MAX}")
    trace = getattr(options, "trace", None)
    if trace and not os.path.isdir(os.path.dirname(os.path.abspath(trace))):
        raise UsageError(f"--trace {trace}: there is no such folder")
    if options.select_max < options.select_min:
        raise UsageError(f"--select-max {options.select_max} is less than --select-min {options.select_min}")


def retrieval(options, policy, seed):
    """-> how a conversation chooses what it reads, as a request has it; its forks inherit it."""
    return {"policy": policy, "select_percent": options.select, "select_tokens_min": options.select_min,
            "select_tokens_max": options.select_max, "cluster_target_entries": options.cluster_entries, "seed": seed,
            "estimate_percent": options.estimate, "select_ahead": options.select_ahead}


def names(text):
    values = text.split(",")
    if not all(re.fullmatch(r"[a-z][a-z0-9-]*", value) for value in values):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of names")
    return values


def integer(least, most=NUMBER_MAX):
    def parse(text):
        if not re.fullmatch(r"\d{1,19}", text) or not least <= int(text) <= most:
            raise argparse.ArgumentTypeError(f"{text!r} is no number of {least} to {most}")
        return int(text)
    return parse


def integers(least, most=NUMBER_MAX):
    return lambda text: [integer(least, most)(one) for one in text.split(",")]


def share(text):
    found = re.fullmatch(r"(\d+(?:\.\d+)?)%?", text)
    if not found or float(found.group(1)) > 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no share such as 3%")
    return float(found.group(1))


def percent(text):
    value = share(text)
    if value == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share such as 3%")
    return value


def budget(text):
    found = re.fullmatch(r"[1-9]\d{0,18}|[1-9]\d{0,8}/[1-9]\d{0,8}", text)
    value = fractions.Fraction(text) if found else None
    if not found or ("/" in text and value >= 1):
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of bytes nor a share such as 1/13")
    return value


def progress(text):
    print(text, file=sys.stderr, flush=True)

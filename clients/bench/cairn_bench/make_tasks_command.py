"""`cairn-bench make-tasks`: documents with questions for `tasks`, of any length and as many as are wanted."""
import argparse
import json
import os

from .bench import Bench
from .compare_command import MODEL
from .options import UsageError, add_build_options, integer, integers, progress
from .task_writer import KINDS, write_documents

LENGTH_MIN, LENGTH_MAX = 256, 1 << 20
COUNT_MAX = 1000
SEED_MAX = (1 << 31) - 1

DESCRIPTION = """\
Writes a tasks file: generated texts, each with facts that are stated once, and questions about these facts. The model
that ships with Cairn was trained to answer them. For each length there are documents of three kinds: `single` has one
fact in filler, the first document near its beginning, the last near its end; `mixed` has 30 facts of six forms; in
`dense` each sentence is a fact of the same form. Equal options give equal files. Lengths are counted with the model's
own tokenizer, by a daemon that is started for it.
"""


def add_parser(subparsers):
    parser = subparsers.add_parser("make-tasks", help="documents with questions, for tasks", description=DESCRIPTION,
                                   formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.epilog = "example: cairn-bench make-tasks --lengths 1024,16384 --out tasks.jsonl"
    parser.set_defaults(run=run, kv_format="f16", profile="nvme", realtime=0, threads=0, dram_budget=None)
    add = parser.add_argument
    add("--out", required=True, metavar="FILE", help="where the documents go, as JSON lines; replaced if it is there")
    add("--model", default=MODEL, metavar="M",
        help="the GGUF file whose tokens are counted; default: the model that comes with Cairn")
    add("--seed", type=integer(1, SEED_MAX), default=1, metavar="N", help="other seeds give other documents; default 1")
    add("--lengths", type=integers(LENGTH_MIN, LENGTH_MAX), default=[1024, 4096, 8192, 16384], metavar="N[,N...]",
        help="tokens of a document, about; default 1024,4096,8192,16384")
    add("--documents", type=integers(0, COUNT_MAX), default=[5, 2, 1], metavar="SINGLE,MIXED,DENSE",
        help="so many of each kind and length; default 5,2,1")
    add("--dense-questions", type=integer(1, COUNT_MAX), default=8, metavar="N",
        help="asked of a dense document at most; default 8")
    add_build_options(add)


def run(options):
    """-> the exit status."""
    if len(options.documents) != len(KINDS) or not any(options.documents):
        raise UsageError(f"--documents has {len(options.documents)} numbers: give one for each of "
                         f"{', '.join(KINDS)}, such as 5,2,1")
    bench = Bench(options)
    total = len(options.lengths) * sum(options.documents)
    temporary = f"{options.out}.tmp"
    with open(temporary, "w", encoding="utf-8") as file:
        with bench.running(0, lambda: "counting tokens") as running:
            count = running.client.token_count
            documents = write_documents(options.seed, options.lengths, options.documents,
                                        lambda text: count(text, special=False), count, options.dense_questions)
            for number, document in enumerate(documents, 1):
                file.write(json.dumps(document) + "\n")
                progress(f"[{number}/{total}] {document['kind']}, {document['token_count']} tokens, "
                         f"{len(document['questions'])} questions")
    os.replace(temporary, options.out)
    return 0

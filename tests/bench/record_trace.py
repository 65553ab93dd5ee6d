#!/usr/bin/env python3
"""Records a trace of a model that reads a text, with no daemon: docs/trace-format.md. Without --model and --text, of
those that ship with Cairn. A text shorter than --tokens is repeated behind a number.

usage: record_trace.py OUT.trace [--tokens N] [--prompt N] [--layers 0,3] [--kv-heads 0] [--query-from N]
                       [--query-every N] [--generate N]
The traces of the tests are made by:
  record_trace.py tests/data/retrieval-layer2.trace --layers 2 --tokens 960 --prompt 640 --query-every 16
  record_trace.py tests/data/retrieval-head0.trace --layers 1,3 --kv-heads 0 --tokens 900 --prompt 512 --query-every 16
"""
import argparse
import os
import struct
import subprocess
import tempfile

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
MODELS = os.path.join(ROOT, "deploy", "models")


def tokens_of(cairn, model, text, count):
    """The text's token ids, as many as asked for (0: all)."""
    ids, part = [], 0
    while not ids or len(ids) < count:
        piece = text if part == 0 else "\nPart %d.\n%s" % (part, text)
        special = ["--special"] if part == 0 else []
        done = subprocess.run([cairn, "model", "tokenize", *special, model], input=piece.encode(), capture_output=True,
                              check=True)
        ids += [int(word) for word in done.stdout.split()]
        part += 1
    return ids[:count] if count else ids


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out")
    parser.add_argument("--bin", default=os.path.join(ROOT, "build", "release", "bin"))
    parser.add_argument("--model", default=os.path.join(MODELS, "retrieval-3m-f16.gguf"))
    parser.add_argument("--text", default=os.path.join(MODELS, "demo-4k.txt"))
    parser.add_argument("--tokens", type=int, default=0, help="0: those of the text")
    parser.add_argument("--prompt", type=int, default=1024)
    for name in ("layers", "kv-heads", "query-from", "query-every", "generate"):
        parser.add_argument("--" + name)
    options = parser.parse_args()
    cairn = os.path.join(options.bin, "cairn")
    with open(options.text, encoding="utf-8") as file:
        ids = tokens_of(cairn, options.model, file.read(), options.tokens)
    passed = ["--prompt", str(min(options.prompt, len(ids)))]
    for name in ("layers", "kv_heads", "query_from", "query_every", "generate"):
        if getattr(options, name) is not None:
            passed += ["--" + name.replace("_", "-"), getattr(options, name)]
    with tempfile.NamedTemporaryFile(suffix=".i32") as file:
        file.write(struct.pack("<%di" % len(ids), *ids))
        file.flush()
        subprocess.run([cairn, "model", "trace", options.model, file.name, options.out, *passed], check=True)


if __name__ == "__main__":
    main()

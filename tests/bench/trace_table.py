#!/usr/bin/env python3
"""Runs trace_bench over its settings and prints the tables of docs/benchmarks.md. The store is in memory unless --store
is given. All is counted but the times of fetches (the last number in a cell of the table of hits, us).

usage: trace_table.py TRACE [--bin DIR] [--only reads,rest,moves,hits,writes,sequence] [--jobs N]
TRACE has an even number of KV heads: for head size 128 they are taken in pairs.
"""
import argparse
import concurrent.futures
import json
import os
import subprocess

MIB = 1 << 20


class Bench:
    def __init__(self, options):
        self.options = options
        self.pool = concurrent.futures.ThreadPoolExecutor(options.jobs)

    def start(self, *arguments, pair=False):
        command = [os.path.join(self.options.bin, "trace_bench"), self.options.trace, "--json", "--checkpoint-tokens",
                   str(self.options.checkpoint_tokens), *map(str, arguments)]
        return self.pool.submit(self.run, command + (["--pair-heads"] if pair else []))

    @staticmethod
    def run(command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise SystemExit("%s: %s" % (" ".join(command), done.stderr))
        return json.loads(done.stdout)


def table(columns, rows):
    print("| " + " | ".join(columns) + " |")
    print("|" + " --- |" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |", flush=True)
    print()


def reads(bench):
    layouts = [("sequence", ["--order", "sequence"]), ("one cluster a pool", ["--no-pool-sharing", "--no-links"]),
               ("two clusters a pool", ["--no-links"]), ("along the links", [])]
    jobs = []
    for pair in (False, True):
        for entries in (8, 32):
            for name, arguments in layouts:
                for place in (64,) if name == "sequence" else (1, 64):
                    jobs.append((name, entries, place, bench.start(
                        "--arena-bytes", 0, "--cluster-entries", entries, "--place-entries-min", place, *arguments,
                        pair=pair)))
    rows = []
    for name, entries, place, job in jobs:
        r = job.result()
        rows.append((str(r["head_dim"]), str(entries), name, str(place), "%.1f" % r["entries_per_cluster"],
                     "%.1f" % r["entries_per_piece"],
                     "%d / %d / %d" % (r["entries_per_piece_p50"], r["entries_per_piece_p90"],
                                       r["entries_per_piece_max"]),
                     "%.1f KiB" % (r["bytes_per_read"] / 1024), "%.2f" % r["reads_per_cluster"],
                     "%.2f" % r["extra_reads_per_cluster"], "%.1f" % r["entries_per_run_in_sequence"]))
    table(("head size", "entries wanted", "placement", "place_entries_min", "entries a cluster",
           "selected entries a read", "p50 / p90 / max", "bytes a read", "reads a cluster", "extra reads",
           "neighbours in sequence"), rows)


def rest(bench):
    jobs = [(entries, bench.start("--rest", "--arena-bytes", 0, "--cluster-entries", entries, pair=pair))
            for pair in (False, True) for entries in (8, 32)]
    rows = []
    for entries, job in jobs:
        r = job.result()
        rows.append((str(r["head_dim"]), str(entries),
                     *("%.1f" % r[when + "_entries_per_piece"] for when in ("sealed", "rested")),
                     *("%.2f" % r[when + "_pieces_per_cluster"] for when in ("sealed", "rested")),
                     *("%.2f" % r[when + "_space_overhead"] for when in ("sealed", "rested")),
                     "%.2f" % r["rest_written"]))
    table(("head size", "entries wanted", "selected entries a read", "packed", "reads a cluster", "packed", "space",
           "packed", "written for it"), rows)


def moves(bench):
    jobs = [(entries, bench.start("--arena-bytes", 0, "--cluster-entries", entries, pair=pair))
            for pair in (False, True) for entries in (8, 32)]
    rows = []
    for entries, job in jobs:
        r = job.result()
        rows.append((str(r["head_dim"]), str(entries), *("%.1f MB" % (r[name + "moved_bytes"] / 1e6)
                                                         for name in ("", "in_place_", "packed_")),
                     "%.0f" % (r["packed_moved_bytes"] / r["moved_bytes"])))
    table(("head size", "entries wanted", "moved", "one child in place", "packed layout", "packed / moved"), rows)


def hits(bench):
    jobs = []
    for entries in (8, 32):
        for arena in (1, 2):
            for policy in ("cluster_aligned", "lru", "lfu", "fifo"):
                with_store = []
                if bench.options.store:
                    directory = os.path.join(bench.options.store, "%d-%d-%s" % (entries, arena, policy))
                    os.makedirs(directory, exist_ok=True)
                    with_store = ["--store", directory, "--store-bytes", 256 * MIB]
                jobs.append((entries, arena, policy, bench.start(
                    "--arena-bytes", arena * MIB, "--cluster-entries", entries, "--cache-replacement", policy,
                    *with_store)))
    rows = {}
    for entries, arena, policy, job in jobs:
        r = job.result()
        rows.setdefault((entries, arena), []).append("%.3f / %.3f, %d" % (r["hit_rate"], r["hit_rate_bytes"],
                                                                          round(r["fetch_p50_us"])))
    table(("entries wanted", "cache", "cluster_aligned", "lru", "lfu", "fifo"),
          [(str(entries), "%d MiB" % arena, *cells) for (entries, arena), cells in rows.items()])


def write_row(r):
    causes = ("log", "merge", "page", "split", "index", "metadata")
    return ("%.2f" % r["decode_write_amplification"], *("%.2f" % r["decode_wa_" + cause] for cause in causes),
            "%.2f" % r["extra_reads_per_cluster"], "%.2f" % r["reads_per_cluster"], "%.2f" % r["space_overhead"])


WRITE_COLUMNS = ("written / appended", "log", "merge", "page", "split", "index", "metadata", "extra reads",
                 "reads a cluster", "space")


def writes(bench):
    jobs = []
    for pair in (False, True):
        for entries in (8, 32):
            for pending in (bench.options.pending_tokens, 0):
                for place in (16, 64) if pending else (1, 4, 8, 16, 32, 64):
                    arguments = ["--arena-bytes", 0, "--cluster-entries", entries, "--place-entries-min", place]
                    if pending:
                        arguments += ["--pending-bytes", pending * bench.options.token_bytes]
                    jobs.append((entries, pending, place, bench.start(*arguments, pair=pair)))
    rows = []
    for entries, pending, place, job in jobs:
        r = job.result()
        rows.append((str(r["head_dim"]), str(entries), str(pending or "all"), str(place), *write_row(r)))
    table(("head size", "entries wanted", "tokens pending", "place_entries_min", *WRITE_COLUMNS), rows)


def sequence(bench):
    jobs = []
    for pair in (False, True):
        for entries in (8, 32, 128):
            for pending in (bench.options.pending_tokens, 0):
                arguments = ["--order", "sequence", "--cluster-entries", entries, "--no-index", "--arena-bytes", 0]
                if pending:
                    arguments += ["--pending-bytes", pending * bench.options.token_bytes]
                jobs.append((entries, pending, bench.start(*arguments, pair=pair)))
    table(("head size", "entries a cluster", "tokens pending", *WRITE_COLUMNS),
          [(str(job.result()["head_dim"]), str(entries), str(pending or "all"), *write_row(job.result()))
           for entries, pending, job in jobs])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace")
    parser.add_argument("--bin", default="build/release/bin")
    parser.add_argument("--only", default="reads,rest,moves,hits,writes,sequence")
    parser.add_argument("--store", help="a new directory: stores of the table of hits are files there, not in memory")
    parser.add_argument("--checkpoint-tokens", type=int, default=1024, help="decoded tokens between two checkpoints")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--pending-tokens", type=int, default=64,
                        help="what 2 MiB hold of a model with 16 layers and 8 KV heads of size 64")
    parser.add_argument("--token-bytes", type=int, default=1024, help="entries' bytes of a token of the trace")
    options = parser.parse_args()
    bench = Bench(options)
    for name in options.only.split(","):
        print("## " + name)
        {"reads": reads, "rest": rest, "moves": moves, "hits": hits, "writes": writes,
         "sequence": sequence}[name](bench)


if __name__ == "__main__":
    main()

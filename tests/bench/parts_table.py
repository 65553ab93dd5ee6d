#!/usr/bin/env python3
"""What pools, reading ahead, the cache and its replacement bring to a live decode: each switched off in turn.

    tests/bench/parts_table.py --bin build/release/bin --model deploy/models/MODEL.gguf [--tokens 4096] [--decode 64]
                               [--runs 3] [--arena-bytes 8388608] [--policy full]

Prints a table of medians over interleaved runs: a prompt of --tokens and --decode tokens behind it, with less shared
memory than their keys and values take. Reads and bytes are the KV node's own counters (GetStats) of the whole run, the
hit rate is that of entries' bytes.
"""
import argparse
import statistics
import sys

from daemons import Cairn, random_ids, seconds

VARIANTS = {
    "all on": {},
    "`pool_sharing: false`": {"experiment": '{ pool_sharing: false }'},
    "`co_retrieval: false`": {"experiment": '{ co_retrieval: false }'},
    "`merge_gap_bytes: 0`": {"experiment": '{ merge_gap_bytes: 0 }'},
    "`cache_replacement: lru`": {"experiment": '{ cache_replacement: "lru" }'},
    "`cache_replacement: lfu`": {"experiment": '{ cache_replacement: "lfu" }'},
    "`cache_replacement: fifo`": {"experiment": '{ cache_replacement: "fifo" }'},
    "`arena_bytes_max: 0`": {"arena_bytes_max": 0},
}


def run(arguments, settings):
    settings = {"arena_bytes_max": arguments.arena_bytes, **settings}
    with Cairn(arguments.bin, arguments.model, data_dir=arguments.data_dir, kv_settings=settings) as cairn:
        ids = random_ids(arguments.tokens, cairn.models()[0].vocab_count)
        retrieval = {"policy": arguments.policy}
        for event in cairn.generate(ids, arguments.decode, ephemeral=True, retrieval=retrieval):
            finished = event.finished
        stats = cairn.kv_stats()
    found = stats.cache_hit_bytes + stats.cache_miss_bytes
    return ((finished.generated_token_count - 1) / seconds(finished.decode_time),
            arguments.tokens / seconds(finished.prefill_time),
            stats.read_fetch_bytes / 2**20,
            stats.read_fetch_bytes / max(1, stats.read_fetch_count) / 2**10,
            (stats.write_pool_bytes + stats.write_log_bytes + stats.write_relog_bytes) / 2**20,
            stats.cache_hit_bytes / found if found else 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--decode", type=int, default=64)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--arena-bytes", type=int, default=8 << 20)
    parser.add_argument("--policy", default="full")
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    results = {name: [] for name in VARIANTS}
    for _ in range(arguments.runs):
        for name, settings in VARIANTS.items():  # interleaved: the machine drifts
            results[name].append(run(arguments, settings))
    print("| setting | decode tok/s | prefill tok/s | read for fetches | bytes a read | written | "
          "hit rate |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, rows in results.items():
        decode, prefill, read, size, written, hits = (statistics.median(column) for column in zip(*rows))
        print(f"| {name} | {decode:.1f} | {prefill:.0f} | {read:.0f} MiB | {size:.1f} KiB | "
              f"{written:.1f} MiB | {hits:.3f} |")


if __name__ == "__main__":
    sys.exit(main())

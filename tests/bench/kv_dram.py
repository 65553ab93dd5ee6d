#!/usr/bin/env python3
"""Memory for keys and values, both daemons together, at several context lengths.

    tests/bench/kv_dram.py --bin build/release/bin --model MODEL.gguf [--lengths 4096,8192,16384]

Measured as the sum of Pss_Anon + Pss_Shmem over both processes, at its highest during prefill and decode,
minus the same with the model loaded and no conversation. Fails (status 1) when a length needs more than two
layers' keys and values plus 32 MiB, or when memory grows by more than two layers' keys and values do between
the first and the last length.
"""
import argparse
import sys

from daemons import Cairn, MemoryPeak, memory_bytes, random_ids

MIB = 1 << 20


def measure(arguments, length):
    with Cairn(arguments.bin, arguments.model, extent_bytes=arguments.extent_mib * MIB) as cairn:
        model = cairn.models()[0]
        pids = cairn.pids()
        base = [memory_bytes(pid) for pid in pids]
        peak = MemoryPeak(pids)
        ids = random_ids(length - arguments.decode, model.vocab_count)
        for event in cairn.generate(ids, arguments.decode, ephemeral=True):
            finished = event.finished
        peak.close()
        return model, peak.total - sum(base), [p - b for p, b in zip(peak.peaks, base)], finished


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--layers", type=int, default=24, help="layers of the model")
    parser.add_argument("--lengths", default="4096,8192,16384")
    parser.add_argument("--decode", type=int, default=32, help="tokens that are generated, of each length")
    parser.add_argument("--extent-mib", type=int, default=1024)
    arguments = parser.parse_args()
    failed, first = False, None
    print("| context | two layers' KV | limit | KV memory | compute node | KV node | accounted |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for length in map(int, arguments.lengths.split(",")):
        model, total, each, finished = measure(arguments, length)
        two_layers = 2 * model.kv_token_bytes * length // arguments.layers
        limit = two_layers + 32 * MIB
        columns = [two_layers, limit, total, *each, finished.kv_dram_peak_bytes]
        print(f"| {length} | " + " | ".join(f"{c / MIB:.1f} MiB" for c in columns) + " |", flush=True)
        failed |= total > limit
        first = first or (total, two_layers)
    if total - first[0] > two_layers - first[1]:
        grown, allowed = (total - first[0]) / MIB, (two_layers - first[1]) / MIB
        print(f"memory grows by {grown:.1f} MiB, two layers' KV by {allowed:.1f} MiB")
        failed = True
    print("FAILED" if failed else "within the limits")
    return failed


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Prefill and decode speed with keys and values in memory and on flash, and the disk's bandwidth beside it.

    tests/bench/kv_table.py --bin build/release/bin --model MODEL.gguf [--lengths 1024,4096,8192] [--runs 3]

Prints a table of medians over interleaved runs. The disk's bandwidth is fio's: random reads of 64 KiB, 32 at
a time, O_DIRECT, in the directory where the store lies (--data-dir, default the temporary directory).
"""
import argparse
import json
import shutil
import statistics
import subprocess
import sys
import tempfile

from daemons import Cairn, random_ids, seconds


def disk_bandwidth(directory):
    if not shutil.which("fio"):
        return None
    with tempfile.TemporaryDirectory(dir=directory) as place:
        output = subprocess.run(
            ["fio", "--name=read", f"--directory={place}", "--size=1G", "--rw=randread", "--bs=64k",
             "--iodepth=32", "--ioengine=io_uring", "--direct=1", "--runtime=5", "--time_based",
             "--output-format=json"],
            check=True, capture_output=True, text=True).stdout
    return json.loads(output)["jobs"][0]["read"]["bw_bytes"]


def run(arguments, kv, length):
    with Cairn(arguments.bin, arguments.model, kv=kv, data_dir=arguments.data_dir) as cairn:
        ids = random_ids(length, cairn.models()[0].vocab_count)
        for event in cairn.generate(ids, arguments.decode, ephemeral=True):
            finished = event.finished
    return (length / seconds(finished.prefill_time),
            (finished.generated_token_count - 1) / seconds(finished.decode_time), finished.kv_read_bytes)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--lengths", default="1024,4096,8192")
    parser.add_argument("--decode", type=int, default=24)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--data-dir")
    arguments = parser.parse_args()
    bandwidth = disk_bandwidth(arguments.data_dir)
    print(f"disk: {bandwidth / 1e9:.2f} GB/s random reads of 64 KiB (fio)" if bandwidth
          else "disk: fio is not installed")
    print("| context | prefill tok/s RAM | flash | ratio | decode tok/s RAM | flash | ratio | read a decoded token |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for length in map(int, arguments.lengths.split(",")):
        results = {"ram": [], "node": []}
        for _ in range(arguments.runs):
            for kv in results:  # interleaved: the machine drifts
                results[kv].append(run(arguments, kv, length))
        (ram_prefill, ram_decode, _), (prefill, decode, read) = (
            [statistics.median(column) for column in zip(*results[kv])] for kv in ("ram", "node"))
        print(f"| {length} | {ram_prefill:.1f} | {prefill:.1f} | {prefill / ram_prefill:.2f} | {ram_decode:.2f} | "
              f"{decode:.2f} | {decode / ram_decode:.2f} | {read / arguments.decode / 1e6:.1f} MB |", flush=True)


if __name__ == "__main__":
    sys.exit(main())

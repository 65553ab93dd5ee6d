#!/usr/bin/env python3
"""Memory and start of a KV node that holds many closed sessions.

    tests/bench/kv_closed.py --bin build/release/bin [--data-dir DIR] [--sessions 20] [--tokens 16384]

Fills a node of its own in DIR (default: the temporary directory) with sessions of the Llama-3.2-1B shape in clusters of
8 entries (512 MiB each at 16K tokens), stops it, starts it again, and opens one of them. Needs that much room on the
disk. Memory is without the arena: Pss_Anon, while no session is open, then with one.
"""
import argparse
import pathlib
import subprocess
import tempfile
import time

from daemons import Daemon

ENTRY_BYTES = 16 * 8 * 256


def private_mib(pid):
    for line in open(f"/proc/{pid}/smaps_rollup"):
        if line.startswith("Pss_Anon:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError("no Pss_Anon")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=16384)
    arguments = parser.parse_args()
    stored = arguments.sessions * arguments.tokens * ENTRY_BYTES
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=arguments.data_dir) as place:
        base = pathlib.Path(place)
        (base / "kv.conf").write_text(f'data_dir: "{base}/store"\nsocket_path: "{base}/kv.sock"\n'
                                      f"extent_file_bytes: {stored * 3 // 2 + (256 << 20)}\n"
                                      "prefill_extent_file: false\n")
        command = [f"{arguments.bin}/cairn-kv-node", "--config", f"{base}/kv.conf"]
        bench = [f"{arguments.bin}/kv_closed_bench", "--socket", f"{base}/kv.sock"]
        node = Daemon(command)
        begin = time.monotonic()
        subprocess.run(bench + ["fill", "--sessions", str(arguments.sessions), "--tokens", str(arguments.tokens)],
                       check=True, stdout=subprocess.DEVNULL)
        fill_s = time.monotonic() - begin
        node.stop()
        begin = time.monotonic()
        node = Daemon(command)
        start_s = time.monotonic() - begin
        idle = private_mib(node.pid)
        begin = time.monotonic()
        client = subprocess.Popen(bench + ["open"], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        client.stdout.readline()
        open_s = time.monotonic() - begin
        opened = private_mib(node.pid)
        client.communicate()
        meta = sum(file.stat().st_size for file in (base / "store/meta").rglob("*") if file.is_file())
        node.stop()
    print(f"stored_gib={stored / 2**30:.1f} sessions={arguments.sessions} fill_s={fill_s:.0f} "
          f"metadata_mib={meta / 2**20:.0f} start_s={start_s:.2f} idle_mib={idle:.1f} open_s={open_s:.2f} "
          f"open_adds_mib={opened - idle:.1f}")


if __name__ == "__main__":
    main()

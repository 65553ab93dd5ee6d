#!/usr/bin/env python3
"""Fetches of the KV node over gRPC, through shared memory and inline, and fio's figures beside them.

    tests/bench/kv_fetch.py --bin build/release/bin [--data-dir DIR] [--runs 5] [--seconds 2] [--busy [--realtime]]

Starts a KV node of its own in DIR (default: the temporary directory). fio reads the same file system at random with
O_DIRECT in the same request sizes, as many at a time as two fetches have in flight (32, the KV node's queue depth, or
8 of 256 KiB), in the same run, and a gRPC stream that does nothing is measured; what counts are the ratios. --busy
runs two processes beside that do nothing but compute; --realtime gives the threads that serve and take fetches a
realtime priority. Prints a table of medians.
"""
import argparse
import collections
import json
import pathlib
import statistics
import subprocess
import tempfile

from daemons import Daemon

# What two fetches in flight ask of the device at once, at most the KV node's queue depth, by KiB of a request.
FIO_DEPTHS = {4: 32, 16: 32, 256: 8}
FIO_BYTES = {"16 x 4 KiB": 4, "400 x 4 KiB": 4, "64 x 16 KiB": 16, "4 x 256 KiB": 256}
SPIN = "while True: pass"


def fio_bandwidth(directory, kib, seconds):
    output = subprocess.run(
        ["fio", "--name=read", f"--filename={directory}/fio.dat", "--size=1G", "--rw=randread", f"--bs={kib}k",
         f"--iodepth={FIO_DEPTHS[kib]}", "--ioengine=io_uring", "--direct=1", f"--runtime={seconds}", "--time_based",
         "--output-format=json"],
        check=True, capture_output=True, text=True).stdout
    return json.loads(output)["jobs"][0]["read"]["bw_bytes"] / 1e9


def bare_stream(arguments):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-") as place:
        output = subprocess.run([f"{arguments.bin}/grpc_echo_bench", "--socket", f"{place}/echo.sock",
                                 "--seconds", str(arguments.seconds)],
                                check=True, stdout=subprocess.PIPE, text=True).stdout
    return json.loads(output)


def measure(arguments, arena, results):
    with tempfile.TemporaryDirectory(prefix="cairn-bench-", dir=arguments.data_dir) as place:
        base = pathlib.Path(place)
        config = base / "kv.conf"
        priority = 1 if arguments.realtime else 0
        config.write_text(f'data_dir: "{base}/store"\nsocket_path: "{base}/kv.sock"\nextent_file_bytes: {2 << 30}\n'
                          f'realtime_priority: {priority}\n')
        node = Daemon([f"{arguments.bin}/cairn-kv-node", "--config", str(config)])
        spinning = [subprocess.Popen(["python3", "-c", SPIN]) for _ in range(2 if arguments.busy else 0)]
        try:
            output = subprocess.run(
                [f"{arguments.bin}/kv_fetch_bench", "--socket", f"{base}/kv.sock", "--node-pid", str(node.pid),
                 "--store-mib", str(arguments.store_mib), "--seconds", str(arguments.seconds),
                 "--realtime-priority", str(priority)] +
                ([] if arena else ["--inline"]),
                check=True, stdout=subprocess.PIPE, text=True).stdout
        finally:
            for process in spinning:
                process.kill()
                process.wait()
            node.stop()
        for line in output.splitlines():
            result = json.loads(line)
            results[result["case"], arena].append(result)
        if not arena:
            return
        results["bare stream"].append(bare_stream(arguments))
        for kib in sorted(set(FIO_BYTES.values())):
            results["fio", kib].append(fio_bandwidth(base, kib, arguments.seconds))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", required=True)
    parser.add_argument("--data-dir")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2)
    parser.add_argument("--store-mib", type=int, default=256)
    parser.add_argument("--busy", action="store_true")
    parser.add_argument("--realtime", action="store_true")
    arguments = parser.parse_args()
    results = collections.defaultdict(list)
    for _ in range(arguments.runs):
        for arena in (True, False):  # interleaved: the machine drifts
            measure(arguments, arena, results)
    cases = [key[0] for key in results if key[1] is True]

    def median(case, arena, field):
        return statistics.median(result[field] for result in results[case, arena])

    print("| fetch | arena p50 us | p99 us | GB/s | of fio | CPU s/GB client + node | inline p50 us | GB/s | "
          "CPU s/GB client + node |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for case in cases:
        kib = next((size for name, size in FIO_BYTES.items() if case.startswith("flash " + name)), None)
        speed = median(case, True, "gb_per_s")
        share = f"{speed / statistics.median(results['fio', kib]):.2f}" if kib else ""
        print(f"| {case} | {median(case, True, 'p50_us'):.0f} | {median(case, True, 'p99_us'):.0f} | "
              f"{speed:.2f} | {share} | "
              f"{median(case, True, 'client_cpu_s_per_gb'):.2f} + {median(case, True, 'node_cpu_s_per_gb'):.2f} | "
              f"{median(case, False, 'p50_us'):.0f} | {median(case, False, 'gb_per_s'):.2f} | "
              f"{median(case, False, 'client_cpu_s_per_gb'):.2f} + {median(case, False, 'node_cpu_s_per_gb'):.2f} |")
    bare = results["bare stream"]
    print(f"A bare gRPC stream: p50 {statistics.median(result['p50_us'] for result in bare):.0f} us, "
          f"p99 {statistics.median(result['p99_us'] for result in bare):.0f} us")
    print(", ".join(f"fio {kib} KiB: {statistics.median(results['fio', kib]):.2f} GB/s"
                    for kib in sorted(set(FIO_BYTES.values()))))


if __name__ == "__main__":
    main()

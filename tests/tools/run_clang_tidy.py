#!/usr/bin/env python3
"""Runs clang-tidy over the project's sources, and only over what changed since it was last clean.

usage: run_clang_tidy.py BUILD_FOLDER [--jobs N]
BUILD_FOLDER has compile_commands.json; BUILD_FOLDER/tidy-cache remembers the clean files by a hash of
the source, every header of the project that it includes, its flags, .clang-tidy and clang-tidy itself.
"""
import argparse
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS = ("common", "kv-node", "compute-node", "clients", "tests")
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)


@functools.lru_cache(maxsize=None)
def content_and_includes(path):
    content = path.read_bytes()
    included = [ROOT / name.decode() for name in INCLUDE.findall(content)]
    return content, [header for header in included if header.is_file()]


def closure(path):
    """`path` and all headers of the project that it includes, directly or not."""
    seen, waiting = set(), [path]
    while waiting:
        file = waiting.pop()
        if file not in seen:
            seen.add(file)
            waiting.extend(content_and_includes(file)[1])
    return sorted(seen)


def key_of(path, command, base):
    digest = hashlib.sha256(base)
    digest.update(command.encode())
    for file in closure(path):
        digest.update(str(file.relative_to(ROOT)).encode() + b"\0")
        digest.update(content_and_includes(file)[0])
    return digest.hexdigest()


def our_sources(build):
    """Sources of the project in the compilation database, with their commands; no generated ones."""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        path = pathlib.Path(entry["directory"], entry["file"]).resolve()
        if path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in OURS:
            commands.setdefault(path, entry["command"])
    return commands


# Two thirds of the time would be the analyzer's. It runs in its quick mode, and not over tests; a full
# run is plain clang-tidy.
QUICK = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config", "--extra-arg=-Xclang", "--extra-arg=mode=shallow"]
NO_ANALYZER = ["--checks=-clang-analyzer-*"]


def run_one(path, build):
    mode = NO_ANALYZER if path.relative_to(ROOT).parts[0] == "tests" else QUICK
    result = subprocess.run(["clang-tidy", *mode, "--quiet", "-p", str(build), str(path)],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
    return path, result.returncode, result.stdout + (result.stderr if result.returncode else "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    options = parser.parse_args()
    build = options.build.resolve()
    cache = build / "tidy-cache"
    cache.mkdir(exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE, check=True).stdout
    base = version + (ROOT / ".clang-tidy").read_bytes()
    keys = {path: key_of(path, command, base) for path, command in our_sources(build).items()}
    changed = sorted(path for path, key in keys.items() if not (cache / key).exists())
    print(f"clang-tidy: {len(changed)} of {len(keys)} files to look at", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for path, code, output in pool.map(lambda path: run_one(path, build), changed):
            if code == 0:
                (cache / keys[path]).touch()
            else:
                failed += 1
                print(f"{path.relative_to(ROOT)}:\n{output}", flush=True)
    print(f"clang-tidy: {failed} files with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""Compiles each header of the project by itself: whoever includes it needs nothing before it.

usage: check_headers.py BUILD_FOLDER [--jobs N] [--part K/N]
BUILD_FOLDER has compile_commands.json, whose definitions and include folders all headers are compiled with. With
--part only every N-th header is looked at, from the K-th on. Prints the first error of each header that does not
compile, and fails if there is one.

Four fifths of the time would go into the same library headers. So a header that includes one of READ_ONCE, by whatever
way, is compiled behind what the compiler has read of that one: it has nothing there that it does not include itself.
"""
import argparse
import concurrent.futures
import os
import pathlib
import subprocess
import sys
import tempfile

from run_clang_tidy import ROOT, closure, flags_of, our_sources

FOLDERS = ("common", "kv-node", "compute-node", "clients")
# Templates of sources, which are included in one place.
NO_HEADERS = ("-inl.h",)
# Those that include much, the most first.
READ_ONCE = ("common/kv/messages.h", "common/base/status.h")


def headers():
    found = []
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.h")
    return sorted(path for path in found if not path.name.endswith(NO_HEADERS))


def flags_of_all(build):
    """-> what every header is compiled with; of two definitions of one name the first."""
    flags, names = ["-std=c++20"], set()
    for command in our_sources(build).values():
        for place in flags_of(command)[0]:
            name = place[0].split("=")[0] if len(place) == 1 else place
            if name not in names:
                names.add(name)
                flags += place
    return flags


class Compiler:
    def __init__(self, flags, folder):
        self.flags, self.folder = flags, pathlib.Path(folder)

    def run(self, words):
        """-> the first error, or None"""
        done = subprocess.run(["clang++", *self.flags, "-w", *words], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return None
        return next((line for line in done.stderr.splitlines() if "error:" in line), done.stderr.strip())

    def read_of(self, name):
        return self.folder / (name.replace("/", "_") + ".pch")

    def read_once(self, name):
        return self.run(["-x", "c++-header", "-o", str(self.read_of(name)), str(ROOT / name)])

    def problem_of(self, header):
        included = {str(path.relative_to(ROOT)) for path in closure(header)} - {str(header.relative_to(ROOT))}
        behind = next((["-include-pch", str(self.read_of(name))] for name in READ_ONCE if name in included), [])
        return self.run([*behind, "-fsyntax-only", "-include", str(header), "-x", "c++", os.devnull])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--part", default="1/1")
    arguments = parser.parse_args()
    part, count = (int(number) for number in arguments.part.split("/"))
    chosen = headers()[part - 1::count]
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        compiler = Compiler(flags_of_all(arguments.build.resolve()), folder)
        problems = [each for each in pool.map(compiler.read_once, READ_ONCE) if each]
        problems += [each for each in pool.map(compiler.problem_of, chosen) if each]
    for problem in problems:
        print(problem)
    print("headers: %d compiled by themselves, %d do not" % (len(chosen) - len(problems), len(problems)))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

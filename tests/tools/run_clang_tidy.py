#!/usr/bin/env python3
"""Runs clang-tidy over the project's sources, and only over what changed since it was last clean.

usage: run_clang_tidy.py BUILD_FOLDER [--jobs N] [--part K/N]
BUILD_FOLDER has compile_commands.json; BUILD_FOLDER/tidy-cache remembers the clean files by a hash of
the source, every header of the project that it includes, its flags, .clang-tidy and clang-tidy itself.
With --part only the K-th of N parts of the sources is looked at, which are neighbours (K from 1 on).

Nine tenths of clang-tidy's time go into the library headers that a source includes. So sources are looked
at in batches: up to BATCH_FILES_MAX of them one behind the other in one file. Sources that use one name
for different things do not fit into one batch; they go to the next.
"""
import argparse
import bisect
import collections
import concurrent.futures
import functools
import hashlib
import json
import os
import pathlib
import re
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
OURS = ("common", "kv-node", "compute-node", "clients", "tests")
INCLUDE = re.compile(rb'^\s*#\s*include\s+"([^"]+)"', re.MULTILINE)
ENTRY = re.compile(r'^((?:extern "C" )?int) (?:main|LLVMFuzzerTestOneInput)\(', re.MULTILINE)
BATCH_FILES_MAX = 20
CANNOT_READ = "[clang-diagnostic-error]"
# Two thirds of the time would be the analyzer's. It runs in its quick mode, with fewer states of each
# function than that mode allows (75000), and not over tests; a full run is plain clang-tidy.
ANALYZER = ["--extra-arg=-Xclang", "--extra-arg=-analyzer-config", "--extra-arg=-Xclang"]
QUICK = [*ANALYZER, "--extra-arg=mode=shallow", *ANALYZER, "--extra-arg=max-nodes=20000"]
NO_ANALYZER = ["--checks=-clang-analyzer-*"]
# Of the compiler's warnings only what GCC does not have: whether what a mutex guards is used with it.
WARNINGS = ["-Wthread-safety"]


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


def is_test(path):
    return path.relative_to(ROOT).parts[0] == "tests"


def flags_of(command):
    """What decides how a source is read, as (definitions and include folders, the rest)."""
    places, others, words = [], [], iter(shlex.split(command)[1:])
    for word in words:
        if word in ("-isystem", "-I"):
            places.append((word, next(words)))
        elif word.startswith(("-D", "-I")):
            places.append((word,))
        elif word.startswith(("-std=", "-m")):
            others.append(word)
    return places, tuple(sorted(others))


class Batch:
    """Sources behind one another in one file, which is written when it is looked at."""

    def __init__(self, paths, flags, folder):
        self.paths, self.flags, self.folder = paths, flags, folder

    def write(self):
        texts, has_entry = [], False
        for index, text in enumerate(path.read_text() for path in self.paths):
            # The first entry keeps its name, which some checks know.
            texts.append(ENTRY.sub(rf"\1 Entry{index}(", text) if has_entry else text)
            has_entry = has_entry or bool(ENTRY.search(text))
        name = hashlib.sha256("".join(map(str, self.paths)).encode()).hexdigest()[:16]
        self.file = self.folder / f"{name}.cc"
        self.file.write_text("".join(texts))
        self.first_lines = [1]
        for text in texts:
            self.first_lines.append(self.first_lines[-1] + text.count("\n"))
        self.spelled = re.compile(re.escape(str(self.file)) + r":(\d+)")

    def source_of(self, match):
        line = int(match.group(1))
        index = min(bisect.bisect_right(self.first_lines, line), len(self.paths)) - 1
        return self.paths[index], line - self.first_lines[index] + 1

    def misfits(self):
        """Those of several sources that cannot be read behind the others."""
        result = subprocess.run(["clang++", *self.flags, "-fsyntax-only", "-w", "-ferror-limit=0", str(self.file)],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        if len(self.paths) == 1 or result.returncode == 0:
            return set()
        errors = [line for line in result.stderr.splitlines() if ": error:" in line or ": fatal error:" in line]
        matches = map(self.spelled.match, errors)
        found = {self.source_of(match)[0] for match in matches if match}
        # The first source is at fault where only it, or none of ours, is blamed.
        return found - {self.paths[0]} or set(self.paths[1:])

    def run(self):
        mode = NO_ANALYZER if is_test(self.paths[0]) else QUICK
        result = subprocess.run(["clang-tidy", *mode, "--quiet", str(self.file), "--", *self.flags, *WARNINGS],
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False)
        output = result.stdout + (result.stderr if result.returncode else "")
        return result.returncode, self.spelled.sub(lambda match: "{}:{}".format(*self.source_of(match)), output)


def batches_of(paths, commands, folder):
    """Batches of neighbours that are read in the same way."""
    groups, places = collections.defaultdict(list), collections.defaultdict(dict)
    for path in paths:
        here, others = flags_of(commands[path])
        # Highway includes such a file again, by its name.
        alone = path if b"HWY_TARGET_INCLUDE" in path.read_bytes() else None
        key = (is_test(path), alone, others)
        groups[key].append(path)
        places[key].update(dict.fromkeys(here))
    for key, members in groups.items():
        flags = [*key[-1], *(word for place in places[key] for word in place)]
        count = -(-len(members) // BATCH_FILES_MAX)
        for index in range(count):
            part = members[len(members) * index // count:len(members) * (index + 1) // count]
            yield Batch(part, flags, folder)


def part_of(paths, number, count):
    return paths[len(paths) * (number - 1) // count:len(paths) * number // count]


def look_at(batch):
    """Runs the batch, and what did not fit into it behind it, as (paths, status, output)."""
    batch.write()
    status, output = batch.run()
    misfits = batch.misfits() if CANNOT_READ in output else set()
    if not misfits:
        return [(batch.paths, status, output)]
    print("clang-tidy: does not fit behind its neighbours, which takes time: "
          + " ".join(str(path.relative_to(ROOT)) for path in sorted(misfits)), flush=True)
    parts = [path for path in batch.paths if path not in misfits], [path for path in batch.paths if path in misfits]
    return [result for part in parts for result in look_at(Batch(part, batch.flags, batch.folder))]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--part", default="1/1")
    options = parser.parse_args()
    number, count = (int(word) for word in options.part.split("/"))
    if not 1 <= number <= count:
        parser.error(f"--part {options.part}: K is 1 to N")
    build = options.build.resolve()
    cache, folder = build / "tidy-cache", build / "tidy-batches"
    cache.mkdir(exist_ok=True)
    folder.mkdir(exist_ok=True)
    version = subprocess.run(["clang-tidy", "--version"], stdout=subprocess.PIPE, check=True).stdout
    base = version + (ROOT / ".clang-tidy").read_bytes()
    commands = our_sources(build)
    keys = {path: key_of(path, command, base) for path, command in commands.items()}
    part = part_of(sorted(keys), number, count)
    changed = [path for path in part if not (cache / keys[path]).exists()]
    print(f"clang-tidy: {len(changed)} of {len(part)} files to look at"
          + (f", part {number} of {count}" if count > 1 else ""), flush=True)
    failed, done = 0, 0
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for results in pool.map(look_at, batches_of(changed, commands, folder)):
            for paths, code, output in results:
                done += len(paths)
                if code == 0:
                    for path in paths:
                        (cache / keys[path]).touch()
                else:
                    failed += 1
                    print(output)
            print(f"clang-tidy: {done} of {len(changed)}", flush=True)
    print(f"clang-tidy: {failed} batches with complaints")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

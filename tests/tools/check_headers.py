#!/usr/bin/env python3
"""Compiles each header of the project by itself: whoever includes it needs nothing before it.

usage: check_headers.py BUILD_FOLDER [--jobs N] [--part K/N]
BUILD_FOLDER has compile_commands.json, of which a header takes the command of a source of its folder, or of a folder
above. With --part only every N-th header is looked at, from the K-th on. Prints the first error of each header that
does not compile, and fails if there is one.
"""
import argparse
import concurrent.futures
import json
import os
import pathlib
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("common", "kv-node", "compute-node", "clients")
# Templates of sources, which are included in one place.
NO_HEADERS = ("-inl.h",)


def headers():
    found = []
    for folder in FOLDERS:
        found += (ROOT / folder).rglob("*.h")
    return sorted(path for path in found if not path.name.endswith(NO_HEADERS))


def commands_by_folder(build):
    """-> {folder: (where, the compiler and its flags)}"""
    commands = {}
    for entry in json.loads((build / "compile_commands.json").read_text()):
        words = shlex.split(entry["command"])
        flags = words[:words.index("-o")]
        commands.setdefault(pathlib.Path(entry["file"]).parent, (entry["directory"], flags))
    return commands


def command_of(header, commands):
    folder = header.parent
    while folder not in commands and folder != ROOT:
        folder = folder.parent
    near = [each for each in commands if folder in each.parents] if folder not in commands else [folder]
    return commands[min(near)]


def problem_of(header, commands):
    directory, flags = command_of(header, commands)
    # What a header has is not used here.
    command = [*flags, "-Wno-unused", "-fsyntax-only", "-include", str(header), "-x", "c++", os.devnull]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return None
    errors = [line for line in done.stderr.splitlines() if "error:" in line]
    return errors[0] if errors else done.stderr.strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--part", default="1/1")
    arguments = parser.parse_args()
    part, count = (int(number) for number in arguments.part.split("/"))
    commands = commands_by_folder(arguments.build.resolve())
    chosen = headers()[part - 1::count]
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        problems = [each for each in pool.map(lambda header: problem_of(header, commands), chosen) if each]
    for problem in problems:
        print(problem)
    print("headers: %d compiled by themselves, %d do not" % (len(chosen) - len(problems), len(problems)))
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()

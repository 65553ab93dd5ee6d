#!/usr/bin/env python3
"""Prints the largest classes, interfaces, files and folders of the product's code.

usage: tests/largest.py [COUNT]      default: the 8 largest of each

They are what a reader has to hold in the head. A class is as large as the lines of its declaration, or its fields; an
interface is as large as the virtual functions that it declares. Only sources outside tests are looked at.
"""
import collections
import os
import re
import sys

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
FOLDERS = ("common", "compute-node", "kv-node", "clients")
CLASS = re.compile(r"^(?:class|struct) (?:CAIRN_\w+(?:\([^)]*\))? )?([\w:]+)(?: final)?(?: : [^{;]*)?\s*\{$")
FIELD = re.compile(r"^  (?!using |static |friend |return |typedef )[\w:<>,&*() .\[\]-]*[ *&](\w+_)"
                   r"(?: CAIRN_GUARDED_BY\(\w+\))?(?: = [^;]*|\{[^;]*\})?;")
VIRTUAL = re.compile(r"^  virtual [^~]*\(")


def sources():
    for top in FOLDERS:
        for folder, _, names in sorted(os.walk(os.path.join(ROOT, top))):
            for name in sorted(names):
                if name.endswith((".h", ".cc")):
                    yield os.path.relpath(os.path.join(folder, name), ROOT)


def classes_of(path, lines):
    """Yields (name, lines, fields, virtual functions) of the classes that a file declares at its outermost level."""
    start = None
    for number, line in enumerate(lines):
        match = CLASS.match(line)
        if match:
            start, name = number, match.group(1)
        elif start is not None and line.startswith("};"):
            body = lines[start:number + 1]
            fields = sum(1 for each in body if FIELD.match(each))
            virtuals = sum(1 for each in body if VIRTUAL.match(each))
            yield "%s (%s)" % (name, path), len(body), fields, virtuals
            start = None


def show(title, unit, sizes, count):
    print("\n%s, in %s" % (title, unit))
    for name, size in sorted(sizes.items(), key=lambda each: (-each[1], each[0]))[:count]:
        print("%6d  %s" % (size, name))


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 8
    lines_of, fields_of, virtuals_of, files = {}, {}, {}, {}
    in_folder = collections.Counter()
    for path in sources():
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            lines = file.read().splitlines()
        files[path] = len(lines)
        in_folder[os.path.dirname(path)] += 1
        for name, size, fields, virtuals in classes_of(path, lines):
            lines_of[name], fields_of[name], virtuals_of[name] = size, fields, virtuals
    print("%d files of product code with %d lines" % (len(files), sum(files.values())))
    show("classes", "lines of their declaration", lines_of, count)
    show("classes", "fields", fields_of, count)
    show("interfaces", "virtual functions", virtuals_of, count)
    show("files", "lines", files, count)
    show("folders", "files", in_folder, count)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Lint of docs/troubleshooting.md: every message that it explains is one that a program prints.

In tables whose first column is headed "message" each text in backquotes there is one; "..." stands for what varies.

usage: messages_test.py [ROOT]       prints each message that no program has as FILE:LINE: TEXT; fails if there is any
       messages_test.py --self-test  fails if a message is found that is not there, or is not found though it is
"""
import os
import re
import sys
import tempfile

PAGE = "docs/troubleshooting.md"
FOLDERS = ("common", "kv-node", "compute-node", "clients", "deploy")
PROGRAMS = (".h", ".cc", ".py", ".sh")
SCRIPTS_WITHOUT_SUFFIX = {"clients/bench/cairn-bench"}
# A message of which less than this is fixed could be any.
FIXED_CHARACTERS_MIN = 8

QUOTED = re.compile(r'"((?:[^"\\\n]|\\.)*)"')
QUOTED_IN_SCRIPT = re.compile(r"\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)'")
HEADER = re.compile(r"\| message \|")
BETWEEN_PARTS = re.compile(r"\s*[fr]?$")  # what stands between two literals that are one text
ESCAPED = {"n": " ", "t": " "}


def texts(source, quoted):
    """-> the string literals of a source; those that follow each other are one text, as compilers see them."""
    found, end = [], None
    for match in quoted.finditer(source):
        literal = next(group for group in match.groups() if group is not None)
        part = re.sub(r"\\(.)", lambda escape: ESCAPED.get(escape.group(1), escape.group(1)), literal)
        if end is not None and BETWEEN_PARTS.match(source[end:match.start()]):
            found[-1] += part
        else:
            found.append(part)
        end = match.end()
    return [text.replace("{{", "{").replace("}}", "}") for text in found]


def all_texts(root):
    found = []
    for folder in FOLDERS:
        for where, folders, names in os.walk(os.path.join(root, folder)):
            folders[:] = [name for name in folders if name != "__pycache__"]
            for name in names:
                path = os.path.join(where, name)
                if name.endswith(PROGRAMS) or os.path.relpath(path, root) in SCRIPTS_WITHOUT_SUFFIX:
                    with open(path, encoding="utf-8") as file:
                        found += texts(file.read(), QUOTED if name.endswith((".h", ".cc")) else QUOTED_IN_SCRIPT)
    return found


def messages(lines):
    """Yields (line number, message)."""
    wanted = False
    for number, line in enumerate(lines, 1):
        if not line.startswith("|"):
            wanted = False
        elif HEADER.match(line):
            wanted = True
        elif wanted:
            for message in re.findall(r"`([^`]+)`", line.split("|")[1]):
                yield number, message


def pattern(message):
    parts = [part for part in message.split("...") if part.strip()]
    if sum(len(part.strip()) for part in parts) < FIXED_CHARACTERS_MIN:
        return None
    return re.compile(".*?".join(re.escape(part) for part in parts), re.DOTALL)


def check_tree(root):
    with open(os.path.join(root, PAGE), encoding="utf-8") as file:
        lines = file.read().split("\n")
    printed, found = all_texts(root), []
    for number, message in messages(lines):
        wanted = pattern(message)
        if wanted is None:
            found.append("%s:%d: too little of '%s' is fixed" % (PAGE, number, message))
        elif not any(wanted.search(text) for text in printed):
            found.append("%s:%d: no program has the message '%s'" % (PAGE, number, message))
    return found


SOURCE = '''
  return InvalidArgument("read {} of {}: the file "
                         "is \\"short\\", {} bytes", a, b);
  Log("another message");
'''
SCRIPT = "printf '\\nsays \"so\" it: %s' \"$it\"\n"
OTHER_TABLE = "| other |\n| --- |\n| `no message of this kind` |\n\n"
# row of the page's table, what must be said of it
TRIED = [
    ("`read ... of ...: the file is \"short\", ... bytes`", None),
    ("`the file is` and `another message`", None),
    ("`says \"so\" it`", None),
    ("`the file is long`", "the file is long"),
    ("`bytes ... the file is`", "bytes ... the file is"),
    ("`the file ... another message`", "another message"),
    ("`... file`", "too little"),
]


def self_test():
    failures = 0
    for row, said in TRIED:
        page = OTHER_TABLE + "| message | do |\n| --- | --- |\n| %s | `nothing` |\n" % row
        with tempfile.TemporaryDirectory() as root:
            for path, content in (("common/A.cc", SOURCE), ("deploy/A.sh", SCRIPT), (PAGE, page)):
                os.makedirs(os.path.join(root, os.path.dirname(path)))
                with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                    file.write(content)
            found = check_tree(root)
        if found if said is None else len(found) != 1 or said not in found[0]:
            failures += 1
            print("self-test: %r should give %r, not %s" % (row, said, found))
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..")
    found = check_tree(os.path.normpath(root))
    print("\n".join(found + ["messages: %d breaches" % len(found)]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

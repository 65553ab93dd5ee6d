#!/usr/bin/env python3
"""Lint of the documents, and of what comments say of them: references lead somewhere, prose fits a page,
and the changes know the version.

usage: docs_test.py [ROOT]       prints each breach as FILE:LINE: RULE and fails if there is any
       docs_test.py --self-test  breaks each rule in a temporary tree and fails if one is not noticed
       docs_test.py --wrap FILE...  wraps the prose of Markdown files to the width that is asked for
"""
import os
import re
import sys
import tempfile

COLUMNS = 100
SKIPPED_FOLDERS = {".git", "build", ".cache", ".cairn", "__pycache__", "golden"}
# They have references that lead nowhere, to see that this is noticed.
SKIPPED_FILES = {"tests/unit/tidy_test.py", "tests/unit/docs_test.py"}
TEXT = (".h", ".cc", ".py", ".sh", ".txt", ".cmake", ".proto", ".md", ".conf", ".cjs")
CAPITAL_FILES = {"deploy/models/README.md", "docs/decisions/README.md", "docs/results/README.md"}
CHANGES = "CHANGELOG.md"
VERSION = re.compile(r"VERSION (\d[\d.]*) LANGUAGES")
FOLDERS = "clients|common|compute-node|kv-node|proto|deploy|tests|docs"

LINK = re.compile(r"\[(?:[^\]\[]|\[[^\]]*\])*\]\(([^)\s]+)\)")
# A file as it is from the root on, in a comment or in a document; and what may stand behind one of the documents.
PATH = re.compile(r"(?<![\w./-])((?:%s)/[\w./-]*\.(?:h|cc|py|sh|proto|md|jsonl?|gguf|txt|cmake|conf))(?![\w/])"
                  r"(?:#([\w-]+)|, \"([^\"]+)\")?" % FOLDERS)
DECISION = re.compile(r"(?<![\w-])decisions/(\d{4})")
FOLDER = re.compile(r"`((?:%s)(?:/[\w.-]+)+)/?`" % FOLDERS)
HEADING = re.compile(r"#{1,6} +(.*?)\s*#*$")
ANCHOR = re.compile(r'<a id="([^"]+)"')
# A line that begins with one of these would be no prose.
MARKER = re.compile(r"(?:[-+*>|]|\d+[.)]|#{1,6}|```.*)$")
ITEM = re.compile(r"( *)(?:[-*+]|\d+[.)]) +")


def files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if name.endswith(TEXT) and path not in SKIPPED_FILES:
                yield path


def read(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        return file.read().split("\n")


def slug(heading):
    """-> the anchor that a heading has."""
    text = re.sub(r"\]\([^)]*\)", "]", heading).lower()
    return re.sub(r" ", "-", re.sub(r"[^\w\- ]", "", text))


def headings(lines):
    """-> the headings of a document, as they are written."""
    fenced, found = False, []
    for line in lines:
        fenced ^= line.startswith("```")
        match = HEADING.match(line)
        if match and not fenced:
            found.append(match.group(1))
    return found


class Documents:
    """What there is to lead to."""

    def __init__(self, root):
        self.root, self.known = root, {}

    def exists(self, path):
        return os.path.exists(os.path.join(self.root, path))

    def has_anchor(self, path, anchor):
        if path not in self.known:
            lines = read(self.root, path)
            some = [slug(heading) for heading in headings(lines)]
            # Equal headings are numbered.
            numbered = {"%s-%d" % (name, number) for name in some for number in range(1, some.count(name))}
            self.known[path] = set(some) | numbered | set(ANCHOR.findall("\n".join(lines)))
        return anchor in self.known[path]

    def has_heading(self, path, heading):
        return heading in [text.replace("`", "") for text in headings(read(self.root, path))]

    def has_decision(self, number):
        folder = os.path.join(self.root, "docs", "decisions")
        return os.path.isdir(folder) and any(name.startswith(number + "-") for name in os.listdir(folder))


def check_links(documents, path, number, line):
    """Of a line of a document."""
    for target in LINK.findall(line):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        where = os.path.normpath(os.path.join(os.path.dirname(path), name)) if name else path
        if not documents.exists(where):
            yield number, "%s: there is no such file" % target
        elif anchor and not documents.has_anchor(where, anchor):
            yield number, "%s: %s has no such heading" % (target, where)
    for name in FOLDER.findall(line):
        # A test is named without its suffix.
        if not any(documents.exists(name + suffix) for suffix in ("", ".cc", ".py", ".sh")):
            yield number, "%s: there is no such file or folder" % name


def check_references(documents, number, line, following):
    """Of any line. following: the next one, where the name of a heading may go on."""
    joined = line + " " + re.sub(r"^\s*(?://|#)?\s*", "", following)
    for match in PATH.finditer(joined):
        if match.start() >= len(line):
            break
        path, anchor, heading = match.groups()
        if os.path.basename(path).split(".")[0].isupper() and path not in CAPITAL_FILES:
            continue  # it stands for another name
        if not documents.exists(path):
            yield number, "%s: there is no such file" % path
        elif path.endswith(".md") and anchor and not documents.has_anchor(path, anchor):
            yield number, "%s has no heading of #%s" % (path, anchor)
        elif path.endswith(".md") and heading and not documents.has_heading(path, heading):
            yield number, "%s has no heading %r" % (path, heading)
    for name in DECISION.findall(line):
        if not documents.has_decision(name):
            yield number, "decisions/%s: there is no such decision" % name


def prose(lines):
    """Yields (index, line) of the lines of a document that are prose: no table, code, heading or comment."""
    fenced, code, blank = False, False, True
    for index, line in enumerate(lines):
        fenced ^= line.startswith("```")
        # Four spaces behind an empty line are code, but in the list that they go on with.
        code = line.startswith("    ") and (code or blank) if line.strip() else code
        blank = not line.strip()
        if not (fenced or code or blank or line.startswith(("|", "#", "```", "<"))):
            yield index, line


def check_width(lines):
    for index, line in prose(lines):
        if len(LINK.sub("", line)) > COLUMNS:
            yield index + 1, "prose longer than %d columns (docs_test.py --wrap)" % COLUMNS


def check_version(root):
    """The newest entry of the changes is of the version that the build has."""
    build, changes = os.path.join(root, "CMakeLists.txt"), os.path.join(root, CHANGES)
    if not os.path.exists(build) or not os.path.exists(changes):
        return
    version = VERSION.search("\n".join(read(root, "CMakeLists.txt"))).group(1)
    for number, line in enumerate(read(root, CHANGES), 1):
        entry = re.match(r"## (\S+?)(?:,|$)", line)
        if entry and entry.group(1) != version:
            yield "%s:%d: the newest entry is of %s, and the build of %s" % (CHANGES, number, entry.group(1), version)
        if entry:
            return
    yield "%s:1: there is no entry, such as ## %s" % (CHANGES, version)


def check_tree(root):
    documents, found = Documents(root), list(check_version(root))
    for path in files(root):
        lines = read(root, path)
        said = []
        for number, line in enumerate(lines, 1):
            following = lines[number] if number < len(lines) else ""
            said += check_references(documents, number, line, following)
            if path.endswith(".md"):
                said += check_links(documents, path, number, line)
        if path.endswith(".md"):
            said += check_width(lines)
        found += ["%s:%d: %s" % (path, number, text) for number, text in sorted(set(said))]
    return found


def wrap_words(words, first, rest):
    """-> lines of words; first, rest: what the first line and the others begin with."""
    lines, line = [], first
    for index, word in enumerate(words):
        following = words[index + 1] if index + 1 < len(words) else ""
        # What would look like a list or a heading at the beginning of a line stays behind the word before it.
        needed = len(word) + (1 + len(following) if MARKER.match(following) else 0)
        started = line not in (first, rest)
        if started and len(line) + 1 + needed > COLUMNS and not MARKER.match(word):
            lines.append(line)
            line, started = rest, False
        line += (" " if started else "") + word
    return lines + [line]


def wrap(lines):
    """-> a document with its prose wrapped."""
    is_prose, made, block = {index for index, _ in prose(lines)}, [], []

    def flush():
        if block:
            item = ITEM.match(block[0])
            first = item.group(0) if item else re.match(r" *", block[0]).group(0)
            rest = " " * len(first)
            words = " ".join([block[0][len(first):], *block[1:]]).split()
            made.extend(wrap_words(words, first, rest))
            block.clear()

    for index, line in enumerate(lines):
        if index not in is_prose:
            flush()
            made.append(line)
            continue
        if ITEM.match(line):
            flush()
        block.append(line)
    flush()
    return made


DECIDED = ("docs/decisions/0001-x.md", "# X\n\n## A heading\n\ntext\n")
# file, content that breaks one rule, what must be said of it
BREACHES = [
    ("docs/a.md", "# A\n\n[x](missing.md)\n", "missing.md: there is no such file"),
    ("docs/a.md", "# A\n\n[x](decisions/0001-x.md#other)\n", "docs/decisions/0001-x.md has no such heading"),
    ("docs/a.md", "# A\n\n[x](#b)\n", "docs/a.md has no such heading"),
    ("docs/a.md", "# A\n\n[[0002] x](../docs/decisions/0001-y.md)\n", "there is no such file"),
    ("docs/a.md", "# A\n\nIn `kv-node/absent`.\n", "no such file or folder"),
    ("docs/a.md", "# A\n\n" + "word " * 25 + "\n", "prose longer than"),
    ("docs/a.md", "# A\n\n- item\n" + "  " + "word " * 25 + "\n", "prose longer than"),
    ("common/io/a.h", "// docs/absent.md says why.\n", "docs/absent.md: there is no such file"),
    ("common/io/a.h", "// As tests/bench/gone.py does.\n", "tests/bench/gone.py: there is no such file"),
    ("common/io/a.h", "// docs/decisions/0001-x.md#other\n", "has no heading of #other"),
    ("common/io/a.h", "// (docs/decisions/0001-x.md, \"Other\n// heading\")\n", "has no heading 'Other heading'"),
    ("common/io/a.h", "// decisions/0002\n", "no such decision"),
    ("clients/a.py", "# decisions/0002\n", "no such decision"),
]
BUILD = ("CMakeLists.txt", "project(x VERSION 1.2.3 LANGUAGES CXX)\n")
# the changes, what must be said of them
CHANGED = [
    ("# C\n\n## 1.2.3\n\n## 1.2.2\n", None),
    ("# C\n\n## 1.2.3, not released yet\n", None),
    ("# C\n\n## 1.2.2\n\n## 1.2.3\n", "newest entry is of 1.2.2"),
    ("# C\n", "there is no entry"),
]
# What is right.
RIGHT = """# A title

[x](decisions/0001-x.md#a-heading), [y](#a-title), [z](https://example.org/""" + "z" * 100 + """), `docs/decisions`.

    """ + "code " * 25 + """

| """ + "table " * 25 + """|

```
""" + "fenced " * 25 + """
```
"""
RIGHT_CODE = "// docs/decisions/0001-x.md, \"A\n// heading\", decisions/0001 and docs/decisions/0001-x.md#a-heading.\n"
# before, after
WRAPPED = [
    ("a " * 49 + "bb ccc\nddd", "a " * 49 + "bb\nccc ddd"),
    ("- " + "a " * 48 + "bb ccc\n  dd\n- e", "- " + "a " * 48 + "bb\n  ccc dd\n- e"),
    ("a " * 49 + "b - ccc", "a " * 48 + "a\nb - ccc"),
    ("# " + "a " * 60 + "\n\n    " + "a " * 60, "# " + "a " * 60 + "\n\n    " + "a " * 60),
    ("a\nb\n\n1. c\n   d", "a b\n\n1. c d"),
]


def check_one(files_of_tree):
    with tempfile.TemporaryDirectory() as root:
        for path, content in files_of_tree:
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content)
        return check_tree(root)


def self_test():
    failures = 0
    for path, content, said in BREACHES:
        found = check_one([DECIDED, (path, content)])
        if len(found) != 1 or said not in found[0]:
            failures += 1
            print("self-test: %r should give one breach with %r, not %s" % (content, said, found))
    for changes, said in CHANGED:
        found = check_one([BUILD, (CHANGES, changes)])
        if found if said is None else len(found) != 1 or said not in found[0]:
            failures += 1
            print("self-test: %r should give %r, not %s" % (changes, said, found))
    found = check_one([DECIDED, ("docs/right.md", RIGHT), ("common/right.h", RIGHT_CODE)])
    if found:
        failures += 1
        print("self-test: what is right should give no breach, not %s" % found)
    for before, after in WRAPPED:
        made = "\n".join(wrap(before.split("\n")))
        if made != after or "\n".join(wrap(made.split("\n"))) != made:
            failures += 1
            print("self-test: %r should be wrapped to %r, not to %r" % (before, after, made))
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    if sys.argv[1:2] == ["--wrap"]:
        for path in sys.argv[2:]:
            lines = wrap(read("", path))
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))
        return 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..")
    found = check_tree(os.path.normpath(root))
    print("\n".join(found + ["docs: %d breaches" % len(found)]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

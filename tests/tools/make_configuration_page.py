#!/usr/bin/env python3
"""Writes docs/configuration.md from the comments of the configuration files' messages.

usage: make_configuration_page.py [--check]

--check writes nothing and fails if the page is not what the comments say.
"""
import os
import re
import subprocess
import sys
import tempfile
import textwrap

from google.protobuf import descriptor_pb2

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../.."))
PAGE = os.path.join(ROOT, "docs/configuration.md")
MESSAGES, FIELDS = 4, 2  # numbers in descriptor.proto: the steps of a path to an element
COLUMNS = 100
Field = descriptor_pb2.FieldDescriptorProto
TYPES = {Field.TYPE_STRING: "text", Field.TYPE_BOOL: "true or false", Field.TYPE_INT32: "number",
         Field.TYPE_INT64: "number", Field.TYPE_UINT32: "number", Field.TYPE_UINT64: "number",
         Field.TYPE_FLOAT: "number", Field.TYPE_DOUBLE: "number"}

HEAD = """# Configuration

<!-- Written by tests/tools/make_configuration_page.py from the comments in proto/cairn/config/v1. -->

Each daemon reads one file, which `--config FILE` names; without one it runs with the defaults. A
line is `key: value`. Texts stand in double quotes, and `#` begins a comment. A key that does not
exist, or a value out of range, is an error that names the line, and the daemon does not start.
What only measurements compare stands in a group: `experiment { key: value }`.

    cairn-kv-node --print-default-config > kv-node.conf      # every key with its default
    cairn-kv-node --config kv-node.conf --print-config       # what it would run with

Some keys have a flag too, which overrides the file; `--help` lists them. Sizes are in bytes:
`1073741824` is 1 GiB.
"""

DAEMONS = (("cairn-kv-node", "kv_node.proto"), ("cairn-compute-node", "compute_node.proto"))


def described(file_name):
    """The file's descriptor, with the places of its comments."""
    with tempfile.TemporaryDirectory() as directory:
        out = os.path.join(directory, "set")
        subprocess.run(["protoc", f"--proto_path={ROOT}/proto", "--include_source_info", f"--descriptor_set_out={out}",
                        f"cairn/config/v1/{file_name}"], check=True)
        with open(out, "rb") as file:
            return descriptor_pb2.FileDescriptorSet.FromString(file.read()).file[0]


def joined(comment):
    return re.sub(r"\s+", " ", comment).strip()


def item(name, kind, text):
    return textwrap.fill(f"- **`{name}`** ({kind}). {text}", COLUMNS, subsequent_indent="  ",
                         break_long_words=False, break_on_hyphens=False)


def section(daemon, file):
    places = {tuple(place.path): place for place in file.source_code_info.location}
    return "\n".join([f"## {daemon}", "", *keys(file, places, 0)])


def keys(file, places, message):
    """The lines of the keys of the file's message of that number, those of its groups behind them."""
    numbers = {f".{file.package}.{one.name}": number for number, one in enumerate(file.message_type)}
    for number, field in enumerate(file.message_type[message].field):
        place = places[(MESSAGES, message, FIELDS, number)]
        for heading in place.leading_detached_comments:
            yield from ("", f"### {joined(heading)}", "")
        if field.type == Field.TYPE_MESSAGE:
            yield from (textwrap.fill(joined(place.leading_comments), COLUMNS), "")
            yield from keys(file, places, numbers[field.type_name])
            continue
        kind = TYPES[field.type]
        if field.label == Field.LABEL_REPEATED:
            kind += ", may be given several times"
        yield item(field.name, kind, joined(place.leading_comments))


def page():
    text = "\n\n".join([HEAD.rstrip()] + [section(name, described(file)) for name, file in DAEMONS]) + "\n"
    return re.sub(r"\n{3,}", "\n\n", text)


def main():
    text = page()
    if sys.argv[1:] == ["--check"]:
        with open(PAGE, encoding="utf-8") as file:
            if file.read() == text:
                return 0
        print("docs/configuration.md is not what the comments in proto/cairn/config/v1 say: "
              "run tests/tools/make_configuration_page.py", file=sys.stderr)
        return 1
    with open(PAGE, "w", encoding="utf-8") as file:
        file.write(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

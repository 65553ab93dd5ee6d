#!/usr/bin/env python3
"""Whether today's protocol still says what every earlier one said: tests/unit/proto_pinned.lst.

usage: proto_pin_test.py         fails if a pinned element is gone or changed, or a new one is not pinned yet
       proto_pin_test.py --pin   pins what is new; refuses while something pinned is gone or changed

A field is its number, type and label; an enum value its number; an rpc its request, response and streams. What
changes one of them needs a new package version (cairn.kv.v2) beside the old one.
"""
import os
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

HERE = os.path.dirname(os.path.abspath(__file__))
PINNED = os.path.join(HERE, "proto_pinned.lst")
ROOT = os.path.normpath(os.path.join(HERE, "../../proto"))
Field = descriptor_pb2.FieldDescriptorProto


def message_lines(prefix, message):
    name = prefix + "." + message.name
    for field in message.field:
        kind = field.type_name.lstrip(".") or Field.Type.Name(field.type)[len("TYPE_"):].lower()
        label = Field.Label.Name(field.label)[len("LABEL_"):].lower()
        choice = " of " + message.oneof_decl[field.oneof_index].name if field.HasField("oneof_index") else ""
        yield "%s.%s = %d %s %s%s" % (name, field.name, field.number, label, kind, choice)
    for nested in message.nested_type:
        yield from message_lines(name, nested)
    for enum in message.enum_type:
        yield from enum_lines(name, enum)


def enum_lines(prefix, enum):
    for value in enum.value:
        yield "%s.%s.%s = %d" % (prefix, enum.name, value.name, value.number)


def rpc_line(prefix, rpc):
    sides = [("stream " if streams else "") + kind.lstrip(".")
             for kind, streams in ((rpc.input_type, rpc.client_streaming), (rpc.output_type, rpc.server_streaming))]
    return "%s.%s: %s -> %s" % (prefix, rpc.name, sides[0], sides[1])


def file_lines(file):
    for service in file.service:
        for rpc in service.method:
            yield rpc_line(file.package + "." + service.name, rpc)
    for enum in file.enum_type:
        yield from enum_lines(file.package, enum)
    for message in file.message_type:
        yield from message_lines(file.package, message)


def today():
    names = sorted(os.path.relpath(os.path.join(folder, name), ROOT)
                   for folder, _, files in os.walk(ROOT) for name in files if name.endswith(".proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "set.pb")
        subprocess.run(["protoc", "--proto_path=" + ROOT, "--descriptor_set_out=" + out] + names, check=True)
        files = descriptor_pb2.FileDescriptorSet()
        with open(out, "rb") as file:
            files.ParseFromString(file.read())
    return {line for file in files.file for line in file_lines(file)}


def main():
    with open(PINNED, encoding="utf-8") as file:
        pinned = set(file.read().splitlines())
    now = today()
    gone = sorted(pinned - now)
    new = sorted(now - pinned)
    for line in gone:
        print("pinned, but gone or changed: %s" % line)
    if sys.argv[1:] == ["--pin"] and not gone:
        with open(PINNED, "w", encoding="utf-8") as file:
            file.write("\n".join(sorted(now)) + "\n")
        print("pinned %d new" % len(new))
        return 0
    for line in new:
        print("not pinned yet (proto_pin_test.py --pin): %s" % line)
    print("protocol: %d pinned, %d gone or changed, %d new" % (len(pinned), len(gone), len(new)))
    return 1 if gone or new else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""House rules of the .proto files that protoc does not check.

usage: proto_lint_test.py [ROOT]      prints each breach as FILE:LINE: RULE and fails if there is any
       proto_lint_test.py --self-test breaks each rule in a small file and fails if one is not noticed

- Every message, field, oneof, enum, enum value, service and rpc has a comment above it.
- An rpc's comment has a list "Errors:".
- Names: CamelCase for messages, enums, services (which end in Service) and rpcs; snake_case for fields and
  oneofs; enum values in capitals, with the enum's name in front, the first ..._UNSPECIFIED = 0.
- The package is the folder, its last part a version. Requests and responses of unary calls are the rpc's own.
- An integer field that says how much has its unit at the end of its name; NOT_AMOUNTS has the others.
"""
import os
import re
import subprocess
import sys
import tempfile

from google.protobuf import descriptor_pb2

# May be followed by _max or _min.
UNITS = ("bytes", "count", "seconds", "ms", "us", "ns", "tokens", "sessions", "pages", "entries",
         "fetches_in_flight")
# Last words of integers that name or number something instead of measuring it.
NAMES = ("id", "ids", "seq", "epoch", "version", "generation", "code", "seed", "mode", "layer", "head")
# field: why its name has neither
NOT_AMOUNTS = {
    "first": "a position", "first_entry": "a position", "segment_start": "a position",
    "token_ids_start": "a position", "starts": "positions, packed", "lengths": "of runs of positions, packed",
    "page_size": "the name that paginated calls have everywhere", "top_k": "the sampler's usual name",
    "head_dim": "numbers in a head, as models call it", "queue_depth": "requests, as devices call it",
    "threads": "a count, as every program calls it", "realtime_priority": "a rank, as the scheduler calls it",
}
CAMEL = re.compile(r"([A-Z][a-z0-9]*)+$")
SNAKE = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*$")
AMOUNT = re.compile(r"(^|_)(%s)(_max|_min)?$" % "|".join(UNITS))
NAME = re.compile(r"(^|_)(%s)$" % "|".join(NAMES))
Field = descriptor_pb2.FieldDescriptorProto
INTEGERS = {Field.TYPE_INT64, Field.TYPE_UINT64, Field.TYPE_INT32, Field.TYPE_UINT32, Field.TYPE_FIXED64,
            Field.TYPE_FIXED32, Field.TYPE_SFIXED64, Field.TYPE_SFIXED32, Field.TYPE_SINT64, Field.TYPE_SINT32}
# Field numbers in descriptor.proto: the steps of a path to an element.
MESSAGES, ENUMS, SERVICES, FIELDS, ONEOFS, NESTED_MESSAGES, NESTED_ENUMS = 4, 5, 6, 2, 8, 3, 4


def capitals(camel):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", camel).upper()


class FileLint:
    def __init__(self, file, seen):
        self.file, self.seen, self.breaches = file, seen, []
        self.places = {tuple(place.path): place for place in file.source_code_info.location}

    def say(self, path, text):
        place = self.places.get(tuple(path))
        line = place.span[0] + 1 if place else 1
        self.breaches.append("%s:%d: %s" % (self.file.name, line, text))

    def comment(self, path, what):
        place = self.places.get(tuple(path))
        text = place.leading_comments.strip() if place else ""
        if not text:
            self.say(path, "%s has no comment above it" % what)
        return text

    def name(self, path, what, name, pattern, style):
        if not pattern.match(name):
            self.say(path, "%s is not in %s" % (what, style))

    def field(self, path, field, owner):
        what = "field %s.%s" % (owner, field.name)
        self.comment(path, what)
        self.name(path, what, field.name, SNAKE, "snake_case")
        if field.type not in INTEGERS:
            return
        if field.name in NOT_AMOUNTS:
            self.seen.add(field.name)
        elif not AMOUNT.search(field.name) and not NAME.search(field.name):
            self.say(path, "%s is an integer without a unit at the end of its name" % what)

    def enum(self, path, enum):
        what = "enum %s" % enum.name
        self.comment(path, what)
        self.name(path, what, enum.name, CAMEL, "CamelCase")
        prefix = capitals(enum.name) + "_"
        for i, value in enumerate(enum.value):
            here = path + [2, i]
            self.comment(here, "value %s" % value.name)
            if not value.name.startswith(prefix) or value.name != value.name.upper():
                self.say(here, "value %s does not begin with %s, in capitals" % (value.name, prefix))
        if enum.value[0].name != prefix + "UNSPECIFIED" or enum.value[0].number != 0:
            self.say(path, "%s does not begin with %sUNSPECIFIED = 0" % (what, prefix))

    def message(self, path, message):
        what = "message %s" % message.name
        self.comment(path, what)
        self.name(path, what, message.name, CAMEL, "CamelCase")
        optional = {field.oneof_index for field in message.field if field.proto3_optional}
        for i, field in enumerate(message.field):
            self.field(path + [FIELDS, i], field, message.name)
        for i, oneof in enumerate(message.oneof_decl):
            if i in optional:  # what protoc makes of `optional`
                continue
            oneof_what = "oneof %s.%s" % (message.name, oneof.name)
            self.comment(path + [ONEOFS, i], oneof_what)
            self.name(path + [ONEOFS, i], oneof_what, oneof.name, SNAKE, "snake_case")
        for i, enum in enumerate(message.enum_type):
            self.enum(path + [NESTED_ENUMS, i], enum)
        for i, nested in enumerate(message.nested_type):
            if not nested.options.map_entry:
                self.message(path + [NESTED_MESSAGES, i], nested)

    def rpc(self, path, rpc):
        what = "rpc %s" % rpc.name
        text = self.comment(path, what)
        self.name(path, what, rpc.name, CAMEL, "CamelCase")
        if text and not re.search(r"(^|\n)\s*Errors:\s+\S", text):
            self.say(path, "%s: its comment has no list 'Errors:'" % what)
        if rpc.client_streaming or rpc.server_streaming:
            return
        for given, wanted in ((rpc.input_type, "Request"), (rpc.output_type, "Response")):
            if given.split(".")[-1] != rpc.name + wanted:
                self.say(path, "%s does not have a %s of its own" % (what, rpc.name + wanted))

    def run(self):
        folder = os.path.dirname(self.file.name)
        if self.file.package != folder.replace("/", ".") or not re.search(r"\.v[0-9]+$", self.file.package):
            self.say([2], "package %s is not its folder, or has no version" % self.file.package)
        for i, service in enumerate(self.file.service):
            what = "service %s" % service.name
            self.comment([SERVICES, i], what)
            if not CAMEL.match(service.name) or not service.name.endswith("Service"):
                self.say([SERVICES, i], "%s is not in CamelCase with Service at its end" % what)
            for j, rpc in enumerate(service.method):
                self.rpc([SERVICES, i, 2, j], rpc)
        for i, enum in enumerate(self.file.enum_type):
            self.enum([ENUMS, i], enum)
        for i, message in enumerate(self.file.message_type):
            self.message([MESSAGES, i], message)
        return self.breaches


def lint(root, seen):
    """Breaches of all files under `root`, the folder of the packages."""
    names = sorted(os.path.relpath(os.path.join(folder, name), root)
                   for folder, _, files in os.walk(root) for name in files if name.endswith(".proto"))
    if not names:
        return ["%s:1: no .proto file here" % root]
    with tempfile.TemporaryDirectory() as scratch:
        out = os.path.join(scratch, "set.pb")
        subprocess.run(["protoc", "--proto_path=" + root, "--include_source_info",
                        "--descriptor_set_out=" + out] + names, check=True)
        files = descriptor_pb2.FileDescriptorSet()
        with open(out, "rb") as file:
            files.ParseFromString(file.read())
    return [breach for file in files.file for breach in FileLint(file, seen).run()]


def check(root):
    seen = set()
    found = lint(root, seen)
    return found + ["tests/unit/proto_lint_test.py:1: NOT_AMOUNTS names %s, which is no field" % name
                    for name in sorted(set(NOT_AMOUNTS) - seen)]


SAMPLE = """syntax = "proto3";
package cairn.sample.v1;
// C: service.
service SampleService {
  // C: rpc.
  // Errors: NOT_FOUND none.
  rpc Get(GetRequest) returns (GetResponse);
  // C: stream.
  // Errors: none of its own.
  rpc Talk(stream GetRequest) returns (stream GetResponse);
}
// C: request.
message GetRequest {
  // C: field.
  optional int64 size_bytes = 1;
  // C: oneof.
  oneof kind {
    // C: member.
    string name = 2;
    // C: number.
    int64 part_id = 3;
  }
  // C: nested.
  message Inner {
    // C: inner.
    int32 tokens_max = 1;
  }
}
// C: response.
message GetResponse {
  // C: map.
  map<string, string> words = 1;
  // C: mode.
  SampleMode mode = 2;
}
// C: enum.
enum SampleMode {
  // C: zero.
  SAMPLE_MODE_UNSPECIFIED = 0;
  // C: one.
  SAMPLE_MODE_ONE = 1;
}
"""
# what to replace, by what, what must be said
BREACHES = [
    ("package cairn.sample.v1", "package cairn.other.v1", "package"),
    ("service SampleService", "service Sample", "Service at its end"),
    ("rpc Talk(", "rpc talk(", "rpc talk is not in CamelCase"),
    ("  // Errors: NOT_FOUND none.\n", "", "rpc Get: its comment has no list"),
    ("rpc Get(GetRequest)", "rpc Get(GetResponse)", "GetRequest of its own"),
    ("returns (GetResponse)", "returns (GetRequest)", "GetResponse of its own"),
    ("message Inner", "message inner", "message inner is not in CamelCase"),
    ("string name", "string Name", "snake_case"),
    ("oneof kind", "oneof Kind", "snake_case"),
    ("size_bytes", "size", "without a unit"),
    ("tokens_max", "limit_max", "without a unit"),
    ("SAMPLE_MODE_ONE", "ONE", "does not begin with SAMPLE_MODE_"),
    ("SAMPLE_MODE_UNSPECIFIED", "SAMPLE_MODE_NONE", "SAMPLE_MODE_UNSPECIFIED = 0"),
    ("  // C: field.\n  optional int64 size_bytes = 1;", "  optional int64 size_bytes = 1;  // C: field.",
     "field GetRequest.size_bytes has no comment above it"),
]
BREACHES += [(line + "\n", "", "has no comment above it") for line in SAMPLE.splitlines()
             if re.match(r"\s*// C: (?!rpc|stream)", line)]
BREACHES += [("  // C: rpc.\n  // Errors: NOT_FOUND none.\n", "", "rpc Get has no comment above it"),
             ("  // C: stream.\n  // Errors: none of its own.\n", "", "rpc Talk has no comment above it")]


def lint_text(text):
    with tempfile.TemporaryDirectory() as root:
        os.makedirs(os.path.join(root, "cairn/sample/v1"))
        with open(os.path.join(root, "cairn/sample/v1/sample.proto"), "w", encoding="utf-8") as file:
            file.write(text)
        return lint(root, set())


def self_test():
    failures = ["the sample itself: %s" % breach for breach in lint_text(SAMPLE)]
    for old, new, said in BREACHES:
        assert SAMPLE.count(old) >= 1, old
        found = lint_text(SAMPLE.replace(old, new))
        if len(found) != 1 or said not in found[0]:
            failures.append("%r for %r should give %r, not %s" % (new, old, said, found))
    print("\n".join(failures + ["self-test: %d breaches tried, %d failures" % (len(BREACHES), len(failures))]))
    return 1 if failures else 0


def main():
    if sys.argv[1:] == ["--self-test"]:
        return self_test()
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../../proto")
    found = check(os.path.normpath(root))
    print("\n".join(found + ["proto lint: %d breaches" % len(found)]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env python3
"""House rules of the sources that no compiler checks; CONTRIBUTING.md tells them in prose.

usage: tidy_test.py [ROOT]      prints each breach as FILE:LINE: RULE and fails if there is any
       tidy_test.py --self-test breaks each rule in a temporary tree and fails if one is not noticed
To add a rule, add a row to one of the tables, and to BREACHES a file that breaks it.
"""
import os
import re
import sys
import tempfile

CODE = (".h", ".cc")
COLUMNS_MAX = {".h": 100, ".cc": 100, ".py": 120, ".sh": 110, ".txt": 120, ".cmake": 120, ".proto": 130}
LINES_MAX = {".h": 500, ".cc": 500, ".py": 500, ".sh": 500}
SKIPPED_FOLDERS = {".git", "build", ".cache", ".cairn", "__pycache__", "golden"}
SKIPPED_FILES = {"tests/unit/tidy_test.py", "deploy/models/demo-4k.txt"}
TEXT = (".h", ".cc", ".py", ".sh", ".txt", ".cmake", ".proto", ".md", ".json", ".conf", ".textproto")

# pattern, file suffixes, what to say, path prefixes where it is allowed
BANNED = [
    (r"\b(TODO|FIXME|XXX|HACK)\b", TEXT, "finish it or write it down elsewhere", ()),
    (r"(?<![\w.])/(work|tmp/(build|bash))\b", TEXT, "a path of one machine", ()),
    (r"\b(sleep_for|sleep_until|usleep|nanosleep|sleep)\(", CODE, "wait for the event instead", (
        "common/daemon/", "compute-node/kv_client/", "compute-node/daemon/", "clients/",
        "kv-node/layout/file_calls.cc")),  # retries that no event announces
    (r"\btime\.sleep\(", (".py",), "wait for the event instead",
     ("tests/integration/daemons.py", "tests/bench/")),
    (r"\b(EXPECT|ASSERT)_L[TE]\([^;\n]*\b(now\(\) -|elapsed)|\bassertLess(Equal)?\(time\.", CODE + (".py",),
     "no test asserts a time: its limit in ctest ends what hangs", ()),
    (r"(?<![\w:])s?rand\(", CODE, "use tests/tools/rng.h or a seeded generator", ()),
    (r"\bsystem_clock\b", CODE, "use steady_clock; wall time only where it is shown or sent", (
        "common/base/clock.h", "kv-node/layout/extent_file_create.cc", "common/rpc/unix_server.cc",
        "clients/", "compute-node/eval/", "compute-node/kv_client/", "compute-node/service/", "compute-node/http/",
        "tests/")),
    (r"(?<!\w)(std::)?(f?printf|puts)\(|\bstd::c(out|err)\b", CODE, "daemons log through common/log",
     ("clients/", "tests/", "common/base/check.cc", "common/daemon/")),
    (r"\babsl::(Mutex|MutexLock)\b", CODE, "use common/base/mutex.h, which ThreadSanitizer sees",
     ("common/base/mutex.h",)),
    (r"#include <(ranges|coroutine)>", CODE, "clang 14 cannot compile it", ()),
    # Each of these lives where it can be replaced.
    (r"#include [<\"]liburing", CODE, "only kv-node/device uses io_uring", ("kv-node/device/",)),
    (r"#include [<\"]rocksdb/", CODE, "only kv-node/meta uses RocksDB",
     ("kv-node/meta/", "tests/unit/meta/", "tests/tools/unsynced_fs.")),
    (r"#include [<\"](grpcpp?|google/protobuf)/|#include [<\"]cairn/", CODE,
     "gRPC and its messages stay at the edges",
     ("common/rpc/", "common/daemon/", "kv-node/service/", "kv-node/daemon/", "clients/", "tests/",
      "compute-node/kv_client/", "compute-node/service/", "compute-node/http/", "compute-node/daemon/")),
    (r"#include [<\"]histedit", CODE, "only one source uses the line editor's library",
     ("clients/cairn/line_editor.cc",)),
    (r"#include [<\"]boost/", CODE, "only one source compiles the HTTP parser",
     ("compute-node/http/http_syntax.cc",)),
    (r"#include [<\"]nlohmann/", CODE, "JSON is for compute-node/http and compute-node/eval",
     ("compute-node/http/", "compute-node/eval/", "tests/")),
    (r"#include [<\"]Eigen/", CODE, "only one source uses linear algebra",
     ("compute-node/retrieval/kvswap/key_basis.cc",)),
    (r"#include [<\"](hwy/|\w*mmintrin|arm_neon)", CODE, "SIMD lives in compute-node/kernels",
     ("compute-node/kernels/", "tests/unit/kernels/")),
]

# folder: the folders that it may include, beside itself. The longest prefix counts. clients and
# tests may include anything.
BASE = ("common/base", "common/io", "common/kv", "common/log", "common/timeline")
EDGE = BASE + ("common/rpc", "common/daemon")
MAY_INCLUDE = {
    "common/base": (), "common/io": BASE, "common/kv": BASE, "common/log": BASE,
    "common/timeline": BASE, "common/trace": BASE, "common/command": BASE,
    "common/rpc": BASE, "common/daemon": BASE + ("common/rpc",),
    "kv-node/device": BASE,
    "kv-node/layout": BASE + ("kv-node/device",),
    "kv-node/cache": BASE + ("kv-node/layout",),
    "kv-node/meta": BASE,
    "kv-node/engine": BASE + ("kv-node/cache", "kv-node/layout", "kv-node/meta",
                              "kv-node/device"),
    "kv-node/service": EDGE + ("kv-node/engine",),
    "kv-node/daemon": EDGE + ("kv-node/",),
    "kv-node/util": EDGE + ("kv-node/",),
    "kv-node": EDGE + ("kv-node/daemon",),
    "compute-node/kernels": BASE,
    "compute-node/model": BASE + ("compute-node/kernels",),
    "compute-node/retrieval": BASE + ("compute-node/kernels",),
    # The in-process client hosts an engine over memory.
    "compute-node/kv_client": EDGE + ("kv-node/engine", "kv-node/device", "kv-node/layout"),
    "compute-node/session": BASE + ("compute-node/kernels", "compute-node/model",
                                    "compute-node/retrieval", "compute-node/kv_client"),
    "compute-node/service": EDGE + ("compute-node/session", "compute-node/model",
                                    "compute-node/kv_client"),
    "compute-node/http": EDGE + ("compute-node/service", "compute-node/session",
                                 "compute-node/model"),
    # Its process may have the store for itself.
    "compute-node/daemon": EDGE + ("compute-node/", "kv-node/daemon"),
    # Programs that run a model without daemons.
    "compute-node/command": BASE + ("common/command", "common/trace", "compute-node/kernels",
                                    "compute-node/model"),
    "compute-node/eval": BASE + ("common/command", "common/trace", "compute-node/command",
                                 "compute-node/kernels", "compute-node/model",
                                 "compute-node/retrieval", "compute-node/session",
                                 "compute-node/kv_client"),
    "compute-node": EDGE + ("compute-node/daemon",),
}


# folder: its rooms, each of which may include those before it, and headers of the folder itself that
# any room may include. What else lies in the folder itself may include all of them.
ROOMS = {
    "kv-node/engine": (("io", "space", "state", "place", "load", "index", "checkpoint", "fetch",
                        "session", "defragment"),
                       ("engine.h", "engine_context.h", "id_source.h", "inspection.h")),
    "compute-node/model": (("gguf", "tokenizer", "sampler", "chat", "forward"), ("config.h",)),
    "compute-node/retrieval": (("clustering", "dynakv", "kvswap", "baselines", "eviction"),
                               ("best_first.h", "cluster_keeper.h", "entry_selector.h",
                                "fetch_plan.h", "paged_index.h", "policy.h", "policy_state.h",
                                "selection_options.h", "weight_observer.h")),
    "compute-node/session": (("reading", "entries", "attention"),
                             ("kv_memory.h", "options.h", "stop.h")),
}


def room_of(path):
    """-> the folder of ROOMS that `path` lies in, and the room, "" in the folder itself; or two Nones."""
    folder = os.path.dirname(path)
    for house in ROOMS:
        if folder == house:
            return house, ""
        if folder.startswith(house + "/"):
            return house, folder[len(house) + 1:]
    return None, None


def may_enter(path, included):
    """Whether the rooms of one folder allow the include; of other folders nothing is said here."""
    house, mine = room_of(path)
    if house is None or not mine or room_of(included)[0] != house:
        return True
    rooms, for_all = ROOMS[house]
    theirs = room_of(included)[1]
    if not theirs:
        return os.path.basename(included) in for_all
    return mine in rooms and theirs in rooms[:rooms.index(mine) + 1]


def source_files(root):
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(set(folders) - SKIPPED_FOLDERS)
        for name in sorted(names):
            path = os.path.relpath(os.path.join(folder, name), root)
            if path not in SKIPPED_FILES and name.endswith(TEXT):
                yield path


def owner(path):
    """The longest folder of MAY_INCLUDE that holds `path`, or None."""
    folder = os.path.dirname(path)
    while folder and folder not in MAY_INCLUDE:
        folder = os.path.dirname(folder)
    return folder or None


def check_lines(path, lines):
    suffix = os.path.splitext(path)[1]
    if len(lines) > LINES_MAX.get(suffix, len(lines)):
        yield len(lines), "more than %d lines: split the file" % LINES_MAX[suffix]
    rules = [(re.compile(pattern), said) for pattern, suffixes, said, allowed in BANNED
             if suffix in suffixes and not path.startswith(allowed)]
    for number, line in enumerate(lines, 1):
        if len(line) > COLUMNS_MAX.get(suffix, len(line)):
            yield number, "longer than %d columns" % COLUMNS_MAX[suffix]
        for pattern, said in rules:
            if pattern.search(line):
                yield number, "%r: %s" % (pattern.search(line).group(0), said)


def check_includes(path, lines):
    mine = owner(path)
    for number, line in enumerate(lines, 1):
        match = re.match(r'#include "([^"]+)"', line)
        if not match or match.group(1).startswith("cairn/") or not mine:
            continue
        theirs = os.path.dirname(match.group(1))
        if not may_enter(path, match.group(1)):
            yield number, "room %s may not include %s" % (os.path.dirname(path), match.group(1))
        allowed = MAY_INCLUDE[mine] + (mine,)
        if not any((theirs + "/").startswith(a.rstrip("/") + "/") for a in allowed) or (
                theirs != mine and mine.startswith(theirs + "/")):
            yield number, "%s may not include %s" % (mine, match.group(1))


CONSTANT = re.compile(r"(?:inline )?constexpr [\w:<>]+ (k[A-Z]\w*)\b")


def check_constants(root, path, lines):
    """In a unity build a source's own constant would hide the one of the header, in other sources too."""
    folder = os.path.join(root, os.path.dirname(path))
    theirs = {}
    for name in sorted(os.listdir(folder)):
        if name.endswith(".h"):
            with open(os.path.join(folder, name), encoding="utf-8") as header:
                theirs.update((constant, name) for constant in CONSTANT.findall(header.read()))
    for number, line in enumerate(lines, 1):
        match = CONSTANT.match(line)
        if match and match.group(1) in theirs:
            yield number, "%s is a constant of %s too" % (match.group(1), theirs[match.group(1)])


def check_markdown(path, lines):
    # The form of a report is titled by who writes one.
    if path.startswith(".github/"):
        return
    fenced, titles = False, 0
    for line in lines:
        fenced ^= line.startswith("```")
        titles += not fenced and line.startswith("# ")
    if titles != 1:
        yield 1, "%d titles (lines that begin with '# '): a document has one" % titles


def check_registered(root, path):
    """A source that no CMakeLists.txt of its folder or one above names is never built or run."""
    name = os.path.basename(path)
    folder = os.path.dirname(path)
    while True:
        lists = os.path.join(root, folder, "CMakeLists.txt")
        if os.path.exists(lists) and re.search(r"(?<![\w-])%s(?![\w-])" % re.escape(name),
                                               open(lists, encoding="utf-8").read()):
            return
        if not folder:
            yield 1, "in no CMakeLists.txt of its folder: it is never built or run"
            return
        folder = os.path.dirname(folder)


def read_lines(root, path):
    with open(os.path.join(root, path), encoding="utf-8") as file:
        lines = file.read().split("\n")
    return lines if lines[-1] else lines[:-1]


def check_file(root, path):
    lines = read_lines(root, path)
    yield from check_lines(path, lines)
    if path.endswith(CODE):
        yield from check_includes(path, lines)
    # Highway includes an -inl.h once for each instruction set: it has a guard of another kind.
    if path.endswith(".h") and not path.endswith("-inl.h") and "#pragma once" not in lines:
        yield 1, "a header without '#pragma once'"
    if path.endswith(".md"):
        yield from check_markdown(path, lines)
    if path.endswith(".cc"):
        yield from check_constants(root, path, lines)
    if path.endswith(".cc") or path.endswith("_test.py"):
        yield from check_registered(root, path)


TYPE = re.compile(r"(?:struct|class|union|enum class) (\w+)[^;{]*\{")


def check_types(root, paths):
    """Two headers' types of one name are one type to the linker, whatever is in them."""
    first = {}
    for path in paths:
        if not path.endswith(".h"):
            continue
        namespace = ""
        for number, line in enumerate(read_lines(root, path), 1):
            if line.startswith("namespace "):
                namespace = line
            match = TYPE.match(line)
            if match and first.setdefault((namespace, match.group(1)), path) != path:
                yield path, number, "%s is a type of %s too" % (match.group(1), first[namespace, match.group(1)])


def check_tree(root):
    paths = list(source_files(root))
    found = [(path, *said) for path in paths for said in check_file(root, path)]
    return ["%s:%d: %s" % one for one in [*found, *check_types(root, paths)]]


# file, content that breaks one rule, what must be said of it
BREACHES = [
    ("common/io/long.h", "#pragma once\n// " + "x" * 98 + "\n", "longer than 100"),
    ("common/io/many.h", "#pragma once\n" * 501, "more than 500 lines"),
    ("common/io/later.h", "#pragma once\n// TO" + "DO\n", "finish it"),
    ("docs/path.md", "# Title\nsee /wo" + "rk/x\n", "a path of one machine"),
    ("tests/unit/x/nap_test.cc", "std::this_thread::sleep_for(x);\n", "wait for the event"),
    ("tests/integration/nap_test.py", "time.sleep(1)\n", "wait for the event"),
    ("tests/unit/x/quick_test.cc", "EXPECT_LT(Clock::now() - begin, x);\n", "no test asserts a time"),
    ("kv-node/engine/random.h", "#pragma once\nint x = rand();\n", "seeded generator"),
    ("kv-node/device/clock.h", "#pragma once\nstd::chrono::system_clock x;\n", "steady_clock"),
    ("kv-node/engine/print.h", "#pragma once\nstd::printf(x);\n", "common/log"),
    ("common/io/mutex.h", "#pragma once\nabsl::Mutex x;\n", "mutex.h"),
    ("common/io/range.h", "#pragma once\n#include <ranges>\n", "clang 14"),
    ("kv-node/engine/ring.h", "#pragma once\n#include <liburing.h>\n", "io_uring"),
    ("kv-node/engine/db.h", "#pragma once\n#include <rocksdb/db.h>\n", "RocksDB"),
    ("kv-node/engine/rpc.h", "#pragma once\n#include <grpcpp/grpcpp.h>\n", "at the edges"),
    ("clients/cairn/chat_edit.h", "#pragma once\n#include <histedit.h>\n", "only one source uses the line"),
    ("compute-node/retrieval/kvswap/basis.h", "#pragma once\n#include <Eigen/Core>\n", "only one source uses linear"),
    ("compute-node/model/simd.h", "#pragma once\n#include <hwy/highway.h>\n", "SIMD lives"),
    ("kv-node/engine/io/up.h", '#pragma once\n#include "kv-node/engine/session/attached_session.h"\n',
     "room kv-node/engine/io may not include"),
    ("kv-node/engine/io/out.h", '#pragma once\n#include "kv-node/engine/engine_core.h"\n',
     "room kv-node/engine/io may not include"),
    ("kv-node/device/up.h", '#pragma once\n#include "kv-node/engine/engine.h"\n', "may not include"),
    ("kv-node/meta/side.h", '#pragma once\n#include "kv-node/layout/x.h"\n', "may not include"),
    ("common/kv/up.h", '#pragma once\n#include "common/rpc/x.h"\n', "may not include"),
    ("docs/titles.md", "# One\n# Two\n", "2 titles"),
    ("common/io/twice.h", "int x;\n", "pragma once"),
    ("tests/unit/x/lost_test.cc", "int x;\n", "never built or run"),
    ("tests/integration/lost_test.py", "x = 1\n", "never built or run"),
    ("tests/fuzz/lost_fuzz.cc", "int x;\n", "never built or run"),
    ("kv-node/cache/slot.cc", "constexpr int kSlots = 1;\n", "constant of slot.h too"),
    ("common/io/two.h", "#pragma once\nnamespace cairn {\nclass Same : Base {\n};\n}\n", "type of common/io/one.h too"),
]
# what lies beside that file, where that breaks the rule
BESIDE = {"kv-node/cache/slot.cc": ("slot.h", "#pragma once\ninline constexpr int kSlots = 2;\n"),
          "common/io/two.h": ("one.h", "#pragma once\nnamespace cairn {\nstruct Same {\n};\n}\n")}


def self_test():
    failures = 0
    for path, content, said in BREACHES:
        with tempfile.TemporaryDirectory() as root:
            os.makedirs(os.path.join(root, os.path.dirname(path)))
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                file.write(content)
            if path in BESIDE:
                name, text = BESIDE[path]
                with open(os.path.join(root, os.path.dirname(path), name), "w", encoding="utf-8") as file:
                    file.write(text)
            registered = "" if "never built" in said else os.path.basename(path)
            with open(os.path.join(root, "CMakeLists.txt"), "w", encoding="utf-8") as file:
                file.write(registered)
            found = check_tree(root)
            if len(found) != 1 or said not in found[0]:
                failures += 1
                print("self-test: %s should give one breach with %r, not %s" % (path, said, found))
    return failures


def main():
    if sys.argv[1:] == ["--self-test"]:
        return 1 if self_test() else 0
    root = sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(__file__), "../..")
    found = check_tree(os.path.normpath(root))
    print("\n".join(found + ["tidy: %d breaches" % len(found)]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

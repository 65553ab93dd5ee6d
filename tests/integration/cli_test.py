"""Tests of the commands of `cairn` that need no daemon, and of what all programs have in common.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/cli_test.py
"""
import array
import glob
import json
import os
import re
import struct
import subprocess
import tempfile
import unittest

BIN_DIR = os.environ["CAIRN_BIN_DIR"]
TIMEOUT_S = 120


def run(program, *arguments, stdin=b""):
    return subprocess.run([os.path.join(BIN_DIR, program), *arguments], input=stdin,
                          capture_output=True, timeout=TIMEOUT_S, check=False)


def ids_file(path, ids):
    with open(path, "wb") as file:
        file.write(struct.pack(f"<{len(ids)}i", *ids))
    return path


def floats(path):
    values = array.array("f")
    with open(path, "rb") as file:
        values.frombytes(file.read())
    return values


class ProgramsTest(unittest.TestCase):
    """What a user may expect of every program, whichever it is."""
    REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    PROGRAMS = [*sorted(glob.glob(os.path.join(BIN_DIR, "cairn*"))),
                os.path.join(REPOSITORY, "clients", "bench", "cairn-bench"),
                os.path.join(REPOSITORY, "clients", "python", "generate.py")]

    def run_each(self, *arguments):
        """Yields the name of each program that there is, and what it did."""
        for program in self.PROGRAMS:
            command = [program] if os.path.dirname(program) == BIN_DIR else ["/usr/bin/python3", program]
            yield os.path.basename(program), subprocess.run(
                [*command, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=TIMEOUT_S,
                check=False)

    def test_each_has_the_version_of_the_build(self):
        with open(os.path.join(self.REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
            version = re.search(r"VERSION (\d[\d.]*) LANGUAGES", file.read()).group(1)
        for name, done in self.run_each("--version"):
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertRegex(done.stdout, rf"\A{name} {re.escape(version)}( \(.*\))?\n\Z")

    def test_each_has_help_with_an_example(self):
        for name, done in self.run_each("--help"):
            self.assertEqual((done.returncode, done.stderr), (0, ""), name)
            self.assertRegex(done.stdout, rf"(?s)\bexamples?:.*\b{name} ")

    def test_each_ends_with_2_where_it_is_called_wrongly(self):
        for name, done in self.run_each("--frobnicate"):
            self.assertEqual((done.returncode, done.stdout), (2, ""), name)
            self.assertRegex(done.stderr.splitlines()[-1], rf"\A{name}\b.*")
            self.assertNotIn("Traceback", done.stderr)

    def test_each_subcommand_has_an_example(self):
        for group in (["model", "inspect"], ["model", "tokenize"], ["model", "logits"], ["model", "trace"],
                      ["generate"], ["chat"], ["sessions", "list"], ["sessions", "show"], ["sessions", "fork"],
                      ["sessions", "delete"], ["status"]):
            done = run("cairn", *group, "--help")
            if done.returncode == 2:  # built without the daemons
                continue
            self.assertRegex(done.stdout.decode(), rf"(?s)\bexamples?:.*\bcairn {' '.join(group)}\b", group)


class CliTest(unittest.TestCase):
    VOCAB = 512
    CONTEXT = 2048

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="cairn-cli-test-")
        cls.model = cls.path("tiny.gguf")
        made = run("cairn-make-model", "--preset", "tiny-llama", "--type", "f32", "-o", cls.model)
        assert made.returncode == 0, made.stderr
        cls.tokens = ids_file(cls.path("tokens.i32"), [1, 5, 300, 511, 7])

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    @classmethod
    def path(cls, name):
        return os.path.join(cls.folder.name, name)

    def succeed(self, *arguments, stdin=b""):
        done = run("cairn", *arguments, stdin=stdin)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return done.stdout.decode()

    def fail(self, status, *arguments, words, stdin=b""):  # pylint: disable=arguments-differ
        """The command must end with `status` and one line that holds all of `words`."""
        done = run("cairn", *arguments, stdin=stdin)
        message = done.stderr.decode()
        self.assertEqual(done.returncode, status, message)
        self.assertEqual(done.stdout, b"")
        self.assertTrue(message.startswith("cairn: "), message)
        self.assertEqual(message.count("\n"), 1, message)
        for word in words:
            self.assertIn(word, message)

    # The program itself

    def test_version_and_help(self):
        self.assertRegex(self.succeed("--version"), r"^cairn \d+\.\d+\.\d+\n$")
        self.assertIn("model", self.succeed("--help"))
        for command in ("inspect", "tokenize", "logits", "trace"):
            self.assertIn(command, self.succeed("model", "--help"))
            self.assertIn("MODEL", self.succeed("model", command, "--help"))

    def test_usage_errors(self):
        self.fail(2, words=["subcommand is required", "cairn --help"])
        self.fail(2, "frob", words=["there is no command 'cairn frob'"])
        self.fail(2, "model", words=["subcommand is required", "cairn model --help"])
        self.fail(2, "model", "inspect", words=["MODEL is required", "cairn model inspect --help"])
        self.fail(2, "model", "inspect", self.model, "--frob", words=["--frob"])
        self.fail(2, "model", "logits", self.model, self.tokens, self.path("x"), "--kv-format",
                  "q5", words=["--kv-format", "f16"])
        for threads, words in (("9999", "9999 is out of range: give 0 to"), ("many", "many is no whole number"),
                               ("1.5", "1.5 is no whole number"), ("", "'' is no whole number"),
                               ("99999999999999999999", "is out of range")):
            self.fail(2, "model", "logits", self.model, self.tokens, self.path("x"), "--threads", threads,
                      words=["--threads: ", words, "cairn model logits --help"])

    # inspect

    def test_inspect_prints_the_shape(self):
        text = self.succeed("model", "inspect", self.model)
        for line in (r"architecture: +llama", r"layers: +2", r"vocabulary: +512",
                     r"context: +2048 tokens", r"runs: +yes"):
            self.assertRegex(text, line)

    def test_inspect_estimates_what_running_takes(self):
        text = self.succeed("model", "inspect", self.model, "--no-probe")
        for line in (r"weights_memory: +\d+ bytes", r"scratch_memory: +\d+ bytes",
                     r"flash_1k_tokens: bytes 1048576 in f32, 524288 in f16", r"decode_reads: +\d+ bytes"):
            self.assertRegex(text, line)
        self.assertNotIn("bandwidth", text)
        self.assertEqual(text, self.succeed("model", "inspect", self.model, "--no-probe"))
        text = self.succeed("model", "inspect", self.model, "--threads", "1")
        self.assertRegex(text, r"read_bandwidth: +\d+\.\d GB/s with 1 threads")
        self.assertRegex(text, r"decode_bound: +tokens/s at most \d+\.\d after 0 tokens\n")

    def test_inspect_as_json_says_the_same(self):
        text = self.succeed("model", "inspect", self.model, "--no-probe")
        shape = json.loads(self.succeed("model", "inspect", self.model, "--no-probe", "--json"))
        lines = re.findall(r"^(\w+):", text, re.MULTILINE)
        self.assertEqual([name for name in shape if name not in ("tensor_types", "problems")], lines)
        self.assertEqual((shape["layers"], shape["vocabulary"], shape["context"], shape["runs"]), (2, 512, 2048, True))
        self.assertEqual(shape["heads"], {"query": 8, "kv": 2, "dim": 32})
        self.assertEqual(shape["flash_1k_tokens"]["f16"], 1024 * shape["kv_bytes_token"]["f16"])
        self.assertEqual(sum(kind["bytes"] for kind in shape["tensor_types"].values()), shape["tensors"]["bytes"])
        measured = json.loads(self.succeed("model", "inspect", self.model, "--json"))
        self.assertGreater(measured["read_bandwidth"]["bytes_per_second"], 0)
        self.assertGreater(measured["decode_bound"]["0"], 0)

    def test_any_part_of_a_split_model_is_the_model(self):
        made = run("cairn-make-model", "--preset", "tiny-llama", "--type", "f32", "--parts", "3",
                   "-o", self.path("split"))
        self.assertEqual(made.returncode, 0, made.stderr)
        parts = [self.path(f"split-0000{number}-of-00003.gguf") for number in (1, 2, 3)]
        self.assertRegex(self.succeed("model", "inspect", parts[2]), r"format: .* in 3 files\n")
        for part in parts:
            self.succeed("model", "logits", part, self.tokens, self.path("split.f32"))
        self.succeed("model", "logits", self.model, self.tokens, self.path("whole.f32"))
        self.assertEqual(floats(self.path("split.f32")), floats(self.path("whole.f32")))
        os.remove(parts[1])
        self.fail(1, "model", "inspect", parts[0], words=[parts[1], "part 2 of 3", "No such file"])

    def test_inspect_says_why_a_model_does_not_run(self):
        with open(self.model, "rb") as file:
            data = file.read()
        other = self.path("other.gguf")
        with open(other, "wb") as file:
            key = b"general.architecture" + struct.pack("<IQ", 8, 5)  # a string of 5 bytes
            file.write(data.replace(key + b"llama", key + b"mamba", 1))
        self.assertRegex(self.succeed("model", "inspect", other), r"runs: +no: .*'mamba'")
        shape = json.loads(self.succeed("model", "inspect", other, "--json"))
        self.assertFalse(shape["runs"])
        self.assertIn("'mamba'", shape["problems"][0])
        self.fail(1, "model", "logits", other, self.tokens, self.path("x"),
                  words=[other, "'mamba'", "not supported"])

    def test_inspect_does_not_wait_for_a_pipe(self):
        os.mkfifo(self.path("pipe"))
        self.fail(1, "model", "inspect", self.path("pipe"), words=["pipe", "not a regular file"])

    def test_inspect_errors(self):
        missing = self.path("missing.gguf")
        self.fail(1, "model", "inspect", missing, words=[missing, "No such file"])
        self.fail(1, "model", "inspect", self.tokens, words=[self.tokens])
        self.fail(1, "model", "inspect", self.folder.name, words=[self.folder.name])
        for size in (0, 3, 100, 20000, os.path.getsize(self.model) - 1):
            cut = self.path("cut.gguf")
            with open(self.model, "rb") as source, open(cut, "wb") as target:
                target.write(source.read(size))
            self.fail(1, "model", "inspect", cut, words=[cut])

    # tokenize

    def test_tokenize_prints_ids_on_one_line(self):
        text = self.succeed("model", "tokenize", self.model, stdin=b"the path and the river")
        self.assertRegex(text, r"^\d+( \d+)*\n$")
        plain = [int(word) for word in text.split()]
        special = self.succeed("model", "tokenize", self.model, "--special",
                               stdin=b"the path and the river")
        self.assertEqual([int(word) for word in special.split()], [1, *plain])  # <s> in front

    def test_tokenize_takes_control_tokens_only_with_special(self):
        self.assertEqual(self.succeed("model", "tokenize", self.model, "--special", stdin=b"</s>"),
                         "1 2\n")
        plain = self.succeed("model", "tokenize", self.model, stdin=b"</s>").split()
        self.assertNotIn("2", plain)

    def test_tokenize_takes_any_bytes(self):
        self.assertEqual(self.succeed("model", "tokenize", self.model), "\n")
        ids = self.succeed("model", "tokenize", self.model, stdin=bytes(range(256))).split()
        self.assertGreater(len(ids), 100)

    def test_tokenize_errors(self):
        self.fail(1, "model", "tokenize", self.path("missing.gguf"), words=["missing.gguf"])
        with open(self.model, "rb") as file:
            data = file.read()
        other = self.path("no_tokenizer.gguf")
        with open(other, "wb") as file:
            file.write(data.replace(b"tokenizer.ggml.model", b"tokenizer.ggml.mOdel", 1))
        self.fail(1, "model", "tokenize", other, words=[other, "tokenizer.ggml.model"])

    # logits

    def logits(self, *options, tokens=None):
        out = self.path("out.f32")
        self.succeed("model", "logits", self.model, tokens or self.tokens, out, *options)
        return floats(out)

    def test_logits_of_the_last_position(self):
        last = self.logits()
        self.assertEqual(len(last), self.VOCAB)
        self.assertGreater(max(last) - min(last), 1.0)

    def test_logits_of_all_positions(self):
        every = self.logits("--all")
        self.assertEqual(len(every), 5 * self.VOCAB)
        self.assertEqual(every[-self.VOCAB:], self.logits())
        # The first position's logits are those of the first token alone.
        one = ids_file(self.path("one.i32"), [1])
        self.assertEqual(every[:self.VOCAB], self.logits(tokens=one))

    def test_logits_do_not_depend_on_batches_or_threads(self):
        ids = [3 + i * 37 % 500 for i in range(1100)]  # more than two batches
        tokens = ids_file(self.path("long.i32"), ids)
        every = self.logits("--all", "--threads", "1", tokens=tokens)
        self.assertEqual(len(every), 1100 * self.VOCAB)
        self.assertEqual(every[-self.VOCAB:], self.logits("--threads", "3", tokens=tokens))
        short = ids_file(self.path("short.i32"), ids[:700])
        self.assertEqual(every[699 * self.VOCAB:700 * self.VOCAB], self.logits(tokens=short))

    def test_kv_formats_differ_a_little(self):
        single = self.logits("--kv-format", "f32")
        norm = sum(x * x for x in single) ** 0.5
        self.assertEqual(self.logits(), self.logits("--kv-format", "f16"))
        for name, most in (("f16", 1e-3), ("q8", 1e-2), ("q4", 0.1)):
            other = self.logits("--kv-format", name)
            self.assertNotEqual(other, single)
            self.assertLess(sum((a - b) ** 2 for a, b in zip(other, single)) ** 0.5, most * norm, name)

    def test_logits_refuses_bad_token_files(self):
        out = self.path("refused.f32")

        def refuse(data, words):
            path = self.path("bad.i32")
            with open(path, "wb") as file:
                file.write(data)
            self.fail(1, "model", "logits", self.model, path, out, words=[path, *words])

        refuse(b"", ["empty"])
        refuse(b"\1\0\0\0\2", ["5 bytes", "little-endian int32"])
        refuse(struct.pack("<2i", 3, self.VOCAB), ["token 1 is id 512", "0 to 511"])
        refuse(struct.pack("<i", -1), ["token 0 is id -1", "0 to 511"])
        refuse(struct.pack("<i", 3) * (self.CONTEXT + 1), ["2049 tokens", "context of 2048"])
        missing = self.path("missing.i32")
        self.fail(1, "model", "logits", self.model, missing, out, words=[missing, "No such file"])
        self.assertFalse(os.path.exists(out))

    def test_a_context_full_of_tokens_is_accepted(self):
        full = ids_file(self.path("full.i32"), [3] * self.CONTEXT)
        self.assertEqual(len(self.logits(tokens=full)), self.VOCAB)

    def test_logits_refuses_adapters(self):
        self.fail(1, "model", "logits", self.model, self.tokens, self.path("x"), "--lora",
                  "adapter.gguf", "--lora-scale", "0.5",
                  words=["--lora adapter.gguf", "not supported"])

    def test_logits_output_errors(self):
        out = self.path("no_such_folder/out.f32")
        self.fail(1, "model", "logits", self.model, self.tokens, out, words=[out, "No such file"])
        self.fail(1, "model", "logits", self.model, self.tokens, "/dev/full",
                  words=["/dev/full", "No space left"])
        before = os.path.getsize(self.model)
        self.fail(1, "model", "logits", self.model, self.tokens, self.model,
                  words=[self.model, "same file"])
        self.assertEqual(os.path.getsize(self.model), before)

    # trace: docs/trace-format.md has the bytes. The model has 2 layers, 8 heads, 2 KV heads of 32.
    HEADER = struct.Struct("<8s12I")

    def trace(self, *options, tokens=None):
        out = self.path("trace")
        self.succeed("model", "trace", self.model, tokens or self.tokens, out, *options)
        with open(out, "rb") as file:
            data = file.read()
        return self.HEADER.unpack(data[:56]), data[56:]

    def test_trace_records_all_layers_of_the_tokens(self):
        header, rest = self.trace("--prompt", "3")
        self.assertEqual(header[:11], (b"CAIRNTRC", 1, 2, 2, 4, 32, 2, 2, 5, 3, 2))
        lists = header[11] + 4 * (2 + 2 + 2)
        self.assertEqual(struct.unpack("<6i", rest[header[11]:lists]), (0, 1, 0, 1, 3, 4))
        self.assertEqual(len(rest), lists + 2 * 2 * (5 + 2 * 4) * 32 * 2 + 4)

    def test_trace_of_a_part_has_the_same_rows(self):
        tokens = ids_file(self.path("long.i32"), [(7 * i) % self.VOCAB for i in range(700)])
        header, rest = self.trace("--prompt", "600", tokens=tokens)
        keys = rest[header[11] + 4 * (2 + 2 + 100):][:2 * 2 * 700 * 64]
        queries = rest[header[11] + 4 * (2 + 2 + 100) + len(keys):]
        header, part = self.trace("--prompt", "600", "--layers", "1", "--kv-heads", "0", "--query-every", "10",
                                  "--threads", "3", tokens=tokens)
        part = part[header[11] + 4 * (1 + 1 + 10):]
        self.assertEqual(part[:700 * 64], keys[2 * 700 * 64:3 * 700 * 64])
        row = 4 * 64  # queries of one step, layer and KV head
        for step in range(10):
            self.assertEqual(part[700 * 64 + step * row:][:row], queries[(step * 10 * 4 + 2) * row:][:row])

    def test_trace_has_queries_from_where_it_is_told(self):
        every, rest = self.trace("--prompt", "3", "--query-from", "0")
        steps = every[11] + 4 * (2 + 2)
        self.assertEqual(struct.unpack("<5i", rest[steps:][:20]), (0, 1, 2, 3, 4))
        last, short = self.trace("--prompt", "3")
        row = 2 * 2 * 4 * 64  # queries of one step
        self.assertEqual(rest[-4 - 2 * row:-4], short[-4 - 2 * row:-4])

    def test_trace_goes_on_behind_the_tokens(self):
        header, short = self.trace("--generate", "4")
        self.assertEqual(header[8:11], (9, 5, 4))
        keys = short[header[11] + 4 * (2 + 2 + 4):]
        header, given = self.trace()
        self.assertEqual(header[8:11], (5, 5, 0))
        given = given[header[11] + 4 * (2 + 2):]
        for head in range(4):
            self.assertEqual(keys[head * 9 * 64:][:5 * 64], given[head * 5 * 64:][:5 * 64])

    def test_trace_refuses_what_the_model_does_not_have(self):
        out = self.path("refused.trace")
        arguments = ("model", "trace", self.model, self.tokens, out)
        self.fail(1, *arguments, "--layers", "2", words=["layers 0 to 1"])
        self.fail(1, *arguments, "--kv-heads", "1,5", words=["KV heads 0 to 1"])
        self.fail(1, *arguments, "--prompt", "6", words=["--prompt 6", "only 5 tokens"])
        self.fail(1, *arguments, "--query-from", "6", words=["--query-from 6", "5 tokens"])
        self.fail(1, *arguments, "--generate", "2044", words=["2049 tokens", "context of 2048"])
        self.fail(1, *arguments, "--layers", "1,1", words=["layer 1 is not above 1"])
        self.assertFalse(os.path.exists(out))
        self.fail(1, "model", "trace", self.model, self.tokens, "/dev/full", words=["/dev/full", "No space left"])
        self.assertTrue(os.path.exists("/dev/full"))
        self.fail(1, "model", "trace", self.model, self.tokens, self.model, words=["same file"])


if __name__ == "__main__":
    unittest.main()

"""cairn-bench tasks over real daemons: the answers of full attention, a run that is stopped, daemons that fail.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/bench_tasks_test.py
"""
import itertools
import json
import os
import signal
import subprocess
import sys
import tempfile
import unittest

import daemons
from daemons import wait_until

PROGRAM = os.path.join(daemons.REPOSITORY, "clients", "bench", "cairn-bench")
DATA = os.path.join(daemons.REPOSITORY, "tests", "data")
TASKS = os.path.join(DATA, "tasks-dev-4k.jsonl")
# What deploy/models/retrieval-3m.md says of full attention at 1K: everything, but for lists of four values.
RIGHT_1K = {"single": 5, "multikey8": 16, "word8": 16, "record8": 16, "chain5": 4, "note20": 4, "dense": 8}
# Another order of summation may tip an answer.
WRONG_MAX = 1
MIXED, DENSE = 5, 7

# Started by a shell in the background, a program ignores Ctrl-C unless it is told not to.
PYTHON = ("env", "--default-signal=INT", "/usr/bin/python3")


class BenchTasksTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory(prefix="cairn-bench-test-"))
        self.temporary = os.path.join(self.folder, "tmp")
        os.mkdir(self.temporary)
        self.out = os.path.join(self.folder, "out.json")

    def tearDown(self):
        self.assertEqual(self.daemons(), [], "daemons that stayed behind")
        self.assertEqual(os.listdir(self.temporary), [], "files that stayed behind")

    def start(self, *arguments, tasks=(TASKS, "--lengths", "1024")):
        return subprocess.Popen(
            [*PYTHON, PROGRAM, "tasks", "--model", daemons.MODEL, "--tasks", *tasks, "--policy", "full",
             "--build", os.path.dirname(daemons.BIN_DIR), "--json", self.out, *arguments], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, "TMPDIR": self.temporary}, start_new_session=True)

    def run_program(self, *arguments, status=0, **others):
        """-> what it says on stdout and on stderr."""
        process = self.start(*arguments, **others)
        said = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
        self.assertEqual(process.returncode, status, said)
        return said

    def daemons(self):
        """-> {name: process} of the daemons that the program started."""
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/cmdline", encoding="utf-8", errors="replace") as file:
                    words = file.read().split("\0")
            except OSError:
                continue  # ended meanwhile
            if "--config" in words and any(word.startswith(self.temporary) for word in words):
                found[os.path.basename(words[0])] = int(pid)
        return found or []

    def results(self):
        with open(self.out, encoding="utf-8") as file:
            return json.load(file)

    def documents_done(self):
        if not os.path.exists(self.out):
            return []
        return [document["document"] for document in self.results()["runs"][0]["documents"]]

    def test_full_attention_answers_what_the_card_says(self):
        said, _ = self.run_program("--parallel", "4")
        results = self.results()
        right = {name: task["right"] for name, task in results["tasks"].items() if name in RIGHT_1K}
        self.assertGreaterEqual(sum(right.values()), sum(RIGHT_1K.values()) - WRONG_MAX, right)
        asked = {name: task["asked"] for name, task in results["tasks"].items()}
        self.assertEqual(asked, {**RIGHT_1K, "multivalue4": 4})
        self.assertEqual(results["accuracy"], sum(right.values()) / sum(RIGHT_1K.values()))
        self.assertIn(f"{sum(right.values())}/{sum(RIGHT_1K.values())}", said)
        self.assertEqual(len(results["questions"]), sum(asked.values()))
        first = results["questions"][0]
        self.assertEqual((first["document"], first["question"], first["task"], first["token_count"], first["correct"]),
                         (0, 0, "single", 1009, True))
        run, = results["runs"]
        for name in ("document_seconds", "decode_tokens_per_second", "kv_dram_peak_bytes", "document_tokens"):
            self.assertGreater(run[name], 0, name)
        for name in ("commit", "machine", "cpu", "profile", "seeds", "contention", "command_line", "packages"):
            self.assertIn(name, results["manifest"])

    def test_documents_made_with_the_first_seed_are_those_of_the_tests(self):
        made = os.path.join(self.folder, "made.jsonl")
        done = subprocess.run(
            [*PYTHON, PROGRAM, "make-tasks", "--seed", "1", "--lengths", "1024,4096", "--out", made, "--build",
             os.path.dirname(daemons.BIN_DIR)], capture_output=True, text=True, check=False,
            timeout=daemons.RUN_TIMEOUT_S, env={**os.environ, "TMPDIR": self.temporary})
        self.assertEqual(done.returncode, 0, done.stderr)
        with open(made, encoding="utf-8") as ours, open(TASKS, encoding="utf-8") as theirs:
            for number, (line, expected) in enumerate(itertools.zip_longest(ours, theirs)):
                self.assertEqual(json.loads(line), json.loads(expected), number)

    def test_questions_are_asked_behind_text_that_was_decoded_freely(self):
        self.run_program("--documents", "3", "--decode", "500", "--policy", "full,dynakv")
        results = self.results()
        for run in results["runs"]:
            self.assertGreaterEqual(run["right"], run["asked"] - WRONG_MAX - 2, run["policy"])
            for document in run["documents"]:
                self.assertEqual(document["freely_decoded_tokens"], 500)
                self.assertGreater(document["freely_decoded_seconds"], 0)
                self.assertGreater(document["freely_decoded_read_bytes"], 0)
        _, said = self.run_program("--documents", "3", "--policy", "full,dynakv", status=1)
        self.assertIn("decode: 500 there, 0 here", said)
        os.remove(self.out)
        _, said = self.run_program("--decode", "500", "--chat", "llama2", status=2)
        self.assertIn("--decode goes on with a text", said)

    def test_a_stopped_run_goes_on_and_answers_the_same(self):
        process = self.start("--documents", "3")
        wait_until(self.documents_done, "the first document")
        os.killpg(process.pid, signal.SIGINT)  # as the terminal does
        _, said = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
        self.assertEqual(process.returncode, 130, said)
        self.assertIn("interrupted", said)
        self.assertNotIn("Traceback", said)
        there = self.documents_done()
        self.assertLess(len(there), 3)
        _, said = self.run_program("--documents", "3")
        self.assertIn(f"{len(there)} of 3 documents are there", said)
        self.assertEqual(self.documents_done(), [0, MIXED, DENSE])
        resumed = self.results()["questions"]
        self.assertEqual(len(self.results()["earlier_manifests"]), 1)

        # A finished one starts nothing and prints its table.
        said, progress = self.run_program("--documents", "3")
        self.assertIn("full", said)
        self.assertNotIn("[3/3]", progress)

        os.remove(self.out)
        self.run_program("--documents", "3")
        self.assertEqual(self.results()["questions"], resumed)

        with open(self.out, encoding="utf-8") as file:
            before = file.read()
        _, said = self.run_program("--documents", "3", "--kv-format", "q8", status=1)
        self.assertIn("kv_format: 'f16' there, 'q8' here", said)
        with open(self.out, encoding="utf-8") as file:
            self.assertEqual(file.read(), before)

    def test_a_daemon_that_dies_ends_the_run_with_its_name(self):
        for name in ("cairn-compute-node", "cairn-kv-node"):
            process = self.start()
            wait_until(self.documents_done, "the first document")
            os.kill(self.daemons()[name], signal.SIGKILL)
            _, said = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
            self.assertEqual(process.returncode, 1, said)
            self.assertIn(f"{name} was ended by signal 9", said)
            self.assertNotIn("Traceback", said)
            os.remove(self.out)

    def test_a_killed_program_leaves_no_daemon(self):
        process = self.start()
        wait_until(self.documents_done, "the first document")
        process.kill()
        process.communicate(timeout=daemons.RUN_TIMEOUT_S)
        wait_until(lambda: not self.daemons(), "the end of the daemons")
        for name in os.listdir(self.temporary):
            subprocess.run(["rm", "-r", os.path.join(self.temporary, name)], check=True)

    def test_files_of_published_forms_are_asked_and_scored(self):
        prompts = os.path.join(DATA, "tasks-prompts.json")
        # Documents whose question is in the wording that the model knows, and their scores.
        for name, count, known in (("ruler", 7, {0: 1}), ("longbench", 6, {0: 1}), ("needle", 3, {0: 1, 1: 1})):
            tasks = (os.path.join(DATA, f"tasks-{name}.jsonl"), "--prompts", prompts)
            self.run_program(tasks=tasks)
            results = self.results()
            questions = {question["document"]: question for question in results["questions"]}
            self.assertEqual(len(questions), count)
            self.assertEqual({number: questions[number]["score"] for number in known}, known, name)
            self.assertNotIn("correct", questions[0])
            mean = sum(question["score"] for question in questions.values()) / count
            self.assertAlmostEqual(results["accuracy"], mean)
            self.assertEqual({int(number): tokens for number, tokens in results["token_counts"].items()},
                             {number: question["token_count"] for number, question in questions.items()})
            # A finished one needs no daemon, to count tokens neither.
            _, progress = self.run_program(tasks=tasks)
            self.assertNotIn("counting the tokens", progress)
            self.assertEqual("1 of multifieldqa_zh left out: its answers are not scored" in progress,
                             name == "longbench")
            os.remove(self.out)

    def test_tokens_are_counted_as_the_tasks_file_counts_them(self):
        with open(TASKS, encoding="utf-8") as file:
            own = json.loads(file.readline())
        path = os.path.join(self.folder, "one.jsonl")
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"context": own["context"], "question": "What?", "answer": "x"}, file)
        self.run_program(tasks=(path,))
        self.assertEqual(self.results()["token_counts"], {"0": own["token_count"]})

    def test_a_conversation_has_a_form_that_a_model_or_the_user_names(self):
        needle = os.path.join(DATA, "tasks-needle.jsonl")
        _, said = self.run_program("--chat", tasks=(needle,), status=1)
        self.assertIn("the model file has no chat template", said)
        self.run_program("--chat", "llama2", tasks=(needle,))
        answers = self.results()["questions"]
        self.assertEqual(len(answers), 3)
        _, said = self.run_program(tasks=(needle,), status=1)
        self.assertIn("chat: 'llama2' there, None here", said)

    def test_a_setting_that_a_daemon_refuses_is_shown_in_its_words(self):
        _, said = self.run_program("--dram-budget", "1", status=1)
        self.assertIn("dram_budget_bytes is 1: it must be", said)
        self.assertNotIn("Traceback", said)
        _, said = self.run_program("--policy", "guess", status=1)
        self.assertIn("INVALID_ARGUMENT", said)
        self.assertIn("guess", said)
        self.assertIn("dynakv", said)
        _, said = self.run_program("--store-dir", os.path.join(self.folder, "absent"), status=1)
        self.assertIn("absent", said)
        self.assertNotIn("Traceback", said)


if __name__ == "__main__":
    try:
        import grpc  # noqa: F401  pylint: disable=unused-import
    except ImportError:
        sys.exit("python3-grpcio is not installed: deploy/install_packages.sh")
    unittest.main()

"""What cairn-bench makes of tasks, answers and results, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_test.py
"""
import json
import os
import sys
import tempfile
import threading
import types
import unittest
import unittest.mock

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import kv_stats, result_file, results, table, task_file, tasks, tasks_command  # noqa: E402

KEYS = [("full", 1), ("dynakv", 1), ("dynakv", 2)]


def document(number, token_count, kind="single", questions=()):
    return tasks.Document(number, kind, token_count, "text", tuple(questions))


def record(number):
    return {"document": number, "token_count": 1000, "document_seconds": 2.0, "document_read_bytes": 100,
            "answer_tokens": 50, "answer_read_bytes": 1 << 20, "decode_tokens": 40, "decode_seconds": 4.0,
            "kv_dram_peak_bytes": 1000 + number}


def question(number, index, correct, task="single", length=1024):
    return {"document": number, "question": index, "task": task, "token_count": length - 7, "correct": correct,
            "score": int(correct), "said": "", "length": length}


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def path(self, name):
        return os.path.join(self.folder, name)

    def write(self, name, text):
        with open(self.path(name), "w", encoding="utf-8") as file:
            file.write(text)
        return self.path(name)


class AnswerTest(unittest.TestCase):
    def test_an_answer_is_right_when_every_character_is(self):
        asked = tasks.Question("single", "What is it?", " It is 12.")
        self.assertTrue(tasks.is_right(asked, " It is 12."))
        for said in ("It is 12.", " It is 12", " It is 12. ", " It is 13.", ""):
            self.assertFalse(tasks.is_right(asked, said), said)

    def test_a_list_may_come_in_any_order_and_must_be_whole(self):
        asked = tasks.Question("multivalue4", "What did Karl buy?", " Karl bought a cup, a lamp, an axe.")
        self.assertTrue(tasks.is_right(asked, " Karl bought an axe, a cup, a lamp."))
        for said in (" Karl bought a cup, a lamp.", " Karl bought a cup, a lamp, a lamp.",
                     " Nina bought a cup, a lamp, an axe.", " Karl bought a cup, a lamp, an axe, a cup.", ""):
            self.assertFalse(tasks.is_right(asked, said), said)

    def test_the_order_of_anything_else_counts(self):
        asked = tasks.Question("chain5", "Which words hold 1?", " Karl bought a cup, a lamp.")
        self.assertFalse(tasks.is_right(asked, " Karl bought a lamp, a cup."))

    def test_a_right_answer_always_has_room(self):
        asked = tasks.Question("single", "What?", " é" * 9)
        self.assertGreaterEqual(asked.tokens_max(), len((" é" * 9).encode()))
        self.assertEqual(asked.prompt(), "\nQ: What?\nA:")


class TasksFileTest(FolderTest):
    LINE = '{"token_count": 5, "context": "a b", "questions": [{"task": "t", "question": "q", "answer": " a", "x": 1}]}'

    def test_documents_are_numbered_by_line(self):
        some, _ = task_file.load_documents(self.write("t", self.LINE + "\n" + self.LINE + "\n"))
        self.assertEqual([each.number for each in some], [0, 1])
        self.assertEqual(some[1].questions, (tasks.Question("t", "q", " a"),))

    def test_a_line_that_is_no_document_is_named(self):
        for line in ("", "[]", "{}", "nonsense", self.LINE.replace("5", '"5"'), self.LINE.replace("5", "0"),
                     self.LINE.replace('"a b"', '""'), self.LINE.replace('" a"', "4"), "[" * 100_000,
                     self.LINE.replace("5", "true"), self.LINE.replace("5", "9" * 99),
                     self.LINE.replace("a b", "\\ud800"),
                     self.LINE.replace('"answer"', '"reply"')):
            with self.assertRaisesRegex(tasks.TasksError, r"t:2: ", msg=line):
                task_file.load_documents(self.write("t", self.LINE + "\n" + line + "\n"))
        for path in (self.write("t", ""), self.path("absent")):
            with self.assertRaises(tasks.TasksError):
                task_file.load_documents(path)

    def test_documents_are_chosen_by_length_and_in_turn_by_kind(self):
        some = [document(0, 1009), document(1, 1026), document(2, 1017, "mixed"), document(3, 4085),
                document(4, 1008, "dense"), document(5, 700)]

        def numbers(*arguments):
            return {length: [each.number for each in chosen]
                    for length, chosen in tasks.select_documents(some, *arguments).items()}
        self.assertEqual(numbers(), {512: [5], 1024: [0, 1, 2, 4], 4096: [3]})
        self.assertEqual(numbers([4096, 1024]), {4096: [3], 1024: [0, 1, 2, 4]})
        self.assertEqual(numbers([1024], 3), {1024: [0, 2, 4]})
        self.assertEqual(numbers([1024], 9), {1024: [0, 2, 4, 1]})
        with self.assertRaisesRegex(tasks.TasksError, "about 8192 tokens; the file has about 512, 1024, 4096"):
            numbers([1024, 8192])


class ResultsTest(FolderTest):
    CONFIGURATION = {"model": "m", "prefill": 0, "documents": {"1024": [0, 1]}}

    def make(self, **changes):
        """-> a file and the results in it."""
        made = results.TaskResults(KEYS)
        file = result_file.ResultFile(self.path("out"), "tasks", {**self.CONFIGURATION, **changes}, made)
        file.manifest = {"commit": "c"}
        return file, made

    def stored(self):
        with open(self.path("out"), encoding="utf-8") as file:
            return json.load(file)

    def test_a_run_goes_on_after_its_last_document(self):
        file, first = self.make()
        first.add(("full", 1), record(0), [question(0, 0, True)])
        first.add(("dynakv", 2), record(0), [question(0, 0, False)])
        file.write()
        file, second = self.make()
        self.assertEqual(second.done_count(), 2)
        self.assertTrue(second.done(("full", 1), 0))
        self.assertFalse(second.done(("full", 1), 1))
        self.assertFalse(second.done(("dynakv", 1), 0))
        second.add(("full", 1), record(1), [question(1, 0, False)])
        file.write()
        stored = self.stored()
        self.assertEqual(stored["earlier_manifests"], [{"commit": "c"}])
        self.assertEqual(stored["runs"][0]["accuracy"], 0.5)
        self.assertEqual([each["document"] for each in stored["runs"][0]["questions"]], [0, 1])
        self.assertFalse(os.path.exists(self.path("out.tmp")))

    def test_another_configuration_is_refused_and_the_difference_named(self):
        self.make()[0].write()
        with self.assertRaisesRegex(result_file.ResultsError, r"prefill: 0 there, 256 here\nGive another --json"):
            self.make(prefill=256)
        with self.assertRaisesRegex(result_file.ResultsError, r"documents: .* there, .* here"):
            self.make(documents={"1024": [0]})
        self.make()

    def test_a_file_of_anything_else_is_refused_and_kept(self):
        self.make()[0].write()
        stored = self.stored()
        damaged = [{**stored, "configuration": "x"}, {**stored, "runs": "x"}]
        for documents in ("x", ["x"], [{"document": 0}]):
            damaged.append({**stored, "runs": [{**run, "documents": documents} for run in stored["runs"]]})
        for text in ("", "[]", "{}", '{"program": "tasks"}', *map(json.dumps, damaged)):
            self.write("out", text)
            with self.assertRaisesRegex(result_file.ResultsError, "no results that could be gone on with"):
                self.make()
        self.make_other("speed", result_file.FORMAT)
        self.make_other("tasks", result_file.FORMAT - 1)
        self.make_other("tasks", result_file.FORMAT + 1)

    def make_other(self, program, version):
        value = {"program": program, "format": version, "configuration": self.CONFIGURATION, "runs": [],
                 "manifest": {}, "earlier_manifests": []}
        self.write("out", json.dumps(value))
        with self.assertRaisesRegex(result_file.ResultsError, f"`{program}` in format {version}"):
            self.make()
        self.assertEqual(self.stored(), value)

    def test_a_file_that_cannot_be_written_is_an_error(self):
        with self.assertRaisesRegex(result_file.ResultsError, "cannot write the results"):
            result_file.ResultFile(self.path("absent/out"), "tasks", {}, results.TaskResults(KEYS))
        made, _ = self.make()
        made.write()
        with unittest.mock.patch.object(made, "_temporary", return_value=self.path("absent/out")):
            with self.assertRaisesRegex(result_file.ResultsError, "cannot write the results"):
                made.write()

    def test_what_is_there_is_shown_where_nothing_can_be_written(self):
        self.make()[0].write()
        os.mkdir(self.path("out.tmp"))
        self.make()

    def test_a_single_run_is_on_top_as_well(self):
        one = results.TaskResults(KEYS[:1])
        one.add(KEYS[0], record(0), [question(0, 0, True), question(0, 1, False, "multivalue4")])
        value = one.to_json()
        self.assertEqual(value["accuracy"], 1.0)
        self.assertEqual(value["tasks"]["multivalue4"], {"accuracy": 0.0, "right": 0, "asked": 1})
        self.assertEqual(value["questions"], value["runs"][0]["questions"])
        self.assertNotIn("accuracy", self.make()[1].to_json())

    def test_lists_of_four_are_no_part_of_the_accuracy(self):
        run = {"documents": [record(0), record(1)],
               "questions": [question(0, 0, True), question(0, 1, False, "multivalue4"),
                             question(1, 0, False, "dense", 4096)]}
        said = results.summary(run)
        self.assertEqual((said["accuracy"], said["right"], said["asked"]), (0.5, 1, 2))
        self.assertEqual(list(said["lengths"]), ["1024", "4096"])
        self.assertEqual(said["lengths"]["1024"]["accuracy"], 1.0)
        self.assertEqual(said["lengths"]["1024"]["tasks"]["multivalue4"]["asked"], 1)
        self.assertEqual(said["decode_tokens_per_second"], 10)
        self.assertEqual(said["read_bytes_per_token"], (2 << 20) / 100)
        self.assertEqual(said["kv_dram_peak_bytes"], 1001)
        self.assertIsNone(results.summary({"documents": [], "questions": []})["accuracy"])


class TableTest(unittest.TestCase):
    def test_seeds_are_pooled_and_net_is_of_the_same_questions(self):
        runs = [{"policy": "full", "seed": 1, "documents": [record(0)],
                 "questions": [question(0, 0, True), question(0, 1, False), question(0, 2, True, "single", 16384)]},
                {"policy": "dynakv", "seed": 1, "documents": [record(0)],
                 "questions": [question(0, 0, True), question(0, 1, True)]},
                {"policy": "dynakv", "seed": 2, "documents": [record(0)],
                 "questions": [question(0, 0, False), question(0, 1, True)]}]
        lines = [line.split() for line in table.task_tables(runs).splitlines()]
        self.assertIn(["full", "1/2", "1/1", "2/3"], lines)
        # Right 3 of 4 where full has 2 of 4.
        self.assertIn(["dynakv", "3/4", "+25.0", "-", "3/4", "+25.0"], lines)
        self.assertIn(["policy", "1024", "16384", "all"], lines)
        self.assertIn(["full", "500.0", "10.0", "0.02", "MiB", "0.00", "MiB"], lines)

    def test_without_full_there_is_no_net(self):
        runs = [{"policy": "dynakv", "seed": 1, "documents": [], "questions": [question(0, 0, True)]}]
        said = table.task_tables(runs)
        self.assertNotIn("net", said)
        self.assertIn("1/1", said)

    def test_a_run_without_results_has_a_table(self):
        self.assertIn("full", table.task_tables([{"policy": "full", "seed": 1, "documents": [], "questions": []}]))


class FakeClient:
    """Answers like a model that knows every answer but one."""

    def __init__(self, wrong):
        self.wrong, self.lock, self.forking = wrong, threading.Lock(), threading.Lock()
        self.conversations, self.next, self.stored, self.closed = set(), 0, [], False
        self.answered, self.written, self.room, self.full = 0, [], 1000, False

    def _new(self):
        with self.lock:
            self.next += 1
            self.conversations.add(self.next)
            return self.next

    def store(self, retrieval, prefill_tokens_max, text):
        self.stored.append((text, retrieval, prefill_tokens_max))
        return self._new(), self._finished(0)

    def write(self, conversation, count, seed):
        assert conversation == 1 and not self.answered
        self.written.append((count, seed))
        return self._finished(min(count, self.room))

    def token_count(self, text):
        return len(text)

    def is_full(self, _finished):
        return self.full

    def fork(self, conversation):
        assert conversation == 1
        assert self.forking.acquire(blocking=False), "a fork of a conversation that is being forked"
        new = self._new()
        self.forking.release()
        return new

    def answer(self, conversation, tokens_max, stop, text):
        assert conversation != 1 and tokens_max > 0 and stop == "\n"
        if text == self.wrong:
            raise RuntimeError(text)
        with self.lock:
            self.answered += 1
        return f" answer of{text}", self._finished(4)

    def counters(self):
        """The KV node's, which reads ten bytes for each question, five for a document and seven for going on."""
        with self.lock:
            read = 5 * len(self.stored) + 7 * len(self.written) + 10 * self.answered
            return {**dict.fromkeys(kv_stats.READ_COUNTERS, 0), "read_fetch_bytes": read}

    def delete(self, conversation):
        self.conversations.remove(conversation)

    def close(self):
        self.closed = True

    @staticmethod
    def _finished(tokens):
        duration = types.SimpleNamespace(seconds=1, nanos=500_000_000)
        return types.SimpleNamespace(prefill_time=duration, decode_time=duration, generated_token_count=tokens,
                                     kv_dram_peak_bytes=20, kv_flash_bytes=30, io_engine="memory")


class DocumentTest(unittest.TestCase):
    def setUp(self):
        asked = [tasks.Question("t", str(number), f" answer of\nQ: {number}\nA:") for number in range(6)]
        asked[2] = tasks.Question("t", "2", " another")
        self.document = document(7, 1000, questions=asked)
        self.retrieval = {"policy": "full", "seed": 1}

    def ask(self, client, parallel, decode=0):
        chosen = types.SimpleNamespace(prefill=256, decode=decode, parallel=parallel, chat=None)
        return tasks_command.ask_document(client, client, self.document, self.retrieval, chosen, 1600)

    def test_questions_stay_in_order_and_no_conversation_is_left(self):
        for parallel in (1, 4):
            client = FakeClient(wrong=None)
            said, questions = self.ask(client, parallel)
            self.assertEqual([each["question"] for each in questions], list(range(6)))
            self.assertEqual([each["question"] for each in questions if not each["correct"]], [2])
            self.assertEqual(client.stored, [("text", self.retrieval, 256)])
            self.assertEqual(client.conversations, set())
            self.assertEqual((said["answer_tokens"], said["decode_tokens"], said["decode_seconds"]), (24, 18, 9.0))
            self.assertEqual((said["document_read_bytes"], said["answer_read_bytes"]), (5, 60))

    def test_what_is_decoded_freely_comes_behind_the_document(self):
        client = FakeClient(wrong=None)
        said, _ = self.ask(client, 1, decode=500)
        self.assertEqual(client.written, [(500, 1)])
        self.assertEqual((said["freely_decoded_tokens"], said["freely_decoded_seconds"]), (500, 1.5))
        self.assertEqual((said["document_read_bytes"], said["freely_decoded_read_bytes"]), (5, 7))
        self.assertEqual(said["answer_read_bytes"], 60)

    def test_text_that_ends_with_the_context_ends_the_run(self):
        client = FakeClient(wrong=None)
        client.room = 400
        with self.assertRaisesRegex(tasks_command.CommandError, "behind 400 of 500 tokens"):
            self.ask(client, 1, decode=500)

    def test_what_has_no_room_for_an_answer_ends_the_run(self):
        client = FakeClient(wrong=None)
        with self.assertRaisesRegex(tasks_command.CommandError, "a question with its answer, up to 42, are more than"):
            self.ask(client, 1, decode=559)
        self.assertEqual(client.stored, [])
        client.full = True
        with self.assertRaisesRegex(tasks_command.CommandError, "before the answer ended"):
            self.ask(client, 1)

    def test_a_failed_question_ends_the_others(self):
        client = FakeClient(wrong="\nQ: 3\nA:")
        with self.assertRaises(RuntimeError):
            self.ask(client, 2)
        self.assertTrue(client.closed)


if __name__ == "__main__":
    unittest.main()

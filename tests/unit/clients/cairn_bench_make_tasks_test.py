"""What documents `cairn-bench make-tasks` writes, without a daemon: a word counts as a token here.

tests/integration/bench_tasks_test.py checks that the model's own count gives tests/data/tasks-dev-4k.jsonl.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_make_tasks_test.py
"""
import contextlib
import io
import os
import random
import re
import sys
import unittest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import main, task_writer, tasks  # noqa: E402  pylint: disable=wrong-import-position

# How a code is stated.
CODE = re.compile(r"The code of the (.*?) is (\d{4})\.")
TASKS = {"multikey8": 8, "word8": 8, "record8": 8, "multivalue4": 2, "chain5": 2, "note20": 2}


def count(text):
    return len(text.split())


def documents(seed=1, lengths=(1024, 2048), counts=(5, 2, 1), questions_max=8):
    return list(task_writer.write_documents(seed, lengths, counts, count, count, questions_max))


class WriterTest(unittest.TestCase):
    def test_equal_seeds_give_equal_documents_and_others_others(self):
        self.assertEqual(documents(), documents())
        contexts = {document["context"] for seed in range(1, 4) for document in documents(seed)}
        self.assertEqual(len(contexts), 3 * 16)

    def test_a_length_has_the_same_documents_whatever_stands_beside_it(self):
        self.assertEqual(documents()[8:], documents(lengths=(2048,)))
        self.assertEqual(documents()[:3], documents(counts=(3, 0, 0))[:3])

    def test_documents_have_their_length_and_their_kinds_in_order(self):
        for document, length in zip(documents(), [1024] * 8 + [2048] * 8):
            self.assertTrue(length - 40 < document["token_count"] <= length, document["token_count"])
        self.assertEqual([document["kind"] for document in documents()[:8]],
                         ["single"] * 5 + ["mixed"] * 2 + ["dense"])

    def test_what_tasks_reads_is_what_was_written(self):
        for number, document in enumerate(documents()):
            read = tasks.read_document(number, document)
            self.assertEqual((read.kind, read.context), (document["kind"], document["context"]))
            self.assertEqual(len(read.questions), len(document["questions"]))

    def test_each_answer_stands_once_in_the_text(self):
        for document in documents():
            for question in document["questions"]:
                if question["task"] not in ("multivalue4", "chain5"):
                    self.assertEqual(document["context"].count(question["answer"].strip()), 1, question)

    def test_needles_lie_from_the_first_sentence_to_the_last(self):
        places = []
        for document in documents(lengths=(2048,), counts=(5, 0, 0)):
            question, = document["questions"]
            self.assertEqual(question["task"], "single")
            places.append(document["context"].index(question["answer"].strip()) / len(document["context"]))
        for place, depth in zip(places, task_writer.DEPTHS):
            self.assertAlmostEqual(place, depth, delta=.1)

    def test_mixed_documents_have_facts_of_each_form(self):
        for document in documents(counts=(0, 3, 0)):
            asked = [question["task"] for question in document["questions"]]
            self.assertEqual({task: asked.count(task) for task in TASKS}, TASKS)

    def test_lists_and_chains_are_told_statement_by_statement(self):
        for document in documents(counts=(0, 3, 0)):
            for question in document["questions"]:
                if question["task"] == "multivalue4":
                    who, _, items = question["answer"].strip(" .").partition(" bought ")
                    for item in items.split(", "):
                        self.assertIn(f" {who} bought {item}.", " " + document["context"])
                if question["task"] == "chain5":
                    number, words = re.match(r" The words that hold (\d+) are (.*)\.$", question["answer"]).groups()
                    for source, target in zip([number, *words.split(", ")], words.split(", ")):
                        self.assertIn(f"Copy {source} to {target}.", document["context"])

    def test_dense_documents_are_facts_of_which_some_are_asked(self):
        document, = documents(lengths=(1024,), counts=(0, 0, 1), questions_max=5)
        stated = dict(CODE.findall(document["context"]))
        self.assertGreater(len(stated), 1024 // task_writer.FACT_TOKENS - 5)
        self.assertEqual(len(document["questions"]), 5)
        for question in document["questions"]:
            (name, value), = CODE.findall(question["answer"])
            self.assertEqual(stated[name], value)

    def test_a_fact_without_an_unused_name_is_left_out(self):
        writer = task_writer.Writer(1)
        found = [writer.record() for _ in range(200)]
        self.assertIn(None, found)
        questions = [fact.question for fact in found if fact]
        self.assertEqual(len(questions), len(set(questions)))
        _, questions = task_writer.write_document("dense", 200000, lambda text: 20, random.Random(1), None)
        self.assertLess(len(questions), 200000 // task_writer.FACT_TOKENS)
        self.assertEqual(len(questions), len({question["question"] for question in questions}))


class CommandTest(unittest.TestCase):
    def said(self, status, *arguments):
        with contextlib.redirect_stderr(io.StringIO()) as said, contextlib.redirect_stdout(said):
            try:
                self.assertEqual(main.main(["make-tasks", "--out", "/absent/out.jsonl", *arguments]), status)
            except SystemExit as end:
                self.assertEqual(end.code, status)
        return said.getvalue()

    def test_what_makes_no_document_is_refused(self):
        for counts in ("5,2", "0,0,0", "1,1,1,1"):
            self.assertIn("give one for each of single, mixed, dense", self.said(2, "--documents", counts))
        self.assertIn("'0' is no number of 256", self.said(2, "--lengths", "0"))

    def test_programs_that_are_missing_are_named(self):
        self.assertIn("no program /absent/bin/cairn: build it", self.said(1, "--build", "/absent"))


if __name__ == "__main__":
    unittest.main()

"""What cairn-bench makes of files of RULER and LongBench and of needles, and how their answers are scored.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_forms_test.py
"""
import argparse
import contextlib
import io
import json
import os
import sys
import tempfile
import types
import unittest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
DATA = os.path.join(REPOSITORY, "tests", "data")
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import (kv_stats, results, scores, table, task_file, task_forms, tasks,  # noqa: E402
                         tasks_command)
from cairn_bench.options import CHAT_OF_FILE, CommandError  # noqa: E402

PROMPTS = os.path.join(DATA, "tasks-prompts.json")


def load(name, prompts=None):
    """-> the documents of a file of tests/data by line, and what is left out."""
    documents, left_out = task_file.load_documents(os.path.join(DATA, name), prompts)
    return {document.number: document for document in documents}, left_out


def score(document, said):
    question, = document.questions
    return question.judge(said)["score"]


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, name, *values):
        path = os.path.join(self.folder, name)
        with open(path, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(value) + "\n" for value in values)
        return path


class RulerTest(unittest.TestCase):
    def setUp(self):
        self.documents, _ = load("tasks-ruler.jsonl")

    def test_the_question_is_cut_off_where_its_words_begin_last(self):
        expected = {
            1: ("niah", 128, "The sun is yellow.", "\nWhat is the special magic number for tall-lamp"),
            2: ("niah", 128, "for red-sea is: 22.", "\nWhat are all the special magic numbers for red-sea"),
            3: ("vt", 30, "VAR XCD = VAR XAB", "\nQuestion: Find all variables that are assigned the value 77777"),
            4: ("cwe", 120, "3. door 4. hat", "\nQuestion: What are the 10 most common words"),
            5: ("fwe", 50, "abcd ijkl abcd efgh", "\nQuestion: Do not provide any explanation."),
            6: ("qa", 32, "The sea is cold.", "\n\nAnswer the question based on the given documents."),
        }
        for number, (task, tokens_max, end, start) in expected.items():
            document = self.documents[number]
            question, = document.questions
            self.assertEqual((document.kind, question.task, question.tokens_max()), (task, task, tokens_max))
            self.assertTrue(document.context.endswith(end), document.context)
            self.assertTrue(question.prompt().startswith(start), question.prompt())
            self.assertTrue(document.chat)
            self.assertEqual(question.stop, "")

    def test_context_question_and_answer_prefix_are_the_whole_prompt(self):
        with open(os.path.join(DATA, "tasks-ruler.jsonl"), encoding="utf-8") as file:
            for number, line in enumerate(file):
                value = json.loads(line)
                document = self.documents[number]
                self.assertEqual(document.context + document.questions[0].prompt(),
                                 value["input"] + value.get("answer_prefix", ""))

    def test_without_known_words_the_question_is_the_end(self):
        document = self.documents[0]
        question, = document.questions
        self.assertEqual((question.task, question.tokens_max()), ("ruler", 128))
        self.assertTrue(question.prompt().endswith("\nQ: What is the code of the red door?\nA:"))
        self.assertGreaterEqual(len(document.context), len(question.text))
        # Words stay whole, and of a long text the end is 512 characters at most.
        long = {"input": "word " * 1000, "outputs": ["x"]}
        document = task_forms.read_ruler(0, long, {})
        self.assertEqual(document.context[-5:], " word")
        self.assertLessEqual(len(document.questions[0].prompt()), 512)
        self.assertGreater(len(document.questions[0].prompt()), 500)
        # Words of a task that nothing stands in front of are no question behind a context.
        document = task_forms.read_ruler(0, {"input": "What is the special magic number?", "outputs": ["x"]}, {})
        self.assertEqual(document.kind, "ruler")

    def test_a_score_is_the_share_of_outputs_and_of_documents_any(self):
        self.assertEqual(score(self.documents[2], " 11 and 22"), 1)
        self.assertEqual(score(self.documents[2], " 22."), 0.5)
        self.assertEqual(score(self.documents[2], " 33"), 0)
        self.assertEqual(score(self.documents[3], " xab, XCD"), 1)
        self.assertEqual(score(self.documents[6], " In LISBON."), 1)
        self.assertEqual(score(self.documents[6], " In Porto."), 0)


class LongBenchTest(unittest.TestCase):
    def setUp(self):
        self.documents, self.left_out = load("tasks-longbench.jsonl")

    def test_every_line_is_a_document_but_those_that_cannot_be_scored(self):
        self.assertEqual([document.kind for document in self.documents.values()],
                         ["trec", "hotpotqa", "passage_count", "passage_retrieval_en", "samsum", "repobench-p"])
        self.assertNotIn(2, self.documents)
        self.assertEqual(self.left_out, {"multifieldqa_zh": 1})

    def test_scores_are_those_of_the_dataset(self):
        trec, hotpotqa, count, retrieval, samsum, code = self.documents.values()
        # Examples go on: the first line counts.
        self.assertEqual(score(trec, "\n velvet\ncopper"), 1)
        self.assertEqual(score(trec, " velvet or copper"), 0.5)
        self.assertEqual(score(hotpotqa, "In a cellar."), 2 / 3)
        self.assertEqual(score(count, "2 or 3"), 0.5)
        self.assertEqual(score(retrieval, "Paragraph 2"), 1)
        self.assertEqual(score(samsum, " Ida and Uma have lunch.\nDialogue: more words"), 1)
        self.assertEqual(score(code, "\n# a comment\n side;\nmore"), 1)
        self.assertEqual([each.questions[0].tokens_max() for each in self.documents.values()],
                         [64, 32, 32, 32, 128, 64])

    def test_examples_and_code_are_no_conversation(self):
        self.assertEqual([document.kind for document in self.documents.values() if not document.chat],
                         ["trec", "samsum", "repobench-p"])

    def test_a_prompt_is_the_given_one_where_there_is_one(self):
        self.assertTrue(self.documents[1].questions[0].prompt().endswith(
            "Question: Where does Mira keep the lantern?\nAnswer:"))
        given, _ = load("tasks-longbench.jsonl", PROMPTS)
        self.assertEqual(given[1].questions[0].prompt(), "\nQ: Where does Mira keep the lantern?\nA:")
        self.assertEqual(given[3].questions[0].prompt(), self.documents[3].questions[0].prompt())
        framed = task_forms.read_long_bench(0, {"context": "{input}", "input": "{context}", "answers": ["x"],
                                                "dataset": "lcc"}, {"lcc": "Go on: {context}{input} now"})
        self.assertEqual((framed.context, framed.questions[0].prompt()), ("Go on: {input}", "{context} now"))

    def test_every_prompt_of_ours_has_context_and_question(self):
        task_forms.check_prompts("ours", {name: dataset.prompt for name, dataset in task_forms.DATASETS.items()})
        task_forms.check_prompts("ours", {"needle": task_forms.NEEDLE_PROMPT})
        self.assertEqual(len(task_forms.DATASETS) + len(task_forms.UNSCORED_DATASETS), 21)


class NeedleTest(unittest.TestCase):
    def test_an_answer_must_be_named_and_a_needle_is_a_share_of_words(self):
        documents, _ = load("tasks-needle.jsonl", PROMPTS)
        self.assertEqual(documents[0].questions[0].prompt(), "\nQ: What is the code of the red door?\nA:")
        self.assertEqual((score(documents[0], "It is 4821."), score(documents[0], "It is 4812.")), (1, 0))
        # What the question says already tells nothing: "keeps", "in" and "cellar" are left.
        self.assertEqual(score(documents[1], "Mira keeps the lantern in the Cellar!"), 1)
        self.assertEqual(score(documents[1], "Mira has the lantern in a tower."), 1 / 3)
        # "secret", "word", "velvet", "code", "4821".
        self.assertEqual(score(documents[2], "the secret word velvet"), 3 / 5)

    def test_a_needle_that_the_question_has_is_refused(self):
        value = {"context": "x", "question": "Is the door red?", "needle": "The door is red."}
        with self.assertRaisesRegex(ValueError, "no word that the question does not have"):
            task_forms.read_needle(0, value, {})


class FileTest(FolderTest):
    OWN = {"token_count": 5, "context": "a b", "questions": [{"task": "t", "question": "q", "answer": " a"}]}

    def test_forms_are_known_by_their_fields_line_by_line(self):
        path = self.write("t", self.OWN, {"input": "a b c d", "outputs": ["x"]},
                          {"context": "a", "question": "b?", "answer": "c"})
        documents, _ = task_file.load_documents(path)
        self.assertEqual([(document.number, document.token_count, document.chat) for document in documents],
                         [(0, 5, False), (1, 0, True), (2, 0, True)])

    def test_a_line_that_is_none_is_named_with_what_is_wrong(self):
        question = {"context": "a", "input": "b", "answers": ["c"], "dataset": "qasper"}
        for value, said in (
                ({"context": "a", "question": "b"}, "the fields of no form"), ([], "the fields of no form"),
                ("input outputs", "the fields of no form"), (5, "TypeError"),
                ({"input": "a", "outputs": []}, "no list of texts"), ({"input": "a", "outputs": [3]}, "3 is no text"),
                ({"input": 3, "outputs": ["a"]}, "3 is no text"),
                ({"input": "a", "outputs": [""]}, "no list of texts"),
                ({**question, "dataset": "odd"}, "no dataset 'odd'"), ({**question, "context": ""}, "context is empty"),
                ({**question, "answers": "c"}, "no list of texts"),
                ({**question, "dataset": "trec"}, "all_classes"),
                ({"context": "a", "question": "b", "needle": 5}, "no list of texts")):
            with self.assertRaisesRegex(tasks.TasksError, f"t:2: .*{said}", msg=value):
                task_file.load_documents(self.write("t", self.OWN, value))

    def test_a_file_without_anything_that_is_scored_says_so(self):
        with self.assertRaisesRegex(tasks.TasksError, "nothing but vcsum: these answers cannot be scored"):
            task_file.load_documents(self.write("t", {"context": "a", "input": "", "answers": ["c"],
                                                      "dataset": "vcsum"}))

    def test_prompts_that_cannot_be_shared_are_refused(self):
        for prompts, said in (({"lcc": "{input}{context}\n"}, "lcc must have"), ({"lcc": "{context}"}, "lcc must"),
                              ({"lcc": "{input}"}, "lcc must"), ({"lcc": 3}, "lcc must"), ([], "no JSON object")):
            with self.assertRaisesRegex(tasks.TasksError, said):
                task_file.load_documents(os.path.join(DATA, "tasks-needle.jsonl"), self.write("p", prompts))
        with self.assertRaisesRegex(tasks.TasksError, "cannot read"):
            task_file.load_documents(os.path.join(DATA, "tasks-needle.jsonl"), os.path.join(self.folder, "absent"))


class ScoresTest(unittest.TestCase):
    def test_words_have_no_case_articles_or_punctuation_and_count_as_often_as_in_both(self):
        self.assertEqual(scores.word_f1("The cat, a CAT.", "an cat"), 2 / 3)
        self.assertEqual(scores.word_f1("", "cat"), 0)
        self.assertEqual(scores.best(scores.word_f1, "red cat", ["dog", "cat", "red cat"]), 1)

    def test_rouge_is_of_sentences_with_different_words(self):
        self.assertEqual(scores.rouge_l("a b c d", "a b c d"), 1)
        # "a c" in order: 2 of 3 words and 2 of 4.
        self.assertAlmostEqual(scores.rouge_l("c a c", "a b c d"), 2 * 1 * 0.5 / 1.5)
        # Of each sentence in any other: "a b" and "c d" of four words each.
        self.assertEqual(scores.rouge_l("c d. a b", "a b. c d"), 1)
        self.assertAlmostEqual(scores.rouge_l("b a", "a b"), 0.5)
        for said in ("", ".", "..."):
            self.assertEqual(scores.rouge_l(said, "a b"), 0)

    def test_a_class_must_be_named_and_alone(self):
        classes = ["Loc", "Location", "Human", "Number"]
        self.assertEqual(scores.class_named("Location", "Location", classes), 1)
        self.assertEqual(scores.class_named("Location or Human", "Location", classes), 0.5)
        self.assertEqual(scores.class_named("Location", "Loc", classes), 0.5)
        self.assertEqual(scores.class_named("Human", "Location", classes), 0)

    def test_numbers_are_whole(self):
        self.assertEqual(scores.number_named("Paragraph 12", "Paragraph 1"), 0)
        self.assertEqual(scores.number_named("1, 2, 1", "段落1"), 2 / 3)
        self.assertEqual(scores.number_named("none", "1"), 0)

    def test_code_is_like_the_first_line_that_is_no_comment(self):
        self.assertEqual(scores.code_similarity("\n```c\n// x\nreturn 1;\nreturn 2;", "return 1;"), 1)
        self.assertEqual(scores.code_similarity("return 2;", "return 1;"), 0.89)
        self.assertEqual(scores.code_similarity("# x", "return 1;"), 0)


class FakeBench:
    """Counts words; a question is answered by how many there are."""

    def __init__(self, options, context_tokens=1000):
        self.options, self.starts, self.client = options, 0, self
        self.model = types.SimpleNamespace(context_tokens=context_tokens)

    def configuration(self, *_):
        return {"model (SHA-256)": "m", "tasks (SHA-256)": "t"}

    @contextlib.contextmanager
    def running(self, *_):
        self.starts += 1
        yield self

    @staticmethod
    def token_count(text):
        return len(text.split())


class UnitsTest(FolderTest):
    def options(self, *arguments):
        parser = argparse.ArgumentParser()
        tasks_command.add_parser(parser.add_subparsers())
        path = self.write("t", {"context": "word " * 100, "question": "b?", "answer": "c"},
                          {"context": "word " * 500, "question": "b?", "answer": "c"})
        return parser.parse_args(["tasks", "--model", "m", "--tasks", path, "--policy", "full", *arguments])

    @staticmethod
    def units(bench):
        with contextlib.redirect_stderr(io.StringIO()):
            return tasks_command.task_units(bench)

    def test_lengths_are_what_the_model_counts(self):
        bench = FakeBench(self.options("--decode", "30"))
        units, counts = self.units(bench)
        self.assertEqual([(unit.length, unit.token_count(bench.options)) for unit in units], [(128, 130), (512, 530)])
        self.assertEqual(counts, {0: 100, 1: 500})

    def test_counts_of_an_earlier_start_are_used_if_they_are_of_the_same_files(self):
        stored = {"program": "tasks", "configuration": FakeBench(None).configuration(),
                  "token_counts": {"0": 110, "1": 510}}
        for changed, starts in (({}, 0), ({"token_counts": {"0": 110}}, 1), ({"configuration": {}}, 1),
                                ({"program": "compare", "tasks": {"token_counts": {"0": 110, "1": 510}}}, 0),
                                ({"token_counts": None}, 1)):
            bench = FakeBench(self.options("--json", self.write("out", {**stored, **changed})))
            _, counts = self.units(bench)
            self.assertEqual(bench.starts, starts, changed)
            self.assertEqual(counts[0] == 110, "configuration" not in changed and
                             changed.get("token_counts", 1) is not None, changed)

    def test_a_document_that_the_model_has_no_room_for_is_named_before_anything_runs(self):
        with self.assertRaisesRegex(tasks.TasksError, r"t:2: a context of 500 tokens and an answer of up to 128 are "
                                    "more than the model's 600"):
            self.units(FakeBench(self.options(), 600))
        units, _ = self.units(FakeBench(self.options("--lengths", "100"), 600))
        self.assertEqual(len(units), 1)
        with self.assertRaisesRegex(tasks.TasksError, "500 tokens, 400 of the model's own and an answer"):
            self.units(FakeBench(self.options("--decode", "400")))
        task_file.check_context("t", [tasks.Document(0, "t", 5, "text", ())], 6, 1)  # without questions

    def test_what_is_decoded_freely_is_drawn_for_each_seed(self):
        arguments = ("--policy", "full,dynakv", "--seed", "1,2")
        self.assertEqual(tasks_command.task_keys(self.options(*arguments)), [("full", 1), ("dynakv", 1), ("dynakv", 2)])
        self.assertEqual(len(tasks_command.task_keys(self.options(*arguments, "--decode", "9"))), 4)

    def test_a_conversation_is_for_forms_that_have_scores(self):
        self.assertEqual(self.options("--chat").chat, CHAT_OF_FILE)
        self.assertEqual(self.options("--chat", "chatml").chat, "chatml")
        self.assertIsNone(self.options().chat)
        options = self.options("--chat")
        options.tasks = self.write("t", FileTest.OWN)
        with self.assertRaisesRegex(CommandError, "t:1: --chat is for"):
            self.units(FakeBench(options))


class ChatTest(unittest.TestCase):
    def ask(self, document, chat):
        """-> the prompts: of the document, of the question."""
        finished = types.SimpleNamespace(
            prefill_time=types.SimpleNamespace(seconds=0, nanos=0), kv_flash_bytes=0, kv_dram_peak_bytes=0,
            decode_time=types.SimpleNamespace(seconds=0, nanos=0), generated_token_count=1, io_engine="memory")
        prompts = []

        def store(_retrieval, _prefill, **prompt):
            prompts.append(prompt)
            return 1, finished

        def answer(_conversation, _tokens_max, _stop, **prompt):
            prompts.append(prompt)
            return " 4821", finished
        client = types.SimpleNamespace(store=store, answer=answer, fork=lambda _: 2, delete=lambda _: None,
                                       close=lambda: None, is_full=lambda _: False)
        kv = types.SimpleNamespace(counters=lambda: dict.fromkeys(
            kv_stats.READ_COUNTERS, 0))
        _, questions = tasks_command.ask_document(client, kv, document, None,
                                                  types.SimpleNamespace(prefill=0, decode=0, parallel=1, chat=chat),
                                                  1000)
        self.assertEqual((questions[0]["score"], questions[0]["said"], "correct" in questions[0]), (1, " 4821", False))
        return prompts

    def test_context_and_question_are_messages_of_the_user(self):
        document = tasks.Document(0, "t", 5, "text", (
            task_forms.ScoredQuestion("t", "\nWhat?", " It is", 9, lambda said: scores.share_named(said, ["4821"])),),
            chat=True)
        self.assertEqual(self.ask(document, None), [{"text": "text"}, {"text": "\nWhat? It is"}])
        stored, asked = [prompt["messages"]["messages"] for prompt in self.ask(document, "chatml")]
        self.assertEqual(stored, [{"role": "user", "content": "text"}])
        self.assertEqual(asked, [{"role": "user", "content": "What? It is"}])
        plain = tasks.Document(0, "t", 5, "text", document.questions)
        self.assertEqual(self.ask(plain, "chatml"), [{"text": "text"}, {"text": "\nWhat? It is"}])


class ResultsTest(unittest.TestCase):
    @staticmethod
    def question(number, value):
        return {"document": number, "question": 0, "task": "qasper", "token_count": 1000, "length": 1024,
                "score": value, "said": ""}

    def test_accuracy_is_the_mean_score_and_tables_have_the_sum(self):
        made = results.TaskResults([("full", 1), ("dynakv", 1)], {0: 1000, 1: 1001})
        for policy, values in (("full", (1.0, 0.25)), ("dynakv", (0.5, 0.25))):
            made.runs[policy, 1]["questions"].extend(self.question(*each) for each in enumerate(values))
        value = made.to_json()
        self.assertEqual([run["accuracy"] for run in value["runs"]], [0.625, 0.375])
        self.assertEqual(value["token_counts"], {0: 1000, 1: 1001})
        said = table.task_tables(made.runs.values())
        self.assertIn(["dynakv", "0.8/2", "-25.0", "0.8/2", "-25.0"], [line.split() for line in said.splitlines()])
        self.assertIn("sum of scores/asked, net", said)
        self.assertNotIn("multivalue4", said)

    def test_right_and_wrong_are_one_and_nothing(self):
        self.assertEqual(tasks.Question("t", "q", " a").judge(" a"), {"correct": True, "score": 1})
        self.assertEqual(tasks.Question("t", "q", " a").judge(" b"), {"correct": False, "score": 0})
        made = results.TaskResults([("full", 1)])
        made.load({"runs": [{"policy": "full", "seed": 1, "documents": [], "questions": [
            {"task": "t", "length": 1, "correct": True}, {"task": "t", "length": 1, "correct": False}]}]})
        self.assertEqual(made.to_json()["runs"][0]["right"], 1)
        self.assertNotIn("token_counts", made.to_json())


if __name__ == "__main__":
    unittest.main()

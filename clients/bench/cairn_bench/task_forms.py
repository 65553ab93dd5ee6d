"""Questions in forms that others have published: RULER, LongBench, needles in haystacks.

A line is a document with one question, whose answer gets a score. What stands in front of the question is the context,
computed once and stored; the rest, the question, goes on from there.
"""
import dataclasses
import functools
import re
import typing

from . import scores
from .tasks import Document, TasksError, text_of

# RULER's questions begin with these words; the task, how much is generated, and what the score is.
RULER_TASKS = (
    ("niah", re.compile(r"What (?:are all|is) the special magic "), 128, scores.share_named),
    ("vt", re.compile(r"Question: Find all variables "), 30, scores.share_named),
    ("cwe", re.compile(r"Question: What are the \d+ most common words"), 120, scores.share_named),
    ("fwe", re.compile(r"Question: Do not provide any explanation\."), 50, scores.share_named),
    ("qa", re.compile(r"Answer the question based on the given documents\."), 32, scores.any_named),
)
# Where none of them stands, the question is the end of the input: so much, half of it at most.
RULER_OTHER, RULER_OTHER_CHARACTERS, RULER_OTHER_TOKENS = "ruler", 512, 128
NEEDLE, NEEDLE_TOKENS = "needle", 128
# Chinese words are not separated by spaces: these scores need a package that separates them.
UNSCORED_DATASETS = frozenset(["multifieldqa_zh", "dureader", "vcsum"])
# Examples come first, and a model goes on with more of them: only the first line of an answer counts.
FIRST_LINE_DATASETS = frozenset(["trec", "triviaqa", "samsum", "lsht"])
# Those and code are gone on with as text; a model of conversations is not asked in one.
PLAIN_DATASETS = FIRST_LINE_DATASETS | {"lcc", "repobench-p"}

PASSAGES = "{context}\n\nAnswer from the text above, in as few words as possible.\nQuestion: {input}\nAnswer:"
SUMMARY = "{context}\n\nSum up the text above on one page.\nSummary:"
EXAMPLES = "{context}\n{input}"
CODE = "{context}{input}\nThe next line of this code is:\n"


class Dataset(typing.NamedTuple):
    """Of LongBench: how much is generated, the measure, the prompt where the user gives none."""
    tokens_max: int
    measure: typing.Callable
    prompt: str


DATASETS = {
    "narrativeqa": Dataset(128, scores.word_f1, PASSAGES),
    "qasper": Dataset(128, scores.word_f1, "{context}\n\nAnswer from the article above, in as few words as possible: "
                      "yes or no where that is asked, unanswerable if it does not say.\nQuestion: {input}\nAnswer:"),
    "multifieldqa_en": Dataset(64, scores.word_f1, PASSAGES),
    "hotpotqa": Dataset(32, scores.word_f1, PASSAGES),
    "2wikimqa": Dataset(32, scores.word_f1, PASSAGES),
    "musique": Dataset(32, scores.word_f1, PASSAGES),
    "gov_report": Dataset(512, scores.rouge_l, SUMMARY),
    "qmsum": Dataset(512, scores.rouge_l, "{context}\n\nAnswer from the meeting above, in a few sentences.\n"
                     "Question: {input}\nAnswer:"),
    "multi_news": Dataset(512, scores.rouge_l, SUMMARY),
    "trec": Dataset(64, scores.class_named, EXAMPLES),
    "triviaqa": Dataset(32, scores.word_f1, EXAMPLES),
    "samsum": Dataset(128, scores.rouge_l, EXAMPLES),
    "lsht": Dataset(64, scores.class_named, EXAMPLES),
    "passage_count": Dataset(32, scores.number_named, "{context}\n\nHow many different paragraphs are there above, if "
                             "repeated ones count once? Say the number alone.\nAnswer: "),
    "passage_retrieval_en": Dataset(32, scores.number_named, "{context}\n\nWhich of the paragraphs above does this "
                                    "sum up?\n\n{input}\n\nSay its number alone, as in \"Paragraph 1\".\nAnswer: "),
    "passage_retrieval_zh": Dataset(32, scores.number_named, "{context}\n\n以上哪一段的摘要如下？\n\n{input}\n\n"
                                    "只写编号，例如“段落1”。\n答案："),
    "lcc": Dataset(64, scores.code_similarity, CODE),
    "repobench-p": Dataset(64, scores.code_similarity, CODE),
}
NEEDLE_PROMPT = "{context}\n\nAnswer from the text above.\nQuestion: {input}\nAnswer:"


@dataclasses.dataclass(frozen=True)
class ScoredQuestion:
    """text: what stands behind the context. answer_start: how the answer begins. measure: of an answer, 0 to 1."""
    task: str
    text: str
    answer_start: str
    limit: int
    measure: typing.Callable
    stop = ""

    def prompt(self):
        return self.text + self.answer_start

    def message(self):
        """-> the question as a message of its own."""
        return self.prompt().lstrip("\n")

    def tokens_max(self):
        return self.limit

    def judge(self, said):
        return {"score": self.measure(said)}


def read_ruler(number, value, _):
    """-> the document of a line of RULER."""
    text, outputs = text_of(value["input"]), _texts(value["outputs"])
    task, cut, tokens_max, measure = _ruler_question(text)
    question = ScoredQuestion(task, text[cut:], text_of(value.get("answer_prefix", "")), tokens_max,
                              functools.partial(measure, texts=outputs))
    return Document(number, task, 0, text[:cut], (question,), chat=True)


def _ruler_question(text):
    """-> task, where the question begins, tokens to generate, measure.

    Examples in front of a document have questions too, so that the last one counts. The space in front is its own.
    """
    found = [(match.start(), task, tokens_max, measure) for task, pattern, tokens_max, measure in RULER_TASKS
             for match in pattern.finditer(text)]
    start, task, tokens_max, measure = max(found, default=(0, "", 0, None), key=lambda each: each[0])
    cut = len(text[:start].rstrip())
    if cut:
        return task, cut, tokens_max, measure
    cut = max(len(text) - RULER_OTHER_CHARACTERS, len(text) // 2)
    space = re.search(r"\s", text[cut:])
    return RULER_OTHER, cut + (space.start() if space else 0), RULER_OTHER_TOKENS, scores.share_named


def read_long_bench(number, value, prompts):
    """-> the document of a line of LongBench, or None where its answers cannot be scored."""
    name = text_of(value["dataset"]).removesuffix("_e")
    if name in UNSCORED_DATASETS:
        return None
    if name not in DATASETS:
        raise ValueError(f"LongBench has no dataset {name!r}")
    dataset = DATASETS[name]
    more = {"references": _texts(value["answers"])}
    measure = dataset.measure
    if measure is scores.class_named:
        measure = functools.partial(measure, classes=_texts(value["all_classes"]))
    score = functools.partial(scores.best, measure, **more)
    context, question = _filled(prompts.get(name, dataset.prompt), text_of(value["context"]), text_of(value["input"]))
    if name in FIRST_LINE_DATASETS:
        score = functools.partial(_of_first_line, score)
    asked = ScoredQuestion(name, question, "", dataset.tokens_max, score)
    return Document(number, name, 0, context, (asked,), chat=name not in PLAIN_DATASETS)


def read_needle(number, value, prompts):
    """-> the document of a line with a context that has a needle, and a question for it."""
    asked = text_of(value["retrieval_question"] if "retrieval_question" in value else value["question"])
    context, question = _filled(prompts.get(NEEDLE, NEEDLE_PROMPT), text_of(value["context"]), asked)
    name = next(name for name in ("answers", "answer", "needles", "needle") if name in value)
    texts = _texts([value[name]] if isinstance(value[name], str) else value[name])
    if name.startswith("answer"):
        measure = functools.partial(scores.share_named, texts=texts)
    elif {word for text in texts for word in scores.words(text)} <= set(scores.words(asked)):
        raise ValueError(f"{name} has no word that the question does not have: give an answer")
    else:
        measure = functools.partial(scores.share_of_words, texts=texts, known=asked)
    return Document(number, NEEDLE, 0, context, (ScoredQuestion(NEEDLE, question, "", NEEDLE_TOKENS, measure),),
                    chat=True)


def _of_first_line(score, said):
    return score(said.lstrip("\n").split("\n")[0])


def _filled(prompt, context, question):
    """-> the context and the question of a prompt."""
    if not context:
        raise ValueError("the context is empty")
    before, after = prompt.split("{context}")
    return before + context, after.replace("{input}", question)


def _texts(values):
    if not isinstance(values, list) or not values or not all(values):
        raise ValueError(f"{values!r} is no list of texts, of one at least")
    return tuple(map(text_of, values))


def check_prompts(path, prompts):
    """Raises TasksError unless prompts are texts by dataset, with the context once and the question behind it."""
    if not isinstance(prompts, dict):
        raise TasksError(f"{path} is no JSON object with a prompt for each dataset")
    for name, prompt in prompts.items():
        parts = prompt.split("{context}") if isinstance(prompt, str) else []
        if len(parts) != 2 or "{input}" in parts[0] or not parts[1]:
            raise TasksError(f"{path}: the prompt of {name} must have {{context}} once, and all of the question "
                             "behind it: what stands in front is computed once for all questions")

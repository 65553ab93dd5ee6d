"""Retrieval tasks: documents with questions whose answers are known.

In the project's own form a line is {"token_count", "context", "questions": [{"task", "question", "answer"}, ...]};
what else it has is ignored, but for "kind", which sorts documents. A document's questions are asked one after the
other, each from the same stored context: "\\nQ: {question}\\nA:". The answer is what follows, leading space included,
up to the end of the line.
"""
import dataclasses
import math

# A document belongs to a length that it differs from by at most this share.
LENGTH_TOLERANCE = 1 / 8
# Weak with full attention too: reported, and not a part of accuracy.
UNCOUNTED_TASKS = frozenset(["multivalue4"])
# How the answer of a list begins: "Karl bought a cup, a lamp."
LIST_VERB = " bought "
STOP_TEXT = "\n"
# A token has at least one byte, so an answer's bytes bound its tokens; a wrong answer may go on for a while.
ANSWER_TOKENS_BEYOND = 16
# As many as a request can say.
TOKENS_MAX = (1 << 31) - 1


@dataclasses.dataclass(frozen=True)
class Question:
    task: str
    text: str
    answer: str
    stop = STOP_TEXT

    def prompt(self):
        return f"\nQ: {self.text}\nA:"

    def tokens_max(self):
        return len(self.answer.encode()) + ANSWER_TOKENS_BEYOND

    def judge(self, said):
        """-> what results have of an answer."""
        right = is_right(self, said)
        return {"correct": right, "score": int(right)}


@dataclasses.dataclass(frozen=True)
class Document:
    """number: of its line in the file, from 0. token_count: 0: not counted yet. questions: Question, or what has its
    methods. chat: whether a model of conversations may be asked in one.
    """
    number: int
    kind: str
    token_count: int
    context: str
    questions: tuple
    chat: bool = False


class TasksError(Exception):
    """The file is no tasks file, or has no documents as asked for."""


def read_document(number, value):
    """-> the document of a line; raises ValueError, KeyError, TypeError or AttributeError for what is none."""
    questions = tuple(Question(*(text_of(question[key]) for key in ("task", "question", "answer")))
                      for question in value["questions"])
    count, context = value["token_count"], text_of(value["context"])
    if type(count) is not int or not 1 <= count <= TOKENS_MAX or not context:
        raise ValueError(f"token_count is {str(count)[:20]} and the context has {len(context)} characters: both must "
                         f"be at least 1, and the first at most {TOKENS_MAX}")
    return Document(number, str(value.get("kind", "")), count, context, questions)


def text_of(value):
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    value.encode()  # a lone surrogate is none either
    return value


def select_documents(documents, lengths=(), count=0):
    """-> {length: documents of about so many tokens}, in the order of lengths.

    Without lengths: all documents, each under the power of two that is nearest. count: so many of each length, in turn
    one of each kind; 0: all.
    """
    chosen = {length: [] for length in lengths}
    for document in documents:
        length = _length_of(document.token_count, lengths)
        if length:
            chosen.setdefault(length, []).append(document)
    for length, some in chosen.items():
        if not some:
            have = sorted({_length_of(document.token_count, ()) for document in documents})
            raise TasksError(f"no document of about {length} tokens; the file has about "
                             f"{', '.join(map(str, have))}")
    return {length: _in_turn(chosen[length])[:count or None] if count else chosen[length]
            for length in (lengths or sorted(chosen))}


def _length_of(token_count, lengths):
    if not lengths:
        return 1 << round(math.log2(token_count))
    nearest = min(lengths, key=lambda length: abs(token_count - length))
    return nearest if abs(token_count - nearest) <= nearest * LENGTH_TOLERANCE else 0


def _in_turn(documents):
    kinds = {}
    for document in documents:
        kinds.setdefault(document.kind, []).append(document)
    ranked = [(rank, document) for some in kinds.values() for rank, document in enumerate(some)]
    return [document for _, document in sorted(ranked, key=lambda pair: pair[0])]


def is_right(question, said):
    """-> whether a text answers the question; the items of a list may come in any order."""
    if question.task.startswith("multivalue"):
        return _list(said) == _list(question.answer)
    return said == question.answer


def _list(text):
    who, verb, items = text.partition(LIST_VERB)
    return who, verb, sorted(items.removesuffix(".").split(", "))

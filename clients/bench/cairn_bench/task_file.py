"""Files of tasks: which form a line has, and how many tokens its context is for a model."""
import dataclasses
import json

from . import task_forms
from .tasks import TasksError, read_document

DOCUMENT_COUNT_MAX = 100_000
# (fields that a line of the form has, one of each group; what makes a document of it)
FORMS = (
    ((("context",), ("questions",)), lambda number, value, _: read_document(number, value)),
    ((("input",), ("outputs",)), task_forms.read_ruler),
    ((("context",), ("input",), ("answers",), ("dataset",)), task_forms.read_long_bench),
    ((("context",), ("question", "retrieval_question"), ("answer", "answers", "needle", "needles")),
     task_forms.read_needle),
)
FORMS_SAID = ("context and questions; input and outputs (RULER); context, input, answers and dataset (LongBench); "
              "context, question and answer or needle")


def load_documents(path, prompts_path=None):
    """-> the documents of a file, in its order, and how many lines of which task are left out without a score.

    Token counts are 0 where the file does not have them. prompts_path: of LongBench's prompts, as it publishes them.
    """
    prompts = _load_prompts(prompts_path) if prompts_path else {}
    documents, left_out = [], {}
    try:
        with open(path, encoding="utf-8") as file:
            for number, line in enumerate(file):
                if number == DOCUMENT_COUNT_MAX:
                    raise TasksError(f"{path} has more than {DOCUMENT_COUNT_MAX} lines: split it")
                document, task = _read(path, number, line, prompts)
                if document:
                    documents.append(document)
                else:
                    left_out[task] = left_out.get(task, 0) + 1
    except (OSError, UnicodeDecodeError) as error:
        raise TasksError(f"cannot read {path}: {error}") from error
    if not documents and left_out:
        raise TasksError(f"{path} has nothing but {', '.join(left_out)}: these answers cannot be scored")
    if not documents:
        raise TasksError(f"{path} is empty: give a file with a document in each line")
    return documents, left_out


def _read(path, number, line, prompts):
    """-> a line's Document, or None and its task."""
    try:
        value = json.loads(line)
        form = next((read for fields, read in FORMS
                     if all(any(name in value for name in names) for names in fields)), None)
        if not isinstance(value, dict) or not form:
            raise ValueError(f"the fields of no form that is known: {FORMS_SAID}")
        return form(number, value, prompts), value.get("dataset")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TasksError(f"{path}:{number + 1}: no document with questions: {type(error).__name__}: {error}") from error


def _load_prompts(path):
    try:
        with open(path, encoding="utf-8") as file:
            prompts = json.load(file)
    except (OSError, ValueError) as error:
        raise TasksError(f"cannot read {path}: {error}") from error
    task_forms.check_prompts(path, prompts)
    return prompts


def stored_counts(path, configuration):
    """-> {number of a document: token count} that a results file has, if it is of the same files; else {}."""
    try:
        with open(path or "", encoding="utf-8") as file:
            stored = json.load(file)
        there = stored["configuration"]
        part = stored["tasks"] if stored["program"] == "compare" else stored
        same = all(there.get(name) == configuration.get(name)
                   for name in ("model (SHA-256)", "tasks (SHA-256)", "prompts (SHA-256)"))
        return {int(number): int(count) for number, count in part["token_counts"].items()} if same else {}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}  # whoever goes on with the file says what is wrong with it


def with_counts(documents, counts):
    """-> the documents, those without a token count with the one of counts."""
    return [document if document.token_count else dataclasses.replace(document, token_count=counts[document.number])
            for document in documents]


def check_context(path, documents, tokens_max, decoded=0):
    """Raises TasksError for the first document that is too long for a model whose context has so many tokens.

    decoded: tokens that the model generates behind it before it is asked.
    """
    for document in documents:
        answer = max((question.tokens_max() for question in document.questions), default=0)
        if document.token_count + decoded + answer > tokens_max:
            own = f", {decoded} of the model's own" if decoded else ""
            raise TasksError(f"{path}:{document.number + 1}: a context of {document.token_count} tokens{own} and an "
                             f"answer of up to {answer} are more than the model's {tokens_max}: choose others with "
                             "--lengths")

"""Answers of a run, and what they come to."""
from .tasks import UNCOUNTED_TASKS


class TaskResults:
    """Answers of each policy and seed, and what they took; a part of a ResultFile.

    token_counts: {number of a document: count}, where the tasks file does not have them.
    """

    def __init__(self, keys, token_counts=None):
        self.token_counts = token_counts
        self.runs = {key: {"policy": key[0], "seed": key[1], "documents": [], "questions": []} for key in keys}

    def load(self, value):
        there = {(run["policy"], run["seed"]): run for run in value["runs"]}
        for key, run in self.runs.items():
            run["documents"] = there[key]["documents"]
            run["questions"] = there[key]["questions"]
            for question in run["questions"]:
                if "score" not in question:
                    question["score"] = int(question["correct"])
            summary(run)  # raises what load does where a field is missing

    def done(self, key, document_number):
        return any(document["document"] == document_number for document in self.runs[key]["documents"])

    def done_count(self):
        return sum(len(run["documents"]) for run in self.runs.values())

    def add(self, key, document, questions):
        """One document with all its questions."""
        run = self.runs[key]
        run["documents"].append(document)
        run["questions"].extend(questions)

    def to_json(self):
        runs = [{**{name: run[name] for name in ("policy", "seed")}, **summary(run),
                 "documents": run["documents"], "questions": run["questions"]} for run in self.runs.values()]
        value = {"runs": runs}
        if self.token_counts:
            value["token_counts"] = self.token_counts
        if len(runs) == 1:
            value.update({name: runs[0][name] for name in ("accuracy", "tasks", "lengths", "questions")})
        return value


def summary(run):
    """-> accuracy and cost of one policy and seed."""
    documents, questions = run["documents"], run["questions"]
    counted = [question for question in questions if is_counted(question)]
    return {
        **share(counted),
        "tasks": _grouped(questions, "task"),
        "lengths": {length: {**share(some), "tasks": _grouped(of_length(questions, length), "task")}
                    for length, some in by(counted, "length").items()},
        "document_seconds": _sum(documents, "document_seconds"),
        "document_tokens": _sum(documents, "token_count"),
        "document_read_bytes": _sum(documents, "document_read_bytes"),
        "answer_tokens": _sum(documents, "answer_tokens"),
        "answer_read_bytes": _sum(documents, "answer_read_bytes"),
        "decode_tokens_per_second": ratio(_sum(documents, "decode_tokens"), _sum(documents, "decode_seconds")),
        "read_bytes_per_token": ratio(_sum(documents, "answer_read_bytes"), _sum(documents, "answer_tokens")),
        "kv_dram_peak_bytes": max((document["kv_dram_peak_bytes"] for document in documents), default=0),
    }


def pooled(runs):
    """-> {policy: share of the counted answers of all its seeds}"""
    questions = {}
    for run in runs:
        questions.setdefault(run["policy"], []).extend(filter(is_counted, run["questions"]))
    return {policy: share(some) for policy, some in questions.items()}


def is_counted(question):
    return question["task"] not in UNCOUNTED_TASKS


def of_length(questions, length):
    return [question for question in questions if str(question["length"]) == length]


def share(questions):
    """-> the mean score. What is right or wrong has the scores 1 and 0."""
    right = sum(question["score"] for question in questions)
    return {"accuracy": ratio(right, len(questions)), "right": right, "asked": len(questions)}


def by(questions, name):
    """-> {value of a field, as text: the questions that have it}, sorted: numbers by size."""
    groups = {}
    for question in sorted(questions, key=lambda question: question[name]):
        groups.setdefault(str(question[name]), []).append(question)
    return groups


def ratio(part, whole):
    """-> the quotient, or None where there is nothing to divide, or nothing to divide by."""
    return part / whole if whole and part is not None else None


def _grouped(questions, name):
    return {value: share(some) for value, some in by(questions, name).items()}


def _sum(documents, name):
    return sum(document[name] for document in documents)

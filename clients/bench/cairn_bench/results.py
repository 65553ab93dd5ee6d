"""The results of a run: kept in a JSON file after each document, and gone on with from there.

The file is replaced as a whole, so that it can be read at any time. docs/cairn-bench.md describes its fields.
"""
import json
import os

from .tasks import UNCOUNTED_TASKS

FORMAT = 1


class ResultsError(Exception):
    """The file cannot be gone on with, or not be written."""


class TaskResults:
    """Right and wrong answers of each policy and seed, and what they took.

    configuration: what decides over the results, as JSON has it. A file of another one is refused.
    path: None: nothing is kept.
    """

    def __init__(self, path, configuration, keys):
        self.path, self.configuration = path, json.loads(json.dumps(configuration))
        self.manifest, self.earlier = {}, []
        self.runs = {key: {"policy": key[0], "seed": key[1], "documents": [], "questions": []} for key in keys}
        if path and os.path.exists(path):
            self._load()

    def _load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                stored = json.load(file)
            there, program, version = stored["configuration"], stored["program"], stored["format"]
            runs = {(run["policy"], run["seed"]): run for run in stored["runs"]}
            earlier = [*stored["earlier_manifests"], stored["manifest"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self.path} holds no results that could be gone on with "
                               f"({type(error).__name__}: {error}): remove it, or give another --json") from error
        if (program, version) != ("tasks", FORMAT):
            raise ResultsError(f"{self.path} holds results of `{program}` in format {version}, not of `tasks` in "
                               f"{FORMAT}: give another --json")
        differences = difference(there, self.configuration)
        if differences:
            raise ResultsError(f"{self.path} holds results of another configuration:\n  " + "\n  ".join(differences) +
                               "\nGive another --json, or remove the file.")
        self.earlier = earlier
        for key, run in self.runs.items():
            run["documents"] = runs[key]["documents"]
            run["questions"] = runs[key]["questions"]

    def done(self, key, document_number):
        return any(document["document"] == document_number for document in self.runs[key]["documents"])

    def done_count(self):
        return sum(len(run["documents"]) for run in self.runs.values())

    def add(self, key, document, questions):
        """One document with all its questions; then the file is replaced."""
        run = self.runs[key]
        run["documents"].append(document)
        run["questions"].extend(questions)
        self.write()

    def write(self):
        if not self.path:
            return
        temporary = f"{self.path}.tmp"
        try:
            with open(temporary, "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file, indent=1)
                file.write("\n")
            os.replace(temporary, self.path)
        except OSError as error:
            raise ResultsError(f"cannot write the results: {error}") from error

    def to_json(self):
        runs = [{**{name: run[name] for name in ("policy", "seed")}, **summary(run),
                 "documents": run["documents"], "questions": run["questions"]} for run in self.runs.values()]
        value = {"program": "tasks", "format": FORMAT, "manifest": self.manifest,
                 "earlier_manifests": self.earlier, "configuration": self.configuration}
        if len(runs) == 1:
            value.update({name: runs[0][name] for name in ("accuracy", "tasks", "lengths", "questions")})
        return {**value, "runs": runs}


def difference(there, here):
    """-> a line for each field in which two configurations differ."""
    return [f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"
            for name in sorted({*there, *here}) if there.get(name) != here.get(name)]


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


def is_counted(question):
    return question["task"] not in UNCOUNTED_TASKS


def of_length(questions, length):
    return [question for question in questions if str(question["length"]) == length]


def share(questions):
    right = sum(question["correct"] for question in questions)
    return {"accuracy": ratio(right, len(questions)), "right": right, "asked": len(questions)}


def by(questions, name):
    """-> {value of a field, as text: the questions that have it}, sorted: numbers by size."""
    groups = {}
    for question in sorted(questions, key=lambda question: question[name]):
        groups.setdefault(str(question[name]), []).append(question)
    return groups


def ratio(part, whole):
    """-> the quotient, or None where there is nothing to divide by."""
    return part / whole if whole else None


def _grouped(questions, name):
    return {value: share(some) for value, some in by(questions, name).items()}


def _sum(documents, name):
    return sum(document[name] for document in documents)

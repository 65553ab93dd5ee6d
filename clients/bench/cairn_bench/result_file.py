"""The JSON file of a run: replaced as a whole after each step, and gone on with from there.

Because it is replaced, it can be read at any time. docs/cairn-bench.md describes its fields.
"""
import json
import os

FORMAT = 2


class ResultsError(Exception):
    """The file cannot be gone on with, or not be written."""


class ResultFile:
    """What is kept of a run.

    program: the subcommand. configuration: what decides over the results, as JSON has it; a file of another one is
    refused. part: the results, with load(value), which raises KeyError, TypeError or ValueError for what it does not
    know, and to_json() -> an object whose fields stand in the file beside those of this class. path: None: nothing is
    kept.
    """

    def __init__(self, path, program, configuration, part):
        self.path, self.program, self.part = path, program, part
        self.configuration = json.loads(json.dumps(configuration))
        self.manifest, self.earlier, self.contention = {}, [], None
        if path and os.path.exists(path):
            self._load()  # a complete one is only shown, from wherever it lies
        elif path:
            self._check_writable()

    def _load(self):
        try:
            with open(self.path, encoding="utf-8") as file:
                stored = json.load(file)
            there, program, version = stored["configuration"], stored["program"], stored["format"]
            self.earlier = [*stored["earlier_manifests"], stored["manifest"]]
            if not isinstance(there, dict):
                raise TypeError("its configuration is no object")
            if (program, version) == (self.program, FORMAT) and there == self.configuration:
                self.part.load(stored)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ResultsError(f"{self.path} holds no results that could be gone on with "
                               f"({type(error).__name__}: {error}): give another --json") from error
        if (program, version) != (self.program, FORMAT):
            raise ResultsError(f"{self.path} holds results of `{program}` in format {version}, not of "
                               f"`{self.program}` in {FORMAT}: give another --json")
        differences = difference(there, self.configuration)
        if differences:
            raise ResultsError(f"{self.path} holds results of another configuration:\n  " + "\n  ".join(differences) +
                               "\nGive another --json.")

    def _check_writable(self):
        """What is computed first may take hours."""
        try:
            with open(self._temporary(), "w", encoding="utf-8"):
                pass
            os.remove(self._temporary())
        except OSError as error:
            raise ResultsError(f"cannot write the results: {error}") from error

    def begin(self, manifest, contention):
        """What this start runs on, and manifest.Contention from now on."""
        self.manifest, self.contention = manifest, contention

    def contentions(self):
        """-> how busy the machine was during each start that has written something."""
        return [each["contention"] for each in (*self.earlier, self.manifest) if "contention" in each]

    def write(self):
        if self.contention:
            self.manifest["contention"] = self.contention.to_json()
        if not self.path:
            return
        try:
            with open(self._temporary(), "w", encoding="utf-8") as file:
                json.dump(self.to_json(), file, indent=1)
                file.write("\n")
            os.replace(self._temporary(), self.path)
        except OSError as error:
            raise ResultsError(f"cannot write the results: {error}") from error

    def _temporary(self):
        return f"{self.path}.tmp"

    def to_json(self):
        return {"program": self.program, "format": FORMAT, "manifest": self.manifest,
                "earlier_manifests": self.earlier, "configuration": self.configuration, **self.part.to_json()}


def difference(there, here):
    """-> a line for each field in which two configurations differ."""
    return [f"{name}: {there.get(name)!r} there, {here.get(name)!r} here"
            for name in sorted({*there, *here}) if there.get(name) != here.get(name)]

"""What `cairn-bench report` and `measure` make of results, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_report_test.py
"""
import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import unittest
import unittest.mock

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import (compare_command, kv_stats, main, measure_command, measure_plan,  # noqa: E402
                         report_aims, report_command, report_data, report_format, report_tables, report_text, slim,
                         speed, speed_command, tasks_command)
from cairn_bench.options import CommandError  # noqa: E402  pylint: disable=wrong-import-position
from cairn_bench.result_file import ResultsError  # noqa: E402  pylint: disable=wrong-import-position

MANIFEST = {
    "commit": "c" * 40, "start_time": "2026-01-02T03:04:05+00:00", "machine": "x86_64, 2 processors, 8.0 GiB",
    "cpu": "A processor", "kernel": "6.1", "read_bandwidth": {"bytes_per_second": 21_500_000_000, "threads": 2},
    "model": {"name": "m.gguf", "kv_token_bytes": 2560}, "profile": "emmc", "seeds": [1],
    "command_line": ["x", "speed", "--model", f"{REPOSITORY}/deploy/models/retrieval-3m-f16.gguf", "--context", "1024",
                     "--build", "/b", "--json", "/tmp/out/speed-emmc.json"],
    "contention": {"other_cpu_share": 0.01, "stolen_cpu_share": 0.0, "other_programs": {}}, "packages": {}}
CONFIGURATION = {"cairn-kv-node (SHA-256)": "a" * 64, "cairn-compute-node (SHA-256)": "b" * 64, "tokens": 32,
                 "dram_budget": "1/13", "prefill": 256, "select": 3.0, "select_min": 192, "tasks (SHA-256)": "t"}


def whole(program, **fields):
    return {"program": program, "format": 2, "manifest": MANIFEST, "earlier_manifests": [],
            "configuration": CONFIGURATION, **fields}


def speed_results(rates, peers=(), **figures):
    """rates: {(context, policy): tokens a second of each round}"""
    made = speed.SpeedResults(list(rates), [(context, name) for context, name, _ in peers])
    for key, values in rates.items():
        made.runs[key]["prefill"] = {"prefill_seconds": 1.23456789, "prefill_tokens_per_second": 1}
        for number, value in enumerate(values):
            made.add(key, number, {**dict.fromkeys(speed.FIGURES, 1.0), "decode_tokens_per_second": value,
                                   "milliseconds_per_token": 1000 / value, **figures})
    for context, name, value in peers:
        made.add((context, name), 0, {"decode_tokens_per_second": value})
    return made.to_json()


def answers_of(right, length=1024, count=10, task="word8", first=0):
    """-> questions, of two documents, of which so many are answered right."""
    return [{"document": first + number % 2, "question": number, "task": task, "length": length, "said": "long",
             "score": int(number < right), "correct": number < right} for number in range(count)]


def tasks_results(runs):
    """runs: [(policy, seed, questions)]"""
    return {"runs": [{"policy": policy, "seed": seed, "questions": questions, "documents": []}
                     for policy, seed, questions in runs]}


def part(program, *arguments, **fields):
    return slim.slim(whole(program, **fields), *arguments)


def results(**parts):
    return report_data.Results({name.replace("_", "-"): value for name, value in parts.items()})


def rows(table):
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()[2:]]


class SlimTest(unittest.TestCase):
    def test_a_speed_keeps_every_round_of_what_tables_need(self):
        made = part("speed", "quick", **speed_results({(1024, "full"): [10.123456789, 20]},
                                                      [(1024, "/a/b/peer --fa on", 5)]))
        run, = made["runs"]
        self.assertEqual((run["context"], run["policy"], run["prefill_seconds"]), (1024, "full", 1.2346))
        self.assertEqual(run["values"]["decode_tokens_per_second"], [10.123, 20])
        self.assertEqual(made["peers"], [{"context": 1024, "peer": "peer --fa on", "values": [5]}])
        self.assertEqual((made["set"], made["build"]), ("quick", ["a" * 16, "b" * 16]))
        self.assertEqual(made["options"]["dram_budget"], "1/13")
        self.assertNotIn("packages", made["manifest"])

    def test_answers_are_counted_by_document_and_by_task(self):
        questions = answers_of(7) + answers_of(1, task="multivalue4", count=2) + answers_of(3, 4096, 4, "dense", 5)
        run, = part("tasks", **tasks_results([("full", 1, questions)]))["answers"]
        self.assertEqual(run["documents"], {"0": [1024, 4, 5], "1": [1024, 3, 5], "5": [4096, 2, 2], "6": [4096, 1, 2]})
        self.assertEqual(run["tasks"], {"1024": {"word8": [7, 10], "multivalue4": [1, 2]},
                                        "4096": {"dense": [3, 4]}})

    def test_a_comparison_has_both_and_how_near_it_is(self):
        figures = {**dict.fromkeys(slim.NEAR_FIGURES, 0.5), "policy": "full", "cluster_count": None,
                   "cluster_mean_size": None, "cluster_variance": None}
        made = part("compare", speed=speed_results({(1024, "full"): [10]}),
                    tasks=tasks_results([("full", 1, answers_of(7))]),
                    closeness={"documents": [{"document": 0, "policies": [figures]}]})
        self.assertEqual(made["near"], {"full": dict.fromkeys(slim.NEAR_FIGURES, 0.5)})
        self.assertEqual((len(made["runs"]), len(made["answers"])), (1, 1))

    def test_commands_are_those_of_a_clone(self):
        self.assertEqual(slim.command(MANIFEST["command_line"]),
                         ["clients/bench/cairn-bench", "speed", "--model", "deploy/models/retrieval-3m-f16.gguf",
                          "--context", "1024", "--json", "speed-emmc.json"])
        self.assertEqual(slim.command(["x", "tasks", "--tasks", "/elsewhere/t.jsonl", "--store-dir", "/s"])[2:],
                         ["--tasks", "t.jsonl"])

    def test_the_busiest_start_counts(self):
        busy = {"other_cpu_share": 0.4}
        value = {**whole("speed", **speed_results({(1, "full"): [1]})),
                 "earlier_manifests": [{"contention": busy}, {}]}
        self.assertEqual(slim.slim(value)["manifest"]["contention"], busy)

    def test_a_file_is_small_text_and_gives_itself(self):
        with tempfile.TemporaryDirectory() as folder:
            path, out = os.path.join(folder, "in"), os.path.join(folder, "out")
            for value in (whole("speed", **speed_results({(1024, "full"): [10.5]})),
                          part("speed", "full", **speed_results({(1024, "full"): [10.5]}))):
                with open(path, "w", encoding="utf-8") as file:
                    json.dump(value, file)
                self.assertEqual(main.main(["report", "--slim", path, out]), 0)
                with open(out, encoding="utf-8") as file:
                    text = file.read()
                self.assertEqual(json.loads(text), part("speed", "full", **speed_results({(1024, "full"): [10.5]})))
            self.assertLess(max(map(len, text.splitlines())), 2000)
            for wrong in ("", "[]", "{}", json.dumps({**whole("speed"), "format": 1})):
                with open(path, "w", encoding="utf-8") as file:
                    file.write(wrong)
                with self.assertRaisesRegex(ResultsError, "no results .* that are understood"):
                    slim.load(path)


class TablesTest(unittest.TestCase):
    def answers(self):
        return results(
            answers_prefilled=part("tasks", **tasks_results([
                ("full", 1, answers_of(9) + answers_of(4, 4096, 4, "dense", 5)),
                *(("dynakv", seed, answers_of(right) + answers_of(3, 4096, 4, "dense", 5))
                  for seed, right in ((1, 8), (2, 9), (3, 10)))])),
            answers_fed=part("tasks", **tasks_results([("dynakv", 1, answers_of(8)[::2])])),
            answers_fed_baselines=part("tasks", **tasks_results([("static-cluster", 1, answers_of(2)[::2])])),
            answers_baselines=part("tasks", **tasks_results([("streaming", 1, answers_of(1)),
                                                             ("no-cluster", 1, answers_of(9))])))

    def test_answers_have_their_range_and_net_against_the_same_questions(self):
        self.assertEqual(rows(report_tables.answers_prefilled(self.answers())), [
            ["`full`", "9 of 10", "4 of 4"], ["`dynakv`", "9 (8 to 10) of 10", "3 of 4"],
            ["`dynakv` more than `full`, in points", "+0.0", "-25.0"]])
        # Only the documents that were fed: of the first 5 of 5 were right, and now 4.
        self.assertEqual(rows(report_tables.answers_fed(self.answers())), [
            ["`full`, the same documents prefilled", "5 of 5"], ["`dynakv`", "4 of 5"],
            ["`dynakv` more than `full`, in points", "-20.0"], ["`static-cluster`", "1 of 5"]])

    def test_baselines_stand_beside_what_they_are_compared_with(self):
        self.assertEqual(rows(report_tables.answers_baselines(self.answers())), [
            ["`full`", "90 %"], ["`dynakv`", "90 %"], ["`no-cluster`", "90 %"], ["`streaming`", "10 %"]])

    def test_hardest_documents_have_a_table_of_their_own(self):
        self.assertEqual(rows(report_tables.answers_hardest(self.answers())),
                         [["`full`", "", "4 of 4"], ["`dynakv`", "", "3 of 4"]])

    def speeds(self, **parts):
        return results(
            speed_emmc=part("speed", **speed_results({(1024, "full"): [10, 12, 20], (1024, "dynakv"): [6, 6, 6],
                                                      (4096, "full"): [4], (4096, "dynakv"): [10]})),
            speed_nvme=part("speed", **speed_results({(1024, "full"): [120], (1024, "dynakv"): [150]},
                                                     [(1024, "peer --fa on", 200), (1024, "peer --fa off", 100)])),
            **parts)

    def test_speed_is_told_by_flash_and_length(self):
        self.assertEqual(rows(report_tables.speed_by_flash(self.speeds())), [
            ["eMMC, modelled", "`full`", "12.0 (10.0 to 20.0)", "4.00"], ["", "`dynakv`", "6.00", "10.0"],
            ["", "`dynakv` to `full`", "0.50 times", "2.50 times"],
            ["the machine's own disk", "`full`", "120", ""], ["", "`dynakv`", "150", ""],
            ["", "`dynakv` to `full`", "1.25 times", ""]])
        self.assertEqual(rows(report_tables.speed_peer(self.speeds()))[-1], ["llama.cpp", "200"])

    def test_it_says_from_where_on_it_pays(self):
        self.assertEqual(report_text.pays(self.speeds()), "eMMC, modelled: from 4,096 tokens on; the machine's own "
                         "disk: at all lengths, from 1,024 tokens on")
        slow = results(speed_ufs31=part("speed", **speed_results({(8192, "full"): [3], (8192, "dynakv"): [2]})))
        self.assertEqual(report_text.pays(slow), "UFS 3.1, modelled: at none of these lengths, up to 8,192 tokens")

    def test_written_bytes_are_told_once(self):
        figures = {f"{name}_per_token": 0.0 for name in kv_stats.WRITE_CAUSES}
        figures.update(write_pool_bytes_per_token=2560.0, write_split_bytes_per_token=1280.0,
                       write_meta_log_bytes_per_token=256.0, write_meta_table_bytes_per_token=256.0)
        made = results(decode_behind=part("speed", **speed_results({(4096, "dynakv"): [1]}, **figures)))
        self.assertEqual({what: value for what, value in rows(report_tables.written_by_cause(made)) if value != "0.00"},
                         {"clusters that were split": "0.50", "other clusters": "0.50", "what lies where": "0.20"})

    def test_flash_is_compared_with_the_tokens_of_that_moment(self):
        made = results(decode_long=part("speed", **speed_results({(128, "dynakv"): [1]}, kv_flash_bytes=2560.0 * 345)))
        tokens = 128 + speed_command.added_tokens(32) - 1 - speed_command.WARM_TOKENS
        self.assertEqual(tokens, 128 + 2 + 9 + 33)
        row, = rows(report_tables.flash_of_decode(made))
        self.assertEqual(row[1:3] + row[5:6], ["128", str(tokens - 128), f"{345 / tokens:.2f} times"])

    def test_what_was_not_measured_has_no_table(self):
        other = results(other=part("speed", **speed_results({(1024, "full"): [10]})))
        for name, make in report_text.TABLES.items():
            self.assertIsNone(make(other), name)

    def test_aims_are_judged_where_they_were_measured(self):
        aims = report_aims.judged(self.answers())
        self.assertEqual({aim.what.partition(",")[0]: aim.reached for aim in aims if "to `full`" in aim.what},
                         {"`dynakv` to `full` at 1": False, "`dynakv` to `full` at 4": False})
        self.assertEqual(report_aims.tally(self.answers()), "2 of 4")
        missed = rows(report_aims.missed(self.answers()))
        self.assertEqual([row[2:] for row in missed], [["at least -2.0", "-25.0"], ["at least -3.0", "-20.0"]])
        self.assertIsNone(report_aims.tally(results(other=part("tasks", runs=[]))))

    def test_the_large_model_is_judged_by_what_it_loses(self):
        made = results(
            shape_short=part("speed", **speed_results({(128, "full"): [10]})),
            shape_long=part("speed", **speed_results({(16384, "dynakv"): [7, 8, 9]}, [(16384, "peer --fa on", 3)],
                                                     hidden_io_share=0.9, resume_read_share=0.1, resume_steps=3.0,
                                                     kv_dram_bytes=2560.0 * 16384 / 12)))
        self.assertEqual({aim.what: aim.reached for aim in report_aims.judged(made)}, {
            "large model: speed behind 16,384 tokens to that behind 128": True,
            "large model: speed to llama.cpp's behind 16,384 tokens": True,
            "large model: reading that hides behind computing": True,
            "large model: memory for keys and values, MiB": False,
            "large model: what resuming reads of the keys and values": True,
            "large model: the first token of a resumed conversation, in steps": False})


class FolderTest(unittest.TestCase):
    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())
        os.mkdir(os.path.join(self.folder, "data"))

    def put(self, name, value):
        with open(os.path.join(self.folder, "data", f"{name}.json"), "w", encoding="utf-8") as file:
            file.write(slim.dump(value))

    def write(self, name, text):
        with open(os.path.join(self.folder, name), "w", encoding="utf-8") as file:
            file.write(text)

    def read(self, name):
        with open(os.path.join(self.folder, name), encoding="utf-8") as file:
            return file.read()

    def report(self, *arguments, status=0):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main.main(["report", self.folder, *arguments]), status, said.getvalue())
        return said.getvalue()


class ReportTest(FolderTest):
    TEMPLATE = """%% README.md

# Results

Of {{commit}}, {{quick}}.

Of {{commit}} on {{machine}}, {{rounds speed-emmc}} rounds.

{{table speed_by_flash}}

{{table memory_shape}}

{{ran speed-emmc absent}}

{{command absent speed-emmc}}

{{command absent}}

- one {{option speed-emmc tokens}}
- two

%% other.md

# Other
"""

    def setUp(self):
        super().setUp()
        self.put("speed-emmc", part("speed", "full", **speed_results({(1024, "full"): [10, 12]})))
        self.write("templates.txt", self.TEMPLATE)

    def test_a_page_has_what_was_measured(self):
        self.report()
        self.assertEqual(self.read("README.md"), f"""# Results

{report_text.MADE_BY}

Of `cccccccccccc` on A processor, x86_64, 2 processors, 8.0 GiB, Linux 6.1, 2 rounds.

| flash | tokens a second | 1,024 tokens |
| --- | --- | --- |
| eMMC, modelled | `full` | 11.0 (10.0 to 12.0) |
|  | `dynakv` |  |
|  | `dynakv` to `full` |  |

*Not measured in this set.*

Measured 2026-01-02; memory was read at 21.5 GB/s; other programs took up to 1 % of the processors'
time.

    clients/bench/cairn-bench speed --model deploy/models/retrieval-3m-f16.gguf --context 1024 \\
        --json speed-emmc.json

- one 32
- two
""")
        self.assertEqual(self.read("other.md"), f"# Other\n\n{report_text.MADE_BY}\n")

    def test_a_page_of_a_quick_run_or_of_a_busy_machine_says_so(self):
        value = part("speed", "quick", **speed_results({(1024, "full"): [10]}))
        value["manifest"]["contention"] = {"other_cpu_share": 0.3, "stolen_cpu_share": 0.1,
                                           "other_programs": {"cc1plus": 0.2}}
        value["manifest"]["commit"] += "+"
        self.put("speed-emmc", value)
        self.report()
        page = " ".join(self.read("README.md").split())
        self.assertIn("Of `cccccccccccc` with changes that were not committed, `--quick`.", page)
        self.assertIn("30 % of the processors' time (cc1plus 20 %, other virtual machines 10 %). **The machine was "
                      "busy: times say little.**", page)

    def test_a_page_that_is_not_what_the_results_give_is_found(self):
        self.assertIn("README.md is not what", self.report("--check", status=1))
        self.report()
        self.assertEqual(self.report("--check"), "")
        self.write("README.md", self.read("README.md").replace("11.0", "11.1"))
        said = self.report("--check", status=1)
        self.assertIn("-| eMMC, modelled | `full` | 11.1", said)
        self.assertIn("+| eMMC, modelled | `full` | 11.0", said)
        self.report()
        self.write("old.md", "# Old\n")
        self.assertIn("old.md is no page of the template", self.report("--check", status=1))

    def test_results_of_several_builds_machines_or_sets_are_refused(self):
        for change in ({"commit": "d" * 40}, {"machine": "other"}, {"cpu": "other"}):
            other = part("speed", "full", **speed_results({(1024, "full"): [10]}))
            other["manifest"] = {**other["manifest"], **change}
            self.put("speed-nvme", other)
            self.assertIn("speed-emmc and speed-nvme are not of one", self.report(status=1))
        for other in (part("speed", "quick", **speed_results({(1024, "full"): [10]})),
                      {**part("speed", "full", **speed_results({(1024, "full"): [10]})), "build": ["x"]}):
            self.put("speed-nvme", other)
            self.assertIn("are not of one", self.report(status=1))

    def test_what_the_template_asks_for_and_nobody_has_is_an_error(self):
        for asked in ("{{table nothing}}", "Text {{nothing}}."):
            self.write("templates.txt", f"%% README.md\n\n# Title\n\n{asked}\n")
            self.assertRegex(self.report(status=1), "the template asks for .*nothing.*; there are")

    def test_a_folder_without_results_says_who_writes_them(self):
        os.remove(os.path.join(self.folder, "data", "speed-emmc.json"))
        self.assertIn("cairn-bench measure writes them", self.report(status=1))
        self.assertIn("takes two files", self.report("--slim", "a", "b", status=2))


class PlanTest(unittest.TestCase):
    def setUp(self):
        with open(os.path.join(report_command.PAGES_FOLDER, report_command.TEMPLATE), encoding="utf-8") as file:
            self.template = file.read()
        self.full = measure_plan.full_parts("t.jsonl", "s.gguf", "peer", ("m", "l"))

    def test_pages_show_every_table_and_every_part(self):
        asked = [found.split() for found in report_text.PLACEHOLDER.findall(self.template)]
        self.assertEqual({words[1] for words in asked if words[0] == "table"}, set(report_text.TABLES))
        told = {name for words in asked for name in words[1:]}
        for part_of in (self.full, measure_plan.quick_parts()):
            self.assertLessEqual({each.name for each in part_of}, told)
        named = {name for words in asked if words[0] in ("ran", "command") for name in words[1:]}
        self.assertEqual(named, {each.name for each in self.full})

    def test_what_is_planned_are_commands_of_the_program(self):
        parser = argparse.ArgumentParser()
        commands = parser.add_subparsers()
        for command in (tasks_command, speed_command, compare_command):
            command.add_parser(commands)
        for each in self.full + measure_plan.quick_parts():
            self.assertTrue(parser.parse_args(each.arguments).model, each.name)

    def test_it_ends_in_time(self):
        without = measure_plan.full_parts("t.jsonl", "s.gguf")
        self.assertLessEqual(sum(each.seconds for each in without), 90 * 60)
        self.assertLessEqual(sum(each.seconds for each in measure_plan.quick_parts()), 90)
        self.assertEqual(len({each.name for each in self.full}), len(self.full))


class MeasureTest(FolderTest):
    """With a program that writes results instead of measuring."""

    def setUp(self):
        super().setUp()
        self.out, self.ran = os.path.join(self.folder, "out"), []
        self.enterContext(unittest.mock.patch.object(measure_command, "run_bench", self.run_bench))
        self.enterContext(unittest.mock.patch.object(measure_command, "check_program"))
        self.enterContext(unittest.mock.patch.object(measure_command, "commit", return_value="c" * 40))

    def run_bench(self, arguments, _):
        where = arguments[arguments.index("--json") + 1]
        self.ran.append(os.path.basename(where).removesuffix(".json"))
        if len(self.ran) == 3:
            return 1
        value = whole("speed", **speed_results({(1024, "full"): [10]}))
        if arguments[0] != "speed":
            value = whole("tasks", **tasks_results([("full", 1, answers_of(7))]))
        with open(where, "w", encoding="utf-8") as file:
            json.dump(value, file)
        return 0

    def measure(self, *arguments, status=0):
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main.main(["measure", self.out, "--quick", *arguments]), status, said.getvalue())
        return said.getvalue()

    def test_it_goes_on_where_it_was_stopped(self):
        names = [each.name for each in measure_plan.quick_parts()]
        said = self.measure(status=1)
        self.assertRegex(said, rf"\[1/{len(names)}\] {names[0]}: about \d+ s; about \d+ s left")
        self.assertIn(f"{names[2]} ended with status 1; its own message stands above", said)
        self.assertEqual(self.ran, names[:3])
        self.measure("--pages", self.folder)
        self.assertEqual(self.ran, names[:3] + names[2:])
        self.measure("--pages", self.folder)
        self.assertEqual(self.ran, names[:3] + names[2:])
        # Pages and their data, without what was measured formerly.
        self.put("old", part("speed", "full", **speed_results({(1, "full"): [1]})))
        self.measure("--pages", self.folder)
        there = os.listdir(os.path.join(self.folder, "data"))
        self.assertEqual(sorted(there), sorted(f"{name}.json" for name in names))
        self.assertIn("`--quick`", self.read("README.md"))
        self.report("--check")

    def test_results_of_another_commit_or_set_are_not_gone_on_with(self):
        self.ran = ["a", "b", "c"]
        self.measure()
        with unittest.mock.patch.object(measure_command, "commit", return_value="d" * 40):
            self.measure("--pages", self.folder)  # complete: only its pages are written
            os.remove(os.path.join(self.out, "data", "near-full.json"))
            self.assertIn(f"has results of commit {'c' * 40}, and these would be of commit {'d' * 40}",
                          self.measure(status=1))
        with contextlib.redirect_stderr(io.StringIO()) as said:
            self.assertEqual(main.main(["measure", self.out]), 1)
        self.assertIn("has results of the set quick, and these would be of the set full", said.getvalue())

    def test_sources_that_change_meanwhile_end_it_before_the_next_part(self):
        commits = ["c" * 40, "c" * 40, "c" * 40, "c" * 40 + "+"]
        with unittest.mock.patch.object(measure_command, "commit", side_effect=commits):
            said = self.measure(status=1)
        self.assertIn(f"the sources changed meanwhile: they were {'c' * 40} and are {'c' * 40}+", said)
        self.assertEqual(len(self.ran), 2)

    def test_folders_that_would_count_as_changed_sources_are_refused(self):
        repository = os.path.join(self.folder, "repository")
        subprocess.run(["git", "init", "-q", repository], check=True)
        with open(os.path.join(repository, ".gitignore"), "w", encoding="utf-8") as file:
            file.write("build\n")
        with unittest.mock.patch.object(measure_command, "REPOSITORY", repository):
            measure_command.check_ignored(self.folder)
            measure_command.check_ignored(os.path.join(repository, "build", "results"))
            with self.assertRaisesRegex(CommandError, "is not ignored by git"):
                measure_command.check_ignored(os.path.join(repository, "results"))

    def test_it_says_what_it_would_measure(self):
        with contextlib.redirect_stdout(io.StringIO()) as said:
            self.assertEqual(main.main(["measure", self.out, "--list"]), 0)
        self.assertRegex(said.getvalue(), r"speed-emmc, \d+ min\n  clients/bench/cairn-bench speed --model deploy/")
        self.assertFalse(os.path.exists(self.out))


class FormatTest(unittest.TestCase):
    def test_figures_have_as_many_digits_as_say_something(self):
        self.assertEqual([report_format.rate(value) for value in (123.4, 12.34, 1.234)], ["123", "12.3", "1.23"])
        self.assertEqual(report_format.spread([1.0, 3.0, 2.0]), "2.0 (1.0 to 3.0)")
        self.assertEqual(report_format.spread([1.01, None, 1.02]), "1.0")
        self.assertEqual(report_format.spread([]), "")
        self.assertEqual(report_format.right([(0.5, 1), (1.0, 1)]), "0.8 (0.5 to 1) of 1")
        self.assertEqual(report_format.how_many([3, 1, 3]), "1 to 3")


if __name__ == "__main__":
    unittest.main()

"""What `cairn-bench tune` measures and takes, without a daemon.

Run through ctest, or by hand:  /usr/bin/python3 tests/unit/clients/cairn_bench_tune_test.py
"""
import os
import sys
import unittest

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "bench"))
from cairn_bench import bench, tune_plan  # noqa: E402
from cairn_bench.tune_command import TuneResults  # noqa: E402
from cairn_bench.tune_plan import UNTUNED, Setting  # noqa: E402

MIB = 1 << 20


def model(layers, joint):
    return bench.Model(4000, 500, 1 << 17, layers, joint)


def figures(rate, decoding=1, measured=1, prefill=1):
    return {"decode_tokens_per_second": rate, "kv_dram_accounted_bytes": decoding * MIB,
            "kv_dram_bytes": measured * MIB, "prefill": {"kv_dram_accounted_bytes": prefill * MIB}}


class LevelsTest(unittest.TestCase):
    def test_levels_are_of_all_axes_that_have_room(self):
        self.assertEqual(tune_plan.small_key_levels(model(8, 256)), ["44444444", "22222222", "22221111", "11111111"])
        self.assertEqual(tune_plan.small_key_levels(model(2, 32)), ["4", "2", "1"])
        # 16 layers of 512 numbers: 2 MiB are 256 axes of each.
        self.assertEqual(tune_plan.small_key_levels(model(16, 512))[1], "2" * 8)
        self.assertEqual(tune_plan.small_key_levels(model(16, 1025)), [])

    def test_levels_fit_half_of_the_budget(self):
        # 16,384 tokens in 8 layers: 128 bytes of each in 4 bits, 32 in 1.
        self.assertEqual(tune_plan.small_key_bytes("44444444", model(8, 256), 16384), 16 * MIB)
        self.assertEqual(len(tune_plan.fitting_levels(model(8, 256), 16384, 16384, 32 * MIB)), 4)
        self.assertEqual(tune_plan.fitting_levels(model(8, 256), 16384, 16384, 13 * MIB), ["22221111", "11111111"])
        self.assertEqual(tune_plan.fitting_levels(model(8, 256), 16384, 16384, 7 * MIB), [])

    def test_levels_fit_what_a_conversation_grows_to(self):
        # 32,768 tokens in 8 layers: 32 MiB in 4 bits.
        self.assertEqual(tune_plan.fitting_levels(model(8, 256), 4096, 16384, 31 * MIB)[0], "22222222")
        self.assertEqual(tune_plan.fitting_levels(model(8, 256), 4096, 16384, 32 * MIB)[0], "44444444")
        # The model ends before that.
        short = model(8, 256)._replace(context_tokens=20000)
        self.assertEqual(tune_plan.fitting_levels(short, 4096, 16384, 31 * MIB)[0], "44444444")

    def test_names_are_short(self):
        self.assertEqual(tune_plan.name(UNTUNED), "dynakv, clusters of 8")
        self.assertEqual(tune_plan.name(Setting("kvswap", 4, "22221111")),
                         "kvswap, groups of 4, small keys 4x2 4x1")


class SearchTest(unittest.TestCase):
    def tried(self, hidden_of, levels=("22", "11")):
        settings = []

        def measure(setting):
            settings.append((setting.small_key_bits, setting.cluster_entries))
            return hidden_of(setting)
        tune_plan.search(levels, 0.8, measure)
        return settings

    def test_the_smallest_group_that_hides_ends_it(self):
        self.assertEqual(self.tried(lambda setting: 0.9), [("22", 4)])
        self.assertEqual(self.tried(lambda setting: setting.cluster_entries / 10), [("22", 4), ("22", 8)])
        self.assertEqual(self.tried(lambda setting: None), [("22", 4)])

    def test_less_exact_keys_come_where_no_group_hides(self):
        self.assertEqual(self.tried(lambda setting: 0.1),
                         [("22", 4), ("22", 8), ("22", 16), ("11", 4), ("11", 8), ("11", 16)])
        self.assertEqual(self.tried(lambda setting: 0.8 if setting.small_key_bits == "11" else 0.1)[-1], ("11", 4))

    def test_where_nothing_has_room_nothing_is_tried(self):
        self.assertEqual(self.tried(lambda setting: 0.9, levels=()), [])


class BestTest(unittest.TestCase):
    FAST, NEAR = Setting("kvswap", 16, "11"), Setting("kvswap", 8, "22")

    def best(self, measured, budget=32 * MIB, divergence=None):
        asked = []

        def ask(setting):
            asked.append(setting)
            return (divergence or {}).get(setting, 0.01)
        return tune_plan.best(tune_plan.within(measured, budget), ask, 0.02), asked

    def test_the_fastest_that_is_near_enough_is_taken(self):
        measured = {UNTUNED: figures(50), self.FAST: figures(120), self.NEAR: figures(100)}
        self.assertEqual(self.best(measured)[0], self.FAST)
        taken, asked = self.best(measured, divergence={self.FAST: 0.05})
        self.assertEqual((taken, asked), (self.NEAR, [self.FAST, self.NEAR]))
        self.assertEqual(self.best(measured, divergence={self.FAST: 0.05, self.NEAR: 0.03})[0], UNTUNED)

    def test_memory_is_that_of_prompt_and_answer(self):
        for over in ({"measured": 33}, {"prefill": 33}):
            measured = {UNTUNED: figures(50), self.FAST: figures(120, **over)}
            self.assertEqual(self.best(measured)[0], UNTUNED, over)
        # What is accounted for counts below 16 MiB, where programs' own buffers are most of what is measured.
        measured = {UNTUNED: figures(50), self.FAST: figures(120, decoding=9, measured=12)}
        self.assertEqual(self.best(measured, budget=10 * MIB)[0], self.FAST)
        self.assertEqual(self.best({UNTUNED: figures(50, measured=40)})[0], None)


class TuneResultsTest(unittest.TestCase):
    def test_what_is_kept_comes_back(self):
        results, again = TuneResults(), TuneResults()
        results.runs[4096, UNTUNED] = figures(50)
        results.near[UNTUNED] = 0.01
        again.load(results.to_json())
        self.assertEqual((again.runs, again.near), (results.runs, results.near))


if __name__ == "__main__":
    unittest.main()

"""Daemons that are stopped, killed and started again under conversations, which all go on.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/restart_test.py
"""
import os
import random
import socket
import subprocess
import threading
import time
import unittest

import daemons
from daemons import Cairn, binary
from generate_test import ANSWER, LONG, QUESTION

ENDLESS = ["--ignore-end", "--tokens", "20000"]


class RestartTest(unittest.TestCase):
    def test_conversation_goes_on_after_both_daemons_restarted(self):
        for policy in ("full", "dynakv"):
            with self.subTest(policy=policy), Cairn() as cairn:
                first = cairn.generate("", "--file", cairn.short_text(), "--tokens", "0", "--policy", policy)
                number, token_count = first["conversation_id"], first["conversation_token_count"]
                whole = cairn.generate(QUESTION, "--file", cairn.short_text(), "--policy", policy, *LONG)
                fork = str(cairn.fork(number, token_count))
                undisturbed = cairn.generate(QUESTION, "--conversation", fork, *LONG)["token_ids"]
                self.assertEqual(cairn.stop(), [0, 0])
                cairn.start()
                second = cairn.generate(QUESTION, "--conversation", str(number), *LONG)
                self.assertEqual((second["reused_token_count"], second["policy"]), (token_count, policy))
                self.assertEqual(second["token_ids"], undisturbed)
                if policy == "full":  # of others two turns may attend other tokens than one
                    self.assertEqual(second["token_ids"], whole["token_ids"])
                self.assertEqual(cairn.stop(), [0, 0])

    def test_quantised_conversations_go_on_after_both_daemons_restarted(self):
        for name, others in (("q8", ("q4", "f16")), ("q4", ("f32", "q8"))):
            with self.subTest(name), Cairn(compute_config=f'policy: "full" kv_format: "{name}"\n') as cairn:
                first = cairn.generate("", "--file", cairn.short_text(), "--tokens", "0")
                number = str(first["conversation_id"])
                undisturbed = cairn.generate(QUESTION, "--file", cairn.short_text(), *LONG)
                self.assertTrue(undisturbed["text"].startswith(ANSWER), undisturbed["text"])
                self.assertEqual(cairn.stop(), [0, 0])
                for other in others:
                    cairn.write_compute_config(f'kv_format: "{other}"\n')
                    cairn.start()
                    self.assertEqual([s["usable"] for s in cairn.sessions()], [False, False])
                    done = cairn.run("generate", "x", "--conversation", number)
                    self.assertEqual(done.returncode, 1)
                    self.assertIn(f"start it with kv_format {name}".encode(), done.stderr)
                    self.assertEqual(cairn.stop(), [0, 0])
                cairn.write_compute_config(f'kv_format: "{name}"\n')
                cairn.start()
                second = cairn.generate(QUESTION, "--conversation", number, *LONG)
                self.assertEqual(second["reused_token_count"], first["conversation_token_count"])
                self.assertEqual(second["token_ids"], undisturbed["token_ids"])
                self.assertEqual(cairn.stop(), [0, 0])

    def test_groups_of_all_heads_answer_as_before(self):
        """Policy kvswap: the KV node is killed in an answer, then both daemons are started again."""
        with Cairn(compute_config='policy: "kvswap"\n') as cairn:
            asked = [QUESTION, "--ignore-end", "--tokens", "100"]
            whole = cairn.generate(*asked, "--file", daemons.DEMO_TEXT)
            self.assertTrue(whole["text"].startswith(ANSWER), whole["text"])
            later = cairn.generate(*asked, "--conversation", str(whole["conversation_id"]))
            process = cairn.popen("generate", *asked, "--file", daemons.DEMO_TEXT, "--label", "again")
            begun = process.read(40)
            cairn.kv.kill()
            cairn.kv.start()
            rest, error = process.communicate(timeout=daemons.RUN_TIMEOUT_S)
            self.assertEqual((begun + rest).decode().rstrip("\n"), whole["text"].rstrip("\n"), error)
            self.assertEqual(cairn.stop(), [0, 0])
            cairn.start()
            again, = (session for session in cairn.sessions() if session["label"] == "again")
            number = str(again["conversation_id"])
            self.assertEqual(cairn.generate(*asked, "--conversation", number)["text"], later["text"])
            self.assertEqual(cairn.stop(), [0, 0])

    def test_killed_daemons_leave_every_conversation_at_its_last_checkpoint(self):
        with Cairn() as cairn:
            first = cairn.generate(QUESTION, "--file", cairn.short_text(), "--stop", "\n")
            process = cairn.popen("generate", "\nQ:", "--conversation", str(first["conversation_id"]),
                                  "--ignore-end", "--tokens", "20000")
            process.read(20)
            cairn.compute.kill()
            cairn.kv.kill()
            process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertEqual(process.returncode, 1)
            cairn.start()
            listed = cairn.sessions()
            self.assertEqual(len(listed), 1)
            self.assertGreaterEqual(listed[0]["token_count"], first["conversation_token_count"])
            again = cairn.generate(QUESTION, "--conversation", str(first["conversation_id"]), "--stop", "\n")
            self.assertEqual(again["text"], ANSWER)

    def test_stopping_the_compute_node_stores_what_was_generated(self):
        with Cairn() as cairn:
            process = cairn.popen("generate", QUESTION, "--file", cairn.short_text(), *ENDLESS)
            process.read(40)
            self.assertEqual(cairn.compute.stop(), 0)
            _, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertEqual(process.returncode, 1)
            self.assertIn(b"stopping", error)
            cairn.compute.start()
            self.assertGreater(cairn.sessions()[0]["token_count"], 800)

    def test_compute_node_stops_while_the_kv_node_hangs(self):
        with Cairn() as cairn:
            process = cairn.popen("generate", QUESTION, "--file", cairn.short_text(), *ENDLESS)
            process.read(40)
            cairn.kv.hang()
            try:
                self.assertEqual(cairn.compute.stop(), 1)
            finally:
                cairn.kv.go_on()
            self.assertRegex(cairn.compute.log(), r"stopping without \d+ tokens that clients have seen")
            process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            cairn.compute.start()
            number = str(cairn.sessions()[0]["conversation_id"])
            again = cairn.generate("\n" + QUESTION, "--conversation", number, "--stop", "\n")
            self.assertEqual(again["text"], ANSWER)

    def test_compute_node_stops_while_a_call_waits_for_the_kv_node(self):
        with Cairn(compute_config="kv_wait_seconds: 3600\n") as cairn:
            cairn.kv.kill()
            path = cairn.kv_socket + ".handshake"
            if os.path.exists(path):
                os.unlink(path)
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(path)
                listener.listen()
                listener.settimeout(daemons.START_TIMEOUT_S)
                process = cairn.popen("sessions", "list")
                listener.accept()[0].close()  # the call looks for the KV node
            self.assertEqual(cairn.compute.stop(), 0)
            self.assertNotIn("stopping without", cairn.compute.log())
            process.communicate(timeout=daemons.STOP_TIMEOUT_S)
            self.assertNotEqual(process.returncode, 0)

    def test_text_is_the_same_when_the_kv_node_is_killed(self):
        self.check_text_when_the_kv_node_is_killed("policy: 'full'\n")

    def test_text_is_the_same_when_an_index_has_to_be_asked_for_again(self):
        self.check_text_when_the_kv_node_is_killed("policy: 'dynakv'\nexperiment { keep_clusters: false }\n")

    def test_text_of_a_policy_that_forgets_is_the_same_when_the_kv_node_is_killed(self):
        self.check_text_when_the_kv_node_is_killed("policy: 'morph-recall'\nselect_tokens_min: 64\n")

    def check_text_when_the_kv_node_is_killed(self, settings):
        """At random moments, of the prompt too; CAIRN_KILL_COUNT says how often."""
        seed = int(os.environ.get("CAIRN_TEST_SEED", random.randrange(1 << 30)))
        print(f"CAIRN_TEST_SEED={seed}", flush=True)
        kills, choose = int(os.environ.get("CAIRN_KILL_COUNT", 5)), random.Random(seed)
        # Small chunks and a small replay buffer: many checkpoints to be killed between.
        config = "prefill_chunk_tokens: 128\ndram_budget_bytes: 1048576\n"
        with Cairn(compute_config=config + settings, extent_file_bytes=512 << 20) as cairn:
            arguments = ["generate", QUESTION, "--file", cairn.short_text(), "--ignore-end", "--tokens", "400",
                         "--json"]
            expected = cairn.generate(*arguments[1:])
            done = 0
            while done < kills:
                start = time.monotonic()
                process = cairn.popen(*arguments)
                output = []
                reader = threading.Thread(target=lambda p=process, o=output: o.extend(p.communicate()))
                reader.start()
                pause_max_s = 0.4  # the first one mostly hits the prompt
                while reader.is_alive() and done < kills:
                    reader.join(choose.uniform(0.05, pause_max_s))
                    pause_max_s = 1
                    if reader.is_alive():
                        cairn.kv.kill()
                        cairn.kv.start()
                        done += 1
                reader.join(daemons.RUN_TIMEOUT_S)
                self.assertEqual(process.returncode, 0, output[1].decode())
                result = daemons.json.loads(output[0])
                self.assertEqual(result["token_ids"], expected["token_ids"])
                print(f"killed {done} times, reconnected {result['reconnect_count']}, "
                      f"{time.monotonic() - start:.1f} s", flush=True)

    def test_kv_node_that_stays_away_is_an_error(self):
        with Cairn(compute_config="kv_wait_seconds: 1\n") as cairn:
            first = cairn.generate("Mira", "--tokens", "3")
            cairn.kv.kill()
            done = cairn.run("generate", "x", "--conversation", str(first["conversation_id"]))
            self.assertEqual(done.returncode, 1)
            cairn.kv.start()
            cairn.generate("x", "--conversation", str(first["conversation_id"]), "--tokens", "3")

    def test_other_models_conversation_is_refused(self):
        with Cairn() as cairn:
            first = cairn.generate("Mira", "--tokens", "3")
            cairn.compute.stop()
            made = subprocess.run([binary("cairn-make-model"), "--preset", "tiny-llama", "-o", cairn.path("m.gguf")],
                                  capture_output=True, check=False)
            self.assertEqual(made.returncode, 0, made.stderr)
            cairn.compute.command += ["--model", cairn.path("m.gguf")]
            cairn.compute.start()
            listed = cairn.sessions()[0]
            self.assertFalse(listed["usable"])
            self.assertIn("another model file", listed["unusable_reason"])
            for command in (("generate", "x", "--conversation"), ("sessions", "show")):
                done = cairn.run(*command, str(first["conversation_id"]))
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"another model", done.stderr)


if __name__ == "__main__":
    unittest.main()

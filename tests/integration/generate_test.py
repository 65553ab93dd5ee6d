"""Both daemons together: text with the KV cache on flash, conversations that survive, and every way to be interrupted.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/generate_test.py
"""
import os
import re
import signal
import subprocess
import sys
import threading
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT, binary, wait_until

sys.path.insert(0, os.path.join(daemons.REPOSITORY, "clients", "python"))

QUESTION = "\nQ: What is the code of the green lantern?\nA:"
ANSWER = " The code of the green lantern is 9605."
LONG = ["--ignore-end", "--tokens", "200"]


class GenerateTest(daemons.SharedCairnTest):
    """Tests that stop or kill the daemons have their own."""
    EXTENT_FILE_BYTES = 512 << 20

    def refuse(self, *arguments, words, status=1, cairn=None):
        done = (cairn or self.cairn).run(*arguments)
        self.assertEqual(done.returncode, status, done.stderr.decode())
        for word in words:
            self.assertIn(word, done.stderr.decode())
        return done

    def test_finds_the_answer_in_a_text_that_lies_on_flash(self):
        result = self.cairn.generate(QUESTION, "--file", DEMO_TEXT, "--stop", "\n")
        self.assertEqual(result["text"], ANSWER)
        self.assertEqual(result["finish_reason"], "stop")
        self.assertIn(result["io_engine"], ("io_uring", "threads"))
        self.assertGreater(result["kv_flash_bytes"], 4000 * 2560)
        self.assertGreater(result["kv_read_bytes"], 0)
        self.assertGreater(result["io_ms"], 0)
        self.assertLessEqual(result["exposed_io_ms"], result["io_ms"])

    def test_flash_and_memory_give_the_same_tokens(self):
        with Cairn(kv="ram") as in_memory:
            for path, sampling in ((DEMO_TEXT, []), (self.cairn.short_text(),
                                                     ["--temperature", "1.5", "--top-k", "40", "--seed", "7"])):
                arguments = [QUESTION, "--file", path, *LONG, *sampling]
                on_flash = self.cairn.generate(*arguments)
                self.assertEqual(on_flash["token_ids"], in_memory.generate(*arguments)["token_ids"])
                self.assertEqual(len(on_flash["token_ids"]), 200)

    def test_fixed_seed_gives_fixed_text_also_over_a_restart(self):
        sampling = ["--temperature", "1.3", "--seed", "11", "--min-p", "0.02", "--typical", "0.95", "--top-k", "50",
                    "--repeat-penalty", "1.2", "--presence-penalty", "0.3", "--frequency-penalty", "0.2",
                    "--repeat-last-n", "100", "--logit-bias", "300=1.5", "--logit-bias", "301=-100",
                    "--ignore-end", "--tokens", "40"]
        with Cairn() as cairn:
            first = cairn.generate("Mira keeps", *sampling)
            self.assertEqual(cairn.generate("Mira keeps", *sampling)["token_ids"], first["token_ids"])
            self.assertNotIn(301, first["token_ids"])
            other = cairn.generate("Mira keeps", *["12" if word == "11" else word for word in sampling])
            self.assertNotEqual(other["token_ids"], first["token_ids"])
            number = str(first["conversation_id"])
            again = cairn.generate("Mira keeps", *sampling)
            second = cairn.generate(" the", "--conversation", number, *sampling)
            cairn.compute.stop()
            cairn.kv.stop()
            cairn.kv.start()
            cairn.compute.start()
            # The penalties count what the conversation holds, wherever it was computed.
            after = cairn.generate(" the", "--conversation", str(again["conversation_id"]), *sampling)
            self.assertEqual(after["token_ids"], second["token_ids"])

    def test_penalties_end_repetitions_of_greedy_text(self):
        plain = self.cairn.generate("river " * 20, *LONG)["token_ids"]
        penalised = self.cairn.generate("river " * 20, "--repeat-penalty", "1.5", *LONG)["token_ids"]
        self.assertGreater(len(set(penalised)), 2 * len(set(plain)))

    def test_logit_bias_must_be_a_token_and_a_number(self):
        for text in ("5", "5=", "=1", "x=1", "-5=1", "5=1x", "5=nan", "5=100.5"):
            self.refuse("generate", "x", "--logit-bias", text, words=["--logit-bias", text, "ID=BIAS"], status=2)
        self.refuse("generate", "x", "--logit-bias", "99999999=1", words=["sampling.logit_bias", "99999999"])

    def test_log_probabilities_are_lines_or_json(self):
        arguments = [QUESTION, "--tokens", "4"]
        result = self.cairn.generate(*arguments, "--logprobs", "2")
        self.assertEqual([token["id"] for token in result["logprobs"]], result["token_ids"])
        self.assertEqual(b"".join(bytes(token["bytes"]) for token in result["logprobs"]).decode(), result["text"])
        lines = self.cairn.succeed("generate", *arguments, "--logprobs", "2").splitlines()
        self.assertEqual(len(lines), 4)
        for line, token in zip(lines, result["logprobs"]):
            self.assertEqual([top["id"] for top in token["top"]][0], token["id"])
            self.assertEqual(len(token["top"]), 2)
            self.assertLess(token["logprob"], 0)
            self.assertRegex(line, r'^%d ".*" -?[\d.]+  \| %d ".*" -?[\d.]+, \d+ ".*" -[\d.]+$' %
                             (token["id"], token["id"]))
        self.assertNotIn("logprobs", self.cairn.generate(*arguments))

    def test_summary_line_has_every_number(self):
        done = self.cairn.run("generate", "Q: Who?\nA:", "--tokens", "5", "--stats")
        self.assertRegex(done.stderr.decode().splitlines()[-1],
                         r"^summary: tokens_per_s=[\d.]+ ttft_ms=[\d.]+ kv_flash_bytes=\d+ kv_dram_bytes=\d+ "
                         r"io_engine=(io_uring|threads) policy=dynakv$")

    def test_policy_is_chosen_for_a_new_conversation_and_kept(self):
        first = self.cairn.generate("Mira keeps", "--policy", "full", "--select", "3.5%", "--tokens", "3")
        self.assertEqual(first["policy"], "full")
        number = str(first["conversation_id"])
        self.assertEqual(self.cairn.generate(" the", "--conversation", number, "--policy", "full")["policy"], "full")
        sparse = self.cairn.generate("", "--file", self.cairn.short_text(), "--policy", "dynakv", "--select", "50%",
                                     "--tokens", "0")
        number = str(sparse["conversation_id"])
        again = self.cairn.generate(QUESTION, "--conversation", number, "--stop", "\n")
        self.assertEqual((again["policy"], again["text"]), ("dynakv", ANSWER))
        self.refuse("generate", "x", "--conversation", number, "--policy", "full",
                    words=[f"conversation {number} uses policy dynakv with select_percent 50, not policy full"])
        self.refuse("generate", "x", "--policy", "nope", words=["retrieval: policy is 'nope'", "full"])
        for text in ("0", "0%", "-3%", "101%", "x", "3%%", "3 %", "nan"):
            self.refuse("generate", "x", f"--select={text}", words=["--select", "such as 3%"], status=2)
        done = self.cairn.run("chat", "--policy", "full", "--select", "3", "--tokens", "2", stdin=b"Mira\n")
        self.assertEqual(done.returncode, 0, done.stderr.decode())

    def test_every_policy_stores_what_it_needs_to_go_on(self):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            text = file.read()[-1500:]
        refused = self.cairn.run("generate", "x", "--policy", "nope").stderr.decode()
        names = re.search(r"must be one of ([a-z0-9, -]+)", refused).group(1).strip().split(", ")
        self.assertIn("local-cluster", names)
        for name in names:
            with self.subTest(policy=name):
                # Most tokens are fed, so that entries wait for clusters.
                first = self.cairn.generate(text, "--policy", name, "--prefill", "100", "--tokens", "0")
                self.assertGreater(first["prompt_token_count"], 300)
                number = str(first["conversation_id"])
                again = self.cairn.generate(QUESTION, "--conversation", number, "--tokens", "3")
                self.assertEqual(again["policy"], name)
                self.assertEqual(again["reused_token_count"], first["conversation_token_count"])

    def test_prompt_can_be_computed_token_by_token(self):
        arguments = [QUESTION, "--stop", "\n", "--ephemeral"]
        with open(DEMO_TEXT, encoding="utf-8") as file:
            arguments[0] = file.read()[-600:] + QUESTION
        whole = self.cairn.generate(*arguments)
        fed = self.cairn.generate(*arguments, "--prefill", "16")
        self.assertEqual(fed["token_ids"], whole["token_ids"])
        self.assertEqual(fed["prompt_token_count"], whole["prompt_token_count"])
        self.refuse("generate", "x", "--prefill", "0", words=["--prefill"], status=2)

    def test_prompt_of_a_conversation_is_not_computed_again(self):
        first = self.cairn.generate("", "--file", self.cairn.short_text(), "--tokens", "0")
        second = self.cairn.generate("--conversation", str(first["conversation_id"]), "--stop", "\n", QUESTION)
        self.assertEqual(second["reused_token_count"], first["conversation_token_count"])
        self.assertEqual(second["text"], ANSWER)
        self.assertLess(second["prompt_token_count"], 30)

    def test_a_pipe_beside_a_file_is_not_read_and_that_is_said(self):
        arguments = self.cairn.command("generate", "--file", self.cairn.short_text(), "--tokens", "0", "--ephemeral")
        for question, said in (([], True), ([QUESTION], False)):
            reading, writing = os.pipe()
            with open(reading, "rb") as pipe:
                os.write(writing, QUESTION.encode())
                os.close(writing)
                done = subprocess.run([*arguments, *question], stdin=pipe, capture_output=True, check=True,
                                      timeout=daemons.RUN_TIMEOUT_S)
            self.assertEqual(b"standard input is not read" in done.stderr, said, done.stderr)

    def test_ephemeral_conversation_is_gone(self):
        result = self.cairn.generate("Mira", "--ephemeral", "--tokens", "3")
        self.assertNotIn(result["conversation_id"], [s["conversation_id"] for s in self.cairn.sessions()])

    def test_ephemeral_never_deletes_a_conversation_that_exists(self):
        number = str(self.cairn.generate("Mira", "--tokens", "3")["conversation_id"])
        self.refuse("generate", "x", "--ephemeral", "--conversation", number, words=["ephemeral", number])
        self.cairn.succeed("sessions", "show", number)

    def test_sessions_are_listed_shown_and_deleted(self):
        result = self.cairn.generate("Mira keeps the lantern", "--tokens", "4", "--label", "a \"label\"")
        number = str(result["conversation_id"])
        listed = {s["conversation_id"]: s for s in self.cairn.sessions()}[result["conversation_id"]]
        self.assertEqual(listed["label"], 'a "label"')
        self.assertEqual(listed["token_count"], result["conversation_token_count"])
        self.assertTrue(listed["usable"])
        self.assertEqual(self.cairn.succeed("sessions", "show", number), f"Mira keeps the lantern{result['text']}\n")
        self.cairn.succeed("sessions", "delete", number)
        self.refuse("sessions", "delete", number, words=["no conversation " + number])
        self.refuse("sessions", "show", number, words=["no conversation " + number])

    def test_unknown_conversation_is_an_error(self):
        self.refuse("generate", "x", "--conversation", "987654", words=["no conversation 987654"])

    def test_prompt_longer_than_the_context_says_both_numbers(self):
        before = self.cairn.sessions()
        path = self.cairn.path("long.txt")
        with open(path, "w", encoding="utf-8") as file:
            file.write("river " * 40000)
        self.refuse("generate", "x", "--file", path, words=["40003 tokens", "32768"])
        self.assertEqual(self.cairn.sessions(), before)

    def test_conversation_that_is_full_says_what_it_holds(self):
        with Cairn(compute_config="context_tokens_max: 100\n") as cairn:
            first = cairn.generate("river " * 60, "--tokens", "0")
            done = self.refuse("generate", "river " * 60, "--conversation", str(first["conversation_id"]), cairn=cairn,
                             words=["context is 100"])
            self.assertIn(str(first["conversation_token_count"]), done.stderr.decode())
            full = cairn.generate("river", "--conversation", str(first["conversation_id"]), *LONG)
            self.assertEqual(full["finish_reason"], "context")
            self.assertEqual(full["conversation_token_count"], 100)

    def test_interrupt_ends_with_130_and_keeps_the_conversation(self):
        process = self.cairn.popen("generate", QUESTION, "--file", self.cairn.short_text(), "--ignore-end", "--tokens",
                                   "20000", "--label", "interrupted")
        process.read(40)  # some text has come
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=daemons.STOP_TIMEOUT_S)
        self.assertEqual(process.returncode, 130, error.decode())
        kept = [s for s in self.cairn.sessions() if s["label"] == "interrupted"]
        self.assertEqual(len(kept), 1)
        self.assertGreater(kept[0]["token_count"], 800)

    def test_vanished_client_ends_its_generation(self):
        with Cairn(compute_config="generation_count_max: 1\n") as cairn:
            process = cairn.popen("generate", QUESTION, "--file", cairn.short_text(), "--ignore-end", "--tokens",
                                  "20000", "--label", "vanished")
            process.read(40)
            process.kill()
            process.communicate()
            # The next generation comes to its turn only when that one has ended.
            cairn.generate("Mira", "--tokens", "2")
            kept = [s for s in cairn.sessions() if s["label"] == "vanished"]
            self.assertGreater(kept[0]["token_count"], 800)
            self.assertLess(kept[0]["token_count"], 20000)

    def test_generations_at_the_same_time_all_end(self):
        results = [None] * 6

        def one(index):
            results[index] = self.cairn.generate(f"Record {index} says", "--tokens", "30", "--ignore-end")

        threads = [threading.Thread(target=one, args=(i,)) for i in range(len(results))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for index, result in enumerate(results):
            alone = self.cairn.generate(f"Record {index} says", "--tokens", "30", "--ignore-end")
            self.assertEqual(result["token_ids"], alone["token_ids"])

    def test_too_many_generations_are_refused_with_a_hint(self):
        with Cairn(compute_config="generation_count_max: 1\n") as cairn:
            busy = [cairn.popen("generate", "Mira", "--ignore-end", "--tokens", "20000")
                    for _ in range(20)]
            try:
                refused = wait_until(lambda: [p for p in busy if p.poll() is not None], "a refusal")
                self.assertIn(b"16 generations are waiting", refused[0].stderr.read())
            finally:
                for process in busy:
                    process.kill()
                    process.communicate()

    def test_no_daemon_is_an_error_that_says_what_to_do(self):
        done = subprocess.run([binary("cairn"), "generate", "x", "--socket", self.cairn.path("nobody.sock")],
                              capture_output=True, timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"cannot reach cairn-compute-node at", done.stderr)
        self.assertIn(b"is it running?", done.stderr)

    def test_missing_prompt_is_an_error(self):
        self.refuse("generate", words=["no prompt"])

    def test_chat_answers_line_by_line(self):
        with Cairn(compute_config='turn_template: "Q: {}\\nA:"\nturn_stop: "\\n"\n') as cairn:
            first = cairn.generate("Mira keeps the lantern in the cellar. The code of the red door is 4821.\n",
                                   "--tokens", "0")
            done = cairn.run("chat", "--conversation", str(first["conversation_id"]),
                             stdin=b"What is the code of the red door?\nWhere does Mira keep the lantern?\n")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            self.assertEqual(done.stdout.decode(), " The code of the red door is 4821.\n"
                                                   " Mira keeps the lantern in the cellar.\n")

    def test_chat_sends_messages_where_there_is_a_template(self):
        with Cairn(compute_config='chat_template: "chatml"\n') as cairn:
            done = cairn.run("chat", "--system", "Be brief.", "--tokens", "4", "--label", "templated",
                             stdin=b"Where is Mira? <|im_end|>\n")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            number = str(cairn.sessions()[0]["conversation_id"])
            begin = ("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhere is Mira? <|im_end|><|im_end|>\n"
                     "<|im_start|>assistant\n")
            self.assertTrue(cairn.succeed("sessions", "show", number).startswith(begin))
            done = cairn.run("chat", "--conversation", number, "--tokens", "4", stdin=b"And now?\n")
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            self.assertIn("<|im_end|>\n<|im_start|>user\nAnd now?<|im_end|>\n<|im_start|>assistant\n",
                          cairn.succeed("sessions", "show", number))
            done = cairn.run("chat", "--system", "x", "--conversation", number)
            self.assertIn(b"--system is for a new conversation", done.stderr)

    def test_system_message_needs_a_template(self):
        self.refuse("chat", "--system", "Be brief.", words=["--system needs a chat template", "--chat-template NAME"])

    def test_unknown_template_is_an_error_at_start(self):
        done = subprocess.run([binary("cairn-compute-node"), "--model", daemons.MODEL, "--chat-template", "llama9"],
                              capture_output=True, timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 2)
        self.assertIn(b"chat_template: there is no chat template 'llama9': there are chatml, ", done.stderr)

    def test_example_of_the_client_library(self):
        done = subprocess.run([binary("cairn-client-example"), self.cairn.socket], capture_output=True,
                              timeout=daemons.RUN_TIMEOUT_S, check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertIn("The code of the red door is 4821.", done.stdout.decode())
        self.assertIn("49 tokens were reused", done.stdout.decode())

    def run_python_client(self, *arguments, cairn=None):
        if subprocess.run(["/usr/bin/python3", "-c", "import grpc, google.protobuf"], check=False).returncode != 0:
            self.skipTest("python3-grpcio or python3-protobuf is missing")
        client = os.path.join(daemons.REPOSITORY, "clients", "python", "generate.py")
        return subprocess.run(["/usr/bin/python3", client, "--socket", (cairn or self.cairn).socket, *arguments],
                              capture_output=True, timeout=daemons.RUN_TIMEOUT_S, check=False)

    def test_python_client(self):
        prompt = "The code of the red door is 4821.\nQ: What is the code of the red door?\nA:"
        done = self.run_python_client("--stop", "\n", prompt)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        self.assertEqual(done.stdout.decode(), " The code of the red door is 4821.\n")
        done = self.run_python_client("--tokens", "1", "--logprobs", "2", prompt)
        self.assertRegex(done.stdout.decode(), r"\Ab' The' -0\.\d{3}  b' The' -0\.\d{3}  b'.+' -\d+\.\d{3}\n\n\Z")
        drawn = [self.run_python_client("--temperature", "1.5", "--seed", seed, prompt).stdout for seed in "778"]
        self.assertEqual((drawn[0] == drawn[1], drawn[0] == drawn[2]), (True, False), drawn)
        done = self.run_python_client("--chat", "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"FAILED_PRECONDITION: messages cannot be taken", done.stderr)
        done = self.run_python_client("--socket", self.cairn.path("nobody.sock"), "x")
        self.assertEqual(done.returncode, 1)
        self.assertIn(b"UNAVAILABLE", done.stderr)

    def test_python_client_outlives_a_daemon(self):
        try:
            from generate import CairnClient, grpc  # pylint: disable=import-outside-toplevel
        except ImportError:
            self.skipTest("python3-grpcio or python3-protobuf is missing")
        with Cairn(kv="ram") as cairn:
            client = CairnClient(cairn.socket)
            for failed_calls in (0, 4):
                self.assertEqual(list(client.generate(text="Mira", tokens_max=1))[-1].WhichOneof("event"), "finished")
                cairn.compute.stop()
                for _ in range(failed_calls):
                    self.assertRaises(grpc.RpcError, lambda: list(client.generate(text="Mira")))
                cairn.compute.start()
            self.assertEqual(list(client.generate(text="Mira", tokens_max=1))[-1].WhichOneof("event"), "finished")
            self.assertEqual(client.status().model_loaded_bytes, client.status().model_size_bytes)
            events = client.generate(text="Mira", tokens_max=20000, ignore_eos=True)
            next(events)
            events.close()
            wait_until(lambda: client.status().generation_count == 0, "the end of a call that was closed")

    def test_python_client_sends_messages(self):
        with Cairn(kv="ram", compute_config='chat_template: "chatml"\n') as cairn:
            done = self.run_python_client("--chat", "--system", "Be brief.", "--tokens", "2", "Hi", cairn=cairn)
            self.assertEqual(done.returncode, 0, done.stderr.decode())
            begin = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
            self.assertTrue(cairn.succeed("sessions", "show", "1").startswith(begin))


if __name__ == "__main__":
    unittest.main()

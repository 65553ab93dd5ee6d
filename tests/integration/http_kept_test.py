"""What HTTP clients come back to: requests that begin like an earlier one compute only what is new.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/http_kept_test.py
"""
import concurrent.futures
import os
import random
import unittest

from daemons import Cairn, wait_until
from http_test import CHAT, COMPLETION, CONFIG, Client, text_of

# Full attention: then an answer does not depend on what of its history was kept.
EXACT = CONFIG + 'policy: "full"\n'
# The default policy, with little to attend: then an answer depends on much.
SELECTING = CONFIG + "select_tokens_min: 64\nselect_tokens_max: 96\n"
SYSTEM = {"role": "system", "content": "You are asked about lanterns, and answer in few words. " * 3}
QUESTIONS = ["What is the code of the green lantern?", "And of the red one?", "Who keeps them, and since when?"]


def user(text):
    return {"role": "user", "content": text}


class Chat:
    """A client that sends its whole history each time."""

    def __init__(self, client, messages=()):
        self.client = client
        self.messages = list(messages)

    def ask(self, text=None, **fields):
        """-> usage, answer. Without a text: the last question again."""
        if text is not None:
            self.messages.append(user(text))
        reply = self.client.post(CHAT, messages=self.messages, **{"max_tokens": 24, "temperature": 0, **fields})
        assert reply.status == 200, reply.text
        return reply.json["usage"], reply.json["choices"][0]["message"]["content"]

    def answer(self, text, **fields):
        """Asks, and keeps the answer in the history."""
        usage, answer = self.ask(text, **fields)
        self.messages.append({"role": "assistant", "content": answer})
        return usage, answer


def cached(usage):
    return usage["prompt_tokens_details"]["cached_tokens"]


def exact(usage):
    return usage["prompt_tokens_details"]["exact"]


class HttpKeptTest(unittest.TestCase):
    def kept(self, cairn):
        return [session for session in cairn.sessions() if session["label"].startswith("cairn:http 127.0.0.1:")]

    def test_each_turn_computes_what_is_new_and_answers_the_same(self):
        answers = {}
        for count in (0, 8):
            with Cairn(compute_config=EXACT + f"http_kept_conversation_count_max: {count}\n") as cairn:
                chat = Chat(Client(cairn), [SYSTEM])
                turns = [chat.answer(question, temperature=1, seed=5) for question in QUESTIONS]
                answers[count] = [answer for _, answer in turns]
                if count == 0:
                    self.assertEqual([cached(usage) for usage, _ in turns], [0, 0, 0])
                    self.assertEqual(cairn.sessions(), [])
                    continue
                self.assertEqual(cached(turns[0][0]), 0)
                for (before, _), (usage, _) in zip(turns, turns[1:]):
                    # All but the new question; the answer's own tokens may be cut otherwise in the history.
                    self.assertGreaterEqual(cached(usage), before["prompt_tokens"] - 1)
                    self.assertLess(cached(usage), usage["prompt_tokens"])
                self.assertTrue(self.kept(cairn))
        self.assertEqual(answers[0], answers[8])

    def test_an_answer_again_and_an_edited_question_share_the_beginning(self):
        with Cairn(kv="ram", compute_config=EXACT) as cairn:
            chat = Chat(Client(cairn), [SYSTEM])
            usage, first = chat.ask(QUESTIONS[0], temperature=2, seed=3)
            again_usage, again = chat.ask(temperature=2, seed=3)
            self.assertEqual((cached(again_usage), again), (usage["prompt_tokens"] - 1, first))
            # Without a seed each is another one.
            others = {chat.ask(temperature=4)[1] for _ in range(4)}
            self.assertEqual(len(others), 4)
            chat.messages[-1] = user(QUESTIONS[2])
            edited_usage, _ = chat.ask()
            self.assertGreater(cached(edited_usage), 16)
            self.assertLess(cached(edited_usage), usage["prompt_tokens"] - 1)

    def test_what_is_reused_gives_the_same_bits(self):
        seed = int(os.environ.get("CAIRN_TEST_SEED", random.randrange(1 << 32)))
        print(f"CAIRN_TEST_SEED={seed}")
        rng = random.Random(seed)
        small = EXACT + "prefill_chunk_tokens: 96\n"
        with Cairn(kv="ram", compute_config=small) as cairn, \
                Cairn(kv="ram", compute_config=small + "http_kept_conversation_count_max: 0\n") as other:
            clients = [Client(cairn), Client(other)]
            prompt = rng.choices(range(300, 900), k=500)
            for _ in range(15):
                kept_count = rng.randrange(300, len(prompt))
                prompt = prompt[:kept_count] + rng.choices(range(300, 900), k=rng.randrange(1, 200))
                fields = dict(prompt=prompt, max_tokens=rng.choice([1, 8, 40]), temperature=0, logprobs=3)
                kept, whole = [client.post(COMPLETION, **fields).json for client in clients]
                self.assertEqual(kept["choices"], whole["choices"])
            self.assertGreater(cached(kept["usage"]), 0)

    def test_one_request_has_one_answer_whatever_came_in_between(self):
        with Cairn(compute_config=SELECTING) as cairn:
            client = Client(cairn)
            fields = dict(temperature=1, seed=5, logprobs=True, top_logprobs=3, repeat_penalty=1.3, repeat_last_n=40)
            chat = Chat(client, [SYSTEM, user("River " * 300)])
            requests = []  # what was sent, and what came
            for question in QUESTIONS:
                chat.messages.append(user(question))
                sent = {"messages": list(chat.messages), "max_tokens": 24, **fields}
                reply = client.post(CHAT, **sent).json
                requests.append((sent, reply["choices"]))
                self.assertEqual(exact(reply["usage"]), len(requests) == 1)
                chat.messages.append({"role": "assistant", "content": reply["choices"][0]["message"]["content"]})
            edited = {**requests[1][0], "messages": [*requests[1][0]["messages"][:-1], user("Why?")]}
            reply = client.post(CHAT, **edited).json
            self.assertGreater(cached(reply["usage"]), 300)
            self.assertFalse(exact(reply["usage"]))
            requests.append((edited, reply["choices"]))

            def check(order):
                for number in order:
                    sent, choices = requests[number]
                    reply = client.post(CHAT, **sent).json
                    self.assertEqual(reply["choices"], choices, f"request {number}")
                    self.assertEqual(cached(reply["usage"]), reply["usage"]["prompt_tokens"] - 1)
                    self.assertEqual(exact(reply["usage"]), number == 0)
            check([0, 2, 1, 3, 0])
            chunks = client.stream(CHAT, stream_options={"include_usage": True}, **requests[2][0])
            self.assertEqual(text_of(chunks), requests[2][1][0]["message"]["content"])
            self.assertFalse(exact(chunks[-1]["usage"]))
            cairn.write_compute_config(SELECTING.replace(":0", f":{client.port}"))
            for end in (cairn.compute.stop, cairn.compute.kill):
                end()
                cairn.compute.start()
                check([1, 3, 0, 2])
            cairn.kv.kill()
            cairn.kv.start()
            check([3, 0])
            cairn.stop()
            cairn.start()
            check([2, 0, 3, 1])

    def test_an_exact_answer_is_that_of_a_daemon_that_keeps_nothing(self):
        seed = int(os.environ.get("CAIRN_TEST_SEED", random.randrange(1 << 32)))
        print(f"CAIRN_TEST_SEED={seed}")
        rng = random.Random(seed)
        small = SELECTING + "prefill_chunk_tokens: 96\n"
        with Cairn(kv="ram", compute_config=small) as cairn, \
                Cairn(kv="ram", compute_config=small + "http_kept_conversation_count_max: 0\n") as other:
            clients = [Client(cairn), Client(other)]
            prompts = [rng.choices(range(300, 900), k=count) for count in (rng.choice([1, 2, 17]), 90, 300, 500)]
            answers = {}
            exact_count = 0
            for number in range(25):
                # A new one, a longer one, one that ends otherwise, the same again.
                prompt = rng.choice(prompts)
                kept_count = rng.choice([0, len(prompt), rng.randrange(len(prompt) + 1)])
                prompt = prompt[:kept_count] + rng.choices(range(300, 900), k=rng.choice([0, 1, 40, 200]))
                prompt = rng.choice([prompt, *prompts]) or [300]
                if number >= 23:  # one that can be kept, twice
                    prompt = prompts[2]
                prompts.append(prompt)
                fields = dict(prompt=prompt, max_tokens=20, temperature=0, logprobs=3)
                kept, whole = [client.post(COMPLETION, **fields).json for client in clients]
                self.assertTrue(exact(whole["usage"]))
                if exact(kept["usage"]):
                    exact_count += cached(kept["usage"]) > 0
                    self.assertEqual(kept["choices"], whole["choices"])
                again = clients[0].post(COMPLETION, **fields).json
                self.assertEqual(again["choices"], kept["choices"])
                self.assertEqual(exact(again["usage"]), exact(kept["usage"]))
            self.assertGreater(exact_count, 0)

    def test_a_completion_goes_on_where_its_text_was_kept(self):
        with Cairn(kv="ram", compute_config=CONFIG) as cairn:
            client = Client(cairn)
            with open(cairn.short_text(), encoding="utf-8") as file:
                text = file.read()
            first = client.post(COMPLETION, prompt=text, max_tokens=1).json["usage"]
            reply = client.post(COMPLETION, prompt=text + "\nQ: What is the code of the green lantern?\nA:",
                                temperature=0, stop="\n", max_tokens=50).json
            self.assertGreaterEqual(cached(reply["usage"]), first["prompt_tokens"] - 2)
            self.assertEqual(reply["choices"][0]["text"], " The code of the green lantern is 9605.")

    def test_a_restart_finds_what_was_kept(self):
        with Cairn(compute_config=CONFIG) as cairn:
            client = Client(cairn)
            chat = Chat(client, [SYSTEM])
            usage, _ = chat.answer(QUESTIONS[0])
            for end in (cairn.compute.stop, cairn.compute.kill):
                end()
                cairn.write_compute_config(CONFIG.replace(":0", f":{client.port}"))
                cairn.compute.start()
                before, (usage, _) = usage, chat.answer(QUESTIONS[1])
                self.assertGreaterEqual(cached(usage), before["prompt_tokens"] - 1)

    def test_another_kv_format_deletes_what_it_cannot_use(self):
        with Cairn(compute_config=CONFIG) as cairn:
            client = Client(cairn)
            Chat(client).ask(QUESTIONS[0])
            own = cairn.generate("Mira", "--tokens", "2")["conversation_id"]
            cairn.compute.stop()
            cairn.write_compute_config(CONFIG.replace(":0", f":{client.port}") + 'kv_format: "q8"\n')
            cairn.compute.start()
            self.assertEqual([session["conversation_id"] for session in cairn.sessions()], [own])

    def test_another_policy_deletes_what_was_made_with_the_one_before(self):
        with Cairn(compute_config=CONFIG) as cairn:
            client = Client(cairn)
            Chat(client, [SYSTEM]).ask(QUESTIONS[0])
            self.assertTrue(self.kept(cairn))
            own = cairn.generate("Mira", "--tokens", "2")["conversation_id"]
            cairn.compute.stop()
            cairn.write_compute_config(CONFIG.replace(":0", f":{client.port}") + 'policy: "full"\n')
            cairn.compute.start()
            self.assertEqual([session["conversation_id"] for session in cairn.sessions()], [own])
            self.assertEqual(cached(Chat(client, [SYSTEM]).ask(QUESTIONS[0])[0]), 0)
            # What was made with the configured one is gone on with; a conversation keeps its own.
            self.assertGreater(cached(Chat(client, [SYSTEM]).ask(QUESTIONS[0])[0]), 0)
            self.assertEqual(cairn.generate(" the", "--conversation", str(own))["policy"], "dynakv")
            self.assertEqual(cairn.generate("Mira", "--ephemeral")["policy"], "full")

    def test_the_oldest_goes_when_there_are_too_many(self):
        with Cairn(kv="ram", compute_config=CONFIG + "http_kept_conversation_count_max: 2\n") as cairn:
            chats = [Chat(Client(cairn), [user(f"{number} " * 40)]) for number in (1, 2, 3)]
            for chat in chats:
                chat.ask()
            self.assertEqual(len(self.kept(cairn)), 2)
            # Each use makes it the newest, so the newest is asked first.
            self.assertEqual([cached(chat.ask()[0]) > 0 for chat in reversed(chats)], [True, True, False])

    def test_who_goes_on_with_it_by_its_id_or_deletes_it_takes_it_away(self):
        with Cairn(kv="ram", compute_config=CONFIG) as cairn:
            chat = Chat(Client(cairn), [SYSTEM])
            chat.answer(QUESTIONS[0])
            session, = self.kept(cairn)
            number = str(session["conversation_id"])
            cairn.generate("And more.", "--conversation", number, "--tokens", "2")
            usage, _ = chat.answer(QUESTIONS[1])
            self.assertEqual(cached(usage), 0)
            for session in self.kept(cairn):
                cairn.succeed("sessions", "delete", str(session["conversation_id"]))
            usage, _ = chat.answer(QUESTIONS[2])
            self.assertEqual(cached(usage), 0)
            usage, _ = chat.answer(QUESTIONS[0])
            self.assertGreater(cached(usage), 0)

    def test_chats_at_once_answer_as_one_alone(self):
        with Cairn(compute_config=EXACT + "http_kept_conversation_count_max: 5\n") as cairn:
            def talk(number):
                chat = Chat(Client(cairn), [SYSTEM])
                return [chat.answer(f"{question} I am number {number % 3}.")[1] for question in QUESTIONS]
            alone = [talk(number) for number in range(3)]
            with concurrent.futures.ThreadPoolExecutor(9) as pool:
                at_once = list(pool.map(talk, range(9)))
            self.assertEqual(at_once, alone * 3)
            self.assertLessEqual(len(self.kept(cairn)), 5)
            self.assertEqual(len(self.kept(cairn)), len(cairn.sessions()))

    def test_damage_costs_time_and_no_answer(self):
        # What the opening reads, and only what attention reads.
        for first_byte, byte_count in ((8192, (64 << 20) - 8192), (1 << 20, 1 << 19)):
            with self.subTest(first_byte=first_byte), Cairn(compute_config=EXACT) as cairn:
                with open(cairn.short_text(), encoding="utf-8") as file:
                    prompt = file.read() + "\nQ: What is the code of the green lantern?\nA:"
                fields = dict(prompt=prompt, temperature=0, stop="\n", max_tokens=50)
                client = Client(cairn)
                answer = client.post(COMPLETION, **fields).json["choices"][0]["text"]
                cairn.stop()
                with open(cairn.path("store/extents.cairn"), "r+b") as file:
                    file.seek(first_byte)
                    file.write(os.urandom(byte_count))
                cairn.write_compute_config(EXACT.replace(":0", f":{client.port}"))
                cairn.start()
                reply = client.post(COMPLETION, **fields)
                self.assertEqual(reply.status, 200, reply.text)
                self.assertEqual(reply.json["choices"][0]["text"], answer)
                self.assertEqual(cached(reply.json["usage"]), 0)
                self.assertIn("is given up", cairn.compute.log())
                self.assertEqual(len(self.kept(cairn)), 1)
                self.assertGreater(cached(client.post(COMPLETION, **fields).json["usage"]), 0)

    def test_who_leaves_early_leaves_nothing_behind(self):
        with Cairn(compute_config=CONFIG + "http_kept_conversation_count_max: 2\nprefill_chunk_tokens: 64\n") as cairn:
            client = Client(cairn)
            for number in range(12):
                messages = [user(f"{number} " * 500)]
                connection, _ = client.open_stream(messages=messages, max_tokens=1)
                connection.close()
                # What the one before has computed is used, whenever it was left.
                Chat(client, messages).ask(max_tokens=1)
            wait_until(lambda: len(self.kept(cairn)) == 2, "the end of what was left")

    def test_one_that_somebody_reads_is_deleted_later(self):
        with Cairn(kv="ram", compute_config=CONFIG + "http_kept_conversation_count_max: 1\n") as cairn:
            chats = [Chat(Client(cairn), [user(f"{number} " * 40)]) for number in range(3)]
            chats[0].ask()
            session, = self.kept(cairn)
            number = str(session["conversation_id"])
            reader = cairn.popen("generate", "More:", "--conversation", number, "--tokens", "3000", "--ignore-end")
            self.assertTrue(reader.read(1))
            chats[1].ask()
            self.assertEqual(len(self.kept(cairn)), 2)
            reader.terminate()
            reader.communicate()
            wait_until(lambda: cairn.run("sessions", "show", number).returncode == 0, "end of the generation")
            chats[2].ask()
            session, = self.kept(cairn)
            self.assertNotEqual(str(session["conversation_id"]), number)

    def test_zero_deletes_what_was_kept_before(self):
        with Cairn(compute_config=CONFIG) as cairn:
            client = Client(cairn)
            Chat(client).ask(QUESTIONS[0])
            own = cairn.generate("Mira", "--tokens", "2")["conversation_id"]
            cairn.compute.stop()
            cairn.write_compute_config(CONFIG.replace(":0", f":{client.port}")
                                       + "http_kept_conversation_count_max: 0\n")
            cairn.compute.start()
            self.assertEqual([session["conversation_id"] for session in cairn.sessions()], [own])

    def test_another_store_keeps_what_has_the_same_id(self):
        with Cairn(compute_config=CONFIG + "http_kept_conversation_count_max: 1\n") as cairn:
            client = Client(cairn)
            Chat(client).ask(QUESTIONS[0])
            session, = self.kept(cairn)
            cairn.kv.stop()
            os.rename(cairn.path("store"), cairn.path("other-store"))
            cairn.kv.start()
            own = cairn.generate("Mira", "--tokens", "2")["conversation_id"]
            self.assertEqual(own, session["conversation_id"])
            self.assertEqual(client.post(COMPLETION, prompt="It rains", max_tokens=1).status, 200)
            self.assertEqual(len(self.kept(cairn)), 1)
            self.assertIn(own, [session["conversation_id"] for session in cairn.sessions()])

    def test_without_a_seed_it_is_random_also_behind_a_seed(self):
        with Cairn(kv="ram", compute_config=CONFIG) as cairn:
            client = Client(cairn)
            prompt = list(range(300, 340))
            answers = []
            for _ in range(2):
                client.post(COMPLETION, prompt=prompt, max_tokens=1, seed=5, logit_bias={"350": 100})
                reply = client.post(COMPLETION, prompt=[*prompt, 350, 351], max_tokens=20, temperature=5).json
                self.assertEqual(cached(reply["usage"]), len(prompt) + 1)
                answers.append(reply["choices"][0]["text"])
                session, = self.kept(cairn)
                cairn.succeed("sessions", "delete", str(session["conversation_id"]))
            self.assertNotEqual(*answers)

    def test_labels_of_the_daemon_are_refused(self):
        with Cairn(kv="ram", compute_config=CONFIG) as cairn:
            for arguments in (("generate", "Mira", "--label", "cairn:http 127.0.0.1:80"),
                              ("sessions", "fork", "1", "--label", "cairn:")):
                done = cairn.run(*arguments)
                self.assertEqual(done.returncode, 1)
                self.assertIn(b"the daemon's own", done.stderr)
            self.assertEqual(cairn.sessions(), [])

    def test_kept_conversations_give_way_when_the_flash_fills(self):
        with Cairn(compute_config=CONFIG + "http_kept_conversation_count_max: 64\n",
                   extent_file_bytes=8 << 20) as cairn:
            client = Client(cairn)
            counts = []
            for number in range(8):
                reply = client.post(COMPLETION, prompt=f"{number} " * 500, max_tokens=1)
                self.assertEqual(reply.status, 200, reply.text)
                kept = self.kept(cairn)
                counts.append(len(kept))
                self.assertLess(sum(session["flash_bytes"] for session in kept), 6 << 20)
            self.assertGreater(max(counts), 1, counts)
            self.assertLess(max(counts), 8, counts)
            # Also for who comes over gRPC.
            cairn.generate("x " * 1250, "--tokens", "1")
            self.assertLess(len(self.kept(cairn)), counts[-1])

    def test_kept_conversations_go_when_somebody_else_finds_the_flash_full(self):
        with Cairn(compute_config=CONFIG, extent_file_bytes=4 << 20) as cairn:
            client = Client(cairn)
            for number in range(2):
                client.post(COMPLETION, prompt=f"{number} " * 250, max_tokens=1)
            self.assertEqual(len(self.kept(cairn)), 2)
            # Its prompt would fit.
            arguments = ("generate", "x", "--tokens", "1300", "--ignore-end")
            done = cairn.run(*arguments)
            self.assertIn(b"flash is full", done.stderr)
            self.assertEqual(self.kept(cairn), [])


if __name__ == "__main__":
    unittest.main()

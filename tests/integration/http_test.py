"""The OpenAI-compatible HTTP endpoint of real daemons: what clients get, and what is refused.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/http_test.py
"""
import http.client
import json
import os
import re
import select
import socket
import subprocess
import tempfile
import unittest

import daemons
from daemons import Cairn, DEMO_TEXT, MODEL_END_TOKEN, wait_until

NO_END = {MODEL_END_TOKEN: -100}
JSON_TYPE = {"Content-Type": "application/json"}
CONFIG = 'chat_template: "chatml"\nhttp_listen: "127.0.0.1:0"\n'
CHAT = "/v1/chat/completions"
COMPLETION = "/v1/completions"
HELLO = [{"role": "user", "content": "What is the code of the green lantern?"}]
QUESTION = "\nQ: What is the code of the green lantern?\nA:"
ANSWER = " The code of the green lantern is 9605."


def port_of(cairn):
    """Of the compute node's last start."""
    return int(re.findall(r": ready .* http=127\.0\.0\.1:(\d+)", cairn.compute.log())[-1])


class Reply:
    def __init__(self, response):
        self.status = response.status
        self.headers = response.headers
        self.text = response.read().decode()
        is_json = self.text and response.headers["Content-Type"] == "application/json"
        self.json = json.loads(self.text) if is_json else None


class Client:
    def __init__(self, cairn, headers=None, port=None):
        self.port = port or port_of(cairn)
        self.headers = headers or {}

    def connect(self):
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=daemons.RUN_TIMEOUT_S)

    def ask(self, method, path, body=None, headers=None):
        connection = self.connect()
        connection.request(method, path, body, {**self.headers, **(headers or {})})
        reply = Reply(connection.getresponse())
        connection.close()
        return reply

    def post(self, path, **fields):
        return self.ask("POST", path, json.dumps(fields), JSON_TYPE)

    def stream(self, path, **fields):
        """-> the data of every event, the last one checked to be [DONE]."""
        reply = self.post(path, stream=True, **fields)
        assert reply.status == 200, reply.text
        assert reply.headers["Content-Type"] == "text/event-stream"
        # On a busy machine also comments that say what is waited for.
        lines = [line for line in reply.text.split("\n\n") if not line.startswith(": ")]
        assert lines[-2:] == ["data: [DONE]", ""], lines[-2:]
        assert all(line.startswith("data: ") for line in lines[:-1]), lines
        return [json.loads(line[6:]) for line in lines[:-2]]

    def open_stream(self, **fields):
        """-> connection and response of a stream that has begun."""
        connection = self.connect()
        connection.request("POST", CHAT, json.dumps({"messages": HELLO, "stream": True, **fields}), JSON_TYPE)
        response = connection.getresponse()
        assert response.status == 200, response.read()
        line = response.readline()
        while line.startswith(b": ") or line == b"\n":
            line = response.readline()
        assert line.startswith(b"data: "), line
        return connection, response


def text_of(chunks):
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    return "".join(c["text"] if "text" in c else c["delta"].get("content", "") for c in choices)


class HttpTest(daemons.SharedCairnTest):
    EXTENT_FILE_BYTES = 512 << 20

    @classmethod
    def setUpClass(cls):
        cls.cairn = Cairn(compute_config=CONFIG, extent_file_bytes=cls.EXTENT_FILE_BYTES)
        cls.cairn.start()
        cls.client = Client(cls.cairn)

    def refuse(self, reply, status, words, kind="invalid_request_error", param=None, code=None):
        self.assertEqual(reply.status, status, reply.text)
        error = reply.json["error"]
        self.assertEqual((error["type"], error["param"], error["code"]), (kind, param, code), reply.text)
        for word in words:
            self.assertIn(word, error["message"])

    def test_models_and_health(self):
        models = self.client.ask("GET", "/v1/models").json
        self.assertEqual([model["id"] for model in models["data"]], ["retrieval-3m"])
        self.assertEqual(self.client.ask("GET", "/v1/models/retrieval-3m").json, models["data"][0])
        self.refuse(self.client.ask("GET", "/v1/models/other"), 404, ["other", "retrieval-3m"],
                    code="model_not_found")
        self.assertEqual(self.client.ask("GET", "/health").json, {"status": "ok"})

    def test_completion_finds_the_answer_as_over_grpc(self):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            prompt = file.read() + QUESTION
        reply = self.client.post(COMPLETION, prompt=prompt, temperature=0, stop="\n", max_tokens=50)
        self.assertEqual(reply.status, 200, reply.text)
        self.assertEqual(reply.json["choices"][0]["text"], ANSWER)
        self.assertEqual(reply.json["choices"][0]["finish_reason"], "stop")
        self.assertGreater(reply.json["usage"]["prompt_tokens"], 4000)

    def test_equal_seeds_give_equal_text_whole_streamed_and_over_grpc(self):
        sampling = dict(temperature=1.3, seed=11, min_p=0.02, top_k=50, repeat_penalty=1.2, presence_penalty=0.3,
                        frequency_penalty=0.2, repeat_last_n=100, logit_bias={"300": 1.5, "301": -100}, max_tokens=40)
        whole = self.client.post(COMPLETION, prompt="Mira keeps", **sampling).json["choices"][0]["text"]
        self.assertEqual(text_of(self.client.stream(COMPLETION, prompt="Mira keeps", **sampling)), whole)
        over_grpc = self.cairn.generate(
            "Mira keeps", "--temperature", "1.3", "--seed", "11", "--min-p", "0.02", "--top-k", "50",
            "--repeat-penalty", "1.2", "--presence-penalty", "0.3", "--frequency-penalty", "0.2",
            "--repeat-last-n", "100", "--logit-bias", "300=1.5", "--logit-bias", "301=-100", "--tokens", "40")
        self.assertEqual(whole, over_grpc["text"])
        chat = self.client.post(CHAT, messages=HELLO, **sampling).json["choices"][0]["message"]["content"]
        self.assertEqual(text_of(self.client.stream(CHAT, messages=HELLO, **sampling)), chat)

    def test_streamed_chat_has_role_text_reason_and_usage(self):
        chunks = self.client.stream(CHAT, messages=HELLO, max_tokens=4, model="any name",
                                    stream_options={"include_usage": True})
        self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": ""})
        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], "length")
        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], 4)
        self.assertEqual({chunk["model"] for chunk in chunks}, {"retrieval-3m"})
        self.assertEqual(len({chunk["id"] for chunk in chunks}), 1)

    def test_log_probabilities(self):
        choice = self.client.post(CHAT, messages=HELLO, max_tokens=4, temperature=0, logprobs=True,
                                  top_logprobs=2).json["choices"][0]
        content = choice["logprobs"]["content"]
        self.assertEqual(b"".join(bytes(token["bytes"]) for token in content).decode(), choice["message"]["content"])
        self.assertEqual([token["token"] for token in content],
                         [token["top_logprobs"][0]["token"] for token in content])

    def test_refusals_name_the_field_or_the_limit(self):
        self.refuse(self.client.post(CHAT, messages=HELLO, tools=[{}]), 400, ["tools"], param="tools")
        self.refuse(self.client.post(CHAT, messages=HELLO, logit_bias={"99999999": 1}), 400, ["99999999"])
        self.refuse(self.client.post(CHAT, messages=[{"role": "assistant", "content": "x"}]), 400, ["assistant"],
                    param="messages")
        self.refuse(self.client.post(COMPLETION, prompt=[1 << 30]), 400, [str(1 << 30)])
        self.refuse(self.client.post(COMPLETION, prompt="x " * 40000), 400, ["context is 32768"],
                    code="context_length_exceeded")
        self.refuse(self.client.post(COMPLETION, prompt="x", stop=["s"] * 17), 400, ["17"])
        self.refuse(self.client.ask("POST", CHAT, "{", JSON_TYPE), 400, ["JSON"])
        self.refuse(self.client.ask("POST", CHAT, "{}", {"Content-Type": "text/plain"}), 415, ["application/json"])
        latin = {"Content-Type": 'application/json; charset="latin1"'}
        self.refuse(self.client.ask("POST", CHAT, "{}", latin), 415, ["UTF-8"])
        utf8 = {"Content-Type": "application/json ; Charset=UTF-8"}
        self.refuse(self.client.ask("POST", CHAT, "{}", utf8), 400, ["messages"], param="messages")
        self.refuse(self.client.ask("GET", "/v1/other"), 404, ["/v1/other"], code="unknown_url")
        self.refuse(self.client.ask("GET", CHAT), 405, ["POST"])
        self.refuse(self.client.ask("OPTIONS", CHAT), 405, ["POST"])
        connection = self.client.connect()
        connection.putrequest("POST", CHAT)
        connection.putheader("Content-Type", "application/json")
        connection.putheader("Content-Length", str(17 << 20))
        connection.endheaders()  # refused before it is sent
        self.refuse(Reply(connection.getresponse()), 413, ["16777216"])
        connection.close()

    def test_other_names_of_this_machine_are_refused(self):
        for host in ("evil.example", f"evil.example:{self.client.port}", ""):
            self.refuse(self.client.ask("GET", "/v1/models", headers={"Host": host}), 403, ["Host"],
                        kind="permission_error")
        # The other port: what a client at the end of a tunnel says.
        for host in (f"localhost:{self.client.port}", "localhost:9", "localhost"):
            reply = self.client.ask("GET", "/v1/models", headers={"Host": host})
            self.assertEqual(reply.status, 200, host)
            self.assertNotIn("Access-Control-Allow-Origin", reply.headers)

    def test_web_pages_of_others_are_refused(self):
        own = f"http://127.0.0.1:{self.client.port}"
        self.assertEqual(self.client.ask("GET", "/v1/models", headers={"Origin": own}).status, 200)
        for headers in ({"Origin": "http://evil.example"}, {"Sec-Fetch-Site": "cross-site"}):
            self.refuse(self.client.ask("GET", "/v1/models", headers=headers), 403, ["web page"],
                        kind="permission_error")
            self.refuse(self.client.ask("POST", COMPLETION, json.dumps({"prompt": "x"}), {**headers, **JSON_TYPE}), 403,
                        ["web page"], kind="permission_error")

    def test_long_headers_are_taken_up_to_the_limit_and_named_beyond_it(self):
        for size, status in ((8200, 200), (16000, 200), (17000, 413)):
            reply = self.client.ask("GET", "/v1/models", headers={"Authorization": "Bearer " + "a" * size})
            self.assertEqual(reply.status, status, size)
        for size in (1025, 8000, 20000):
            self.assertEqual(self.client.ask("GET", "/" + "a" * size).status, 414, size)

    def test_names_of_methods_types_and_schemes_are_understood_as_http_has_them(self):
        head = self.client.ask("HEAD", "/health")
        self.assertEqual((head.status, head.text), (200, ""))
        self.assertEqual(self.client.ask("HEAD", CHAT).status, 405)
        body = json.dumps({"prompt": "x", "max_tokens": 1})
        for kind in ("application/json; charset=utf-8", "Application/JSON", "application/json\t;charset=utf-8"):
            self.assertEqual(self.client.ask("POST", COMPLETION, body, {"Content-Type": kind}).status, 200, kind)

    def test_garbage_leaves_the_daemon_serving(self):
        for garbage in (b"\x00" * 100000, os.urandom(50000), b"GET / HTTP/1.1\r\n" * 3000, b"POST " + b"a" * 100000,
                        b"POST /v1/completions HTTP/1.1\r\nContent-Length: -5\r\n\r\n",
                        b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"):
            with socket.create_connection(("127.0.0.1", self.client.port)) as connection:
                try:
                    connection.sendall(garbage)
                    connection.shutdown(socket.SHUT_WR)
                    while connection.recv(65536):
                        pass
                except (BrokenPipeError, ConnectionResetError):
                    pass
        self.assertEqual(self.client.ask("GET", "/health").status, 200)

    def test_a_client_that_goes_away_ends_its_generation(self):
        for stream in (True, False):
            with self.subTest(stream=stream):
                before = self.cairn.compute.log().count("status=CANCELLED")
                if stream:
                    connection, response = self.client.open_stream(max_tokens=20000, logit_bias=NO_END)
                    response.close()
                else:
                    connection = self.client.connect()
                    connection.request("POST", COMPLETION, json.dumps(
                        {"prompt": "x", "max_tokens": 20000, "logit_bias": NO_END}), JSON_TYPE)
                connection.close()
                wait_until(lambda: self.cairn.compute.log().count("status=CANCELLED") > before, "cancellation")

    def test_a_bias_for_the_token_that_ends_a_text_ends_it(self):
        reply = self.client.post(COMPLETION, prompt="x", max_tokens=5, logit_bias={MODEL_END_TOKEN: 100})
        self.assertEqual(reply.json["choices"][0]["finish_reason"], "stop")


class HttpOptionsTest(unittest.TestCase):
    def test_key_is_asked_for_and_compared(self):
        with Cairn(kv="ram") as cairn:
            cairn.compute.stop()
            key = cairn.path("key")
            with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
                file.write("sk-secret-1234\n")
            cairn.write_compute_config(CONFIG + f'http_api_key_path: "{key}"\n')
            cairn.compute.start()
            client = Client(cairn)
            for headers in ({}, {"Authorization": "Bearer sk-secret-1235"}, {"Authorization": "Bearer "},
                            {"Authorization": "Basic sk-secret-1234"}, {"Authorization": "sk-secret-1234"}):
                reply = client.ask("GET", "/v1/models", headers=headers)
                self.assertEqual((reply.status, reply.json["error"]["code"]), (401, "invalid_api_key"), headers)
            for scheme in ("Bearer", "bearer"):
                right = {"Authorization": f"{scheme} sk-secret-1234"}
                self.assertEqual(client.ask("GET", "/v1/models", headers=right).status, 200, scheme)
            self.assertEqual(client.ask("GET", "/health").status, 200)
            cairn.compute.stop()
            os.chmod(key, 0o640)
            cairn.compute.start(wait=False)
            self.assertNotEqual(cairn.compute.process.wait(daemons.STOP_TIMEOUT_S), 0)
            self.assertIn("chmod 600", cairn.compute.log())
            # Nobody writes to a pipe that the configuration names by mistake.
            os.unlink(key)
            os.mkfifo(key, 0o600)
            cairn.compute.start(wait=False)
            self.assertEqual(cairn.compute.process.wait(daemons.STOP_TIMEOUT_S), 1)
            self.assertIn("is no file", cairn.compute.log())

    def test_special_tokens_stop_by_name_and_by_id_and_are_never_shown(self):
        with tempfile.TemporaryDirectory() as folder:
            model = os.path.join(folder, "m.gguf")
            subprocess.run([daemons.binary("cairn-make-model"), "--preset", "tiny-qwen2", "-o", model], check=True,
                           stdout=subprocess.DEVNULL)
            with Cairn(kv="ram", model=model, compute_config=CONFIG) as cairn:
                client = Client(cairn)
                start = 574  # <|im_start|>
                fields = dict(max_tokens=5, temperature=0, logit_bias={str(start): 100})
                for prompt in (dict(prompt="Hi"), dict(messages=HELLO)):
                    path = CHAT if "messages" in prompt else COMPLETION
                    for stop, count in (({}, 5), (dict(stop="<|im_start|>"), 1), (dict(stop=["x", "start|><|im_"]), 2),
                                        (dict(stop_token_ids=[start]), 1), (dict(stop="<|im_start|>user"), 5)):
                        chunks = client.stream(path, **prompt, **fields, **stop,
                                               stream_options={"include_usage": True})
                        self.assertEqual(text_of(chunks), "")
                        reason = "length" if count == 5 else "stop"
                        self.assertEqual(chunks[-2]["choices"][0]["finish_reason"], reason, stop)
                        self.assertEqual(chunks[-1]["usage"]["completion_tokens"], count)

    def test_a_context_must_hold_the_prompt_and_a_token_of_the_answer(self):
        with Cairn(kv="ram", compute_config=CONFIG + "context_tokens_max: 40\n") as cairn:
            client = Client(cairn)
            for count in (40, 41):
                reply = client.post(COMPLETION, prompt=[300] * count)
                self.assertEqual((reply.status, reply.json["error"]["code"]), (400, "context_length_exceeded"))
            reply = client.post(COMPLETION, prompt=[300] * 39).json
            self.assertEqual(reply["usage"]["completion_tokens"], 1)
            self.assertEqual(reply["choices"][0]["finish_reason"], "length")

    def test_only_loopback_is_served_and_nothing_by_default(self):
        with Cairn(kv="ram") as cairn:
            self.assertNotIn("http=", cairn.compute.log())
            self.assertNotIn(" warning ", cairn.compute.log())
            cairn.compute.stop()
            cairn.write_compute_config('http_listen: "0.0.0.0:8080"\n')
            cairn.compute.start(wait=False)
            self.assertEqual(cairn.compute.process.wait(daemons.STOP_TIMEOUT_S), 2)
            self.assertIn("not loopback", cairn.compute.log())

    def test_while_the_model_loads_everything_is_503(self):
        with socket.create_server(("127.0.0.1", 0)) as server:
            port = server.getsockname()[1]
        # Without its KV node it waits for that before it reads the model.
        config = f'http_listen: "127.0.0.1:{port}"\nchat_template: "chatml"\nkv_wait_seconds: 60\n'
        cairn = Cairn(compute_config=config)
        try:
            cairn.compute.start(wait=False)
            wait_until(lambda: "waiting for cairn-kv-node" in cairn.compute.log(), "start")
            client = Client(cairn, port=port)
            for reply in (client.ask("GET", "/health"), client.ask("GET", "/v1/models"),
                          client.post(COMPLETION, prompt="x"), client.post(CHAT, messages=HELLO, stream=True)):
                self.assertEqual(reply.status, 503, reply.text)
                self.assertEqual(reply.headers["Retry-After"], "2")
                self.assertEqual(reply.json["error"]["type"], "server_error")
                self.assertIn("loading", reply.json["error"]["message"])
            cairn.kv.start()
            wait_until(lambda: client.ask("GET", "/health").status == 200, "end of loading")
            self.assertEqual(client.post(CHAT, messages=HELLO, max_tokens=1).status, 200)
            self.assertEqual(cairn.stop(), [0, 0])
            # A client that keeps its connection does not keep the daemon from stopping while it loads.
            cairn.compute.start(wait=False)
            wait_until(lambda: cairn.compute.log().count("waiting for cairn-kv-node") == 2, "second start")
            connection = client.connect()
            connection.request("GET", "/health")
            self.assertEqual(Reply(connection.getresponse()).status, 503)
            cairn.compute.process.terminate()
            cairn.compute.process.wait(daemons.STOP_TIMEOUT_S)
            connection.close()
        finally:
            cairn.__exit__(None, None, None)

    def test_template_of_no_known_family_is_told_at_start_and_to_those_who_send_messages(self):
        with Cairn(kv="ram") as cairn:
            cairn.compute.stop()
            model = cairn.path("model.gguf")
            daemons.write_model_with_template(model, "{% for m in messages %}### {{ m.role }}{% endfor %}")
            cairn.model = model
            cairn.write_compute_config('http_listen: "127.0.0.1:0"\n')
            cairn.compute.start()
            self.assertRegex(cairn.compute.log(), r"warning .*: chat template: .* is of no family that Cairn knows: "
                                                  r"choose the nearest with --chat-template NAME \(chatml, ")
            client = Client(cairn)
            reply = client.post(CHAT, messages=HELLO)
            self.assertEqual(reply.status, 400, reply.text)
            self.assertIn("--chat-template NAME", reply.json["error"]["message"])
            self.assertEqual(client.post(COMPLETION, prompt="x", max_tokens=1).status, 200)
            cairn.compute.stop()
            # One that is known needs no choice.
            daemons.write_model_with_template(model, "{% for m in messages %}<|im_start|>{{ m.role }}{% endfor %}")
            cairn.compute.start()
            self.assertEqual(cairn.compute.log().count("chat template: the model file's"), 1)
            self.assertEqual(Client(cairn).post(CHAT, messages=HELLO, max_tokens=1).status, 200)

    def test_full_store_answers_507(self):
        with open(DEMO_TEXT, encoding="utf-8") as file:
            prompt = file.read()
        with Cairn(kv="ram", compute_config=CONFIG + "kv_ram_bytes: 1048576\n") as cairn:
            client = Client(cairn)
            reply = client.post(COMPLETION, prompt=prompt, max_tokens=2)
            self.assertEqual(reply.status, 507, reply.text)
            error = reply.json["error"]
            self.assertEqual((error["type"], error["code"]), ("server_error", "insufficient_storage"), error)
            # A stream has begun by then.
            streamed = client.post(COMPLETION, prompt=prompt, max_tokens=2, stream=True)
            last = json.loads(streamed.text.strip().split("\n\n")[-1][6:])
            self.assertEqual(last["error"]["code"], "insufficient_storage")
            # What failed takes no room: a shorter one runs.
            self.assertEqual(client.post(COMPLETION, prompt="x", max_tokens=2).status, 200)

    def test_full_queue_answers_429_and_stopping_ends_streams_with_an_error(self):
        with Cairn(kv="ram", compute_config=CONFIG + "generation_count_max: 1\n") as cairn:
            client = Client(cairn)
            endless = dict(max_tokens=30000, logit_bias=NO_END)
            first, response = client.open_stream(**endless)
            waiting = {}
            for _ in range(17):  # one more than may wait
                connection = client.connect()
                connection.request("POST", CHAT, json.dumps({"messages": HELLO, **endless}), JSON_TYPE)
                waiting[connection.sock] = connection
            answered = select.select(list(waiting), [], [], daemons.RUN_TIMEOUT_S)[0]
            self.assertEqual(len(answered), 1)
            refused = waiting.pop(answered[0])
            reply = Reply(refused.getresponse())
            refused.close()
            self.assertEqual(reply.status, 429, reply.text)
            self.assertEqual(reply.headers["Retry-After"], "2")
            self.assertEqual(reply.json["error"]["type"], "rate_limit_error")
            cairn.compute.process.terminate()
            last = [line for line in response.read().decode().split("\n\n") if line][-1]
            self.assertIn("stopping: ask again", json.loads(last[6:])["error"]["message"])
            for connection in waiting.values():
                self.assertEqual(connection.getresponse().status, 503)
                connection.close()
            first.close()
            self.assertEqual(cairn.compute.process.wait(daemons.STOP_TIMEOUT_S), 0)


if __name__ == "__main__":
    unittest.main(verbosity=2)

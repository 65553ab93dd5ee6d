"""What users see while cairn-kv-node is away: health, status, and streams that say what they wait for.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/kv_away_test.py
"""
import json
import unittest

import daemons
from daemons import Cairn, wait_until
from http_test import CHAT, CONFIG, HELLO, NO_END, Client, text_of

WAITING = ": waiting for cairn-kv-node"


def read_until(response, found):
    """-> the lines of a stream up to the first that is wanted, or to the end."""
    lines = []
    while not (lines and found(lines[-1])):
        line = response.readline().decode()
        if not line:
            break
        lines.append(line.rstrip("\n"))
    return lines


# So many that the KV node is killed long before the last one.
TOKENS = 1200


class KvAwayTest(unittest.TestCase):
    def test_health_and_streams_tell_and_go_on_when_it_is_back(self):
        with Cairn(compute_config=CONFIG) as cairn:
            client = Client(cairn)
            whole = client.post(CHAT, messages=HELLO, max_tokens=TOKENS, seed=3, logit_bias=NO_END)
            self.assertEqual(whole.status, 200, whole.text)
            self.assertEqual(client.ask("GET", "/health").json, {"status": "ok"})
            connection, response = client.open_stream(max_tokens=TOKENS, seed=3, logit_bias=NO_END)
            lines = read_until(response, lambda line: line.startswith("data: "))
            cairn.kv.kill()

            lines += read_until(response, lambda line: line in (WAITING, "data: [DONE]"))
            self.assertEqual(lines[-1], WAITING)
            health = client.ask("GET", "/health")
            self.assertEqual((health.status, health.headers["Retry-After"]), (503, "2"), health.text)
            self.assertIn("cairn-kv-node does not answer", health.json["error"]["message"])
            status = cairn.run("status", "--json")
            self.assertNotEqual(status.returncode, 0)
            self.assertFalse(json.loads(status.stdout)["serves"])
            self.assertIn(b"cairn-kv-node does not answer", status.stderr)

            cairn.kv.start()
            lines += read_until(response, lambda line: line == "data: [DONE]")
            self.assertEqual(lines[-1], "data: [DONE]")
            chunks = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
            self.assertEqual(text_of(chunks), whole.json["choices"][0]["message"]["content"])
            connection.close()
            wait_until(lambda: client.ask("GET", "/health").status == 200, "health")
            cairn.status()
            log = cairn.compute.log()
            self.assertIn("cairn-kv-node does not answer", log)
            # Each loss is told of once, and so is its end; on a busy machine there may be more than this one.
            self.assertEqual(log.count("cairn-kv-node does not answer"), log.count("cairn-kv-node serves again"),
                             log[-3000:])
            self.assertEqual(cairn.stop(), [0, 0])


if __name__ == "__main__":
    unittest.main(verbosity=2)

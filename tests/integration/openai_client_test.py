"""An unmodified OpenAI client, the npm package openai, against the HTTP endpoint.

The package is fetched from the npm registry (npm_config_registry, ~/.npmrc or npm's own) into a folder of the test.
Without node or the registry nothing is tested, and the status 77 says so.

Run through ctest, or by hand:  CAIRN_BIN_DIR=build/release/bin /usr/bin/python3 tests/integration/openai_client_test.py
"""
import base64
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import unittest
import urllib.request

import daemons
from daemons import Cairn, wait_until

# The newest that runs on Debian 12's node and has no dependencies.
VERSION = "5.23.2"
SHA512 = "MQBzmTulj+MM5O8SKEk/gL8a7s5mktS9zUtAkU257WjvobGc9nKcBuVwjyEEcb9SI8a8Y2G/mzn3vm9n1Jlleg=="
PACKAGE_BYTES_MAX = 16 << 20
FETCH_TIMEOUT_S = 60
SKIPPED = 77
SCRIPT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "openai_client.cjs")
KEY = "sk-local-1234"


def registry():
    for name in ("npm_config_registry", "NPM_CONFIG_REGISTRY"):
        if os.environ.get(name):
            return os.environ[name]
    try:
        with open(os.path.expanduser("~/.npmrc"), encoding="utf-8") as file:
            found = re.search(r"^\s*registry\s*=\s*(\S+)", file.read(), re.MULTILINE)
    except OSError:
        found = None
    return found.group(1) if found else "https://registry.npmjs.org/"


def skip(reason):
    print(f"SKIPPED: openai_client_test: {reason}; no OpenAI client was tested", flush=True)
    sys.exit(SKIPPED)


def install(folder):
    """The package in folder/node_modules, or the end of the test."""
    if shutil.which("node") is None:
        skip("there is no node (Debian: nodejs)")
    url = f"{registry().rstrip('/')}/openai/-/openai-{VERSION}.tgz"
    try:
        with urllib.request.urlopen(url, timeout=FETCH_TIMEOUT_S) as response:
            package = response.read(PACKAGE_BYTES_MAX)
    except (OSError, ValueError) as error:
        skip(f"the npm registry does not answer: {url}: {error}")
    digest = base64.b64encode(hashlib.sha512(package).digest()).decode()
    # Not skipped: whoever answers is not the registry.
    assert digest == SHA512, f"{url} has sha512 {digest}, not {SHA512}"
    with tarfile.open(fileobj=io.BytesIO(package), mode="r:gz") as archive:
        for member in archive.getmembers():
            plain = (member.isfile() or member.isdir()) and ".." not in member.name
            assert plain and (member.name + "/").startswith("package/"), member.name
        archive.extractall(os.path.join(folder, "node_modules"))
    os.rename(os.path.join(folder, "node_modules", "package"), os.path.join(folder, "node_modules", "openai"))


class OpenAiClientTest(unittest.TestCase):
    folder = ""

    def test_an_unmodified_client_streams_a_chat(self):
        script = shutil.copy(SCRIPT, self.folder)
        key = os.path.join(self.folder, "key")
        with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
            file.write(KEY)
        config = f'chat_template: "chatml"\nhttp_listen: "127.0.0.1:0"\nhttp_api_key_path: "{key}"\n'
        with Cairn(compute_config=config, extent_file_bytes=256 << 20) as cairn:
            self.check(cairn, self.run_script(script, cairn))
            self.assertEqual(cairn.stop(), [0, 0])

    def run_script(self, script, cairn):
        port = re.search(r"http=127\.0\.0\.1:(\d+)", cairn.compute.log()).group(1)
        environment = {**os.environ, "BASE_URL": f"http://127.0.0.1:{port}/v1", "API_KEY": KEY,
                       "END_TOKEN": str(daemons.MODEL_END_TOKEN)}
        done = subprocess.run(["node", script], env=environment, capture_output=True, timeout=daemons.RUN_TIMEOUT_S,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr.decode())
        return json.loads(done.stdout)

    def check(self, cairn, got):
        self.assertEqual(got["models"], ["retrieval-3m"])
        streamed = got["streamed"]
        self.assertGreater(len(streamed["text"]), 10)
        self.assertGreater(streamed["pieces"], 10)
        self.assertIn(streamed["reason"], ("stop", "length"))
        self.assertEqual(streamed["usage"]["completion_tokens"], 24)
        self.assertEqual(got["helper"], streamed["text"])
        self.assertEqual(got["whole"], streamed["text"])
        self.assertEqual(got["logprobs"], 24)
        self.assertTrue(got["completion"])
        self.assertEqual(got["tools"], {"name": "BadRequestError", "status": 400, "param": "tools", "code": None})
        self.assertEqual(got["key"]["name"], "AuthenticationError")
        self.assertEqual((got["missing"]["name"], got["missing"]["code"]), ("NotFoundError", "model_not_found"))
        wait_until(lambda: "status=CANCELLED" in cairn.compute.log(), "end of the generation that nobody reads")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="cairn-openai-") as made:
        install(made)
        OpenAiClientTest.folder = made
        unittest.main(verbosity=2)

"""How long each question of a chat over HTTP waits for the first word of its answer.

Start cairn-compute-node with --http and policy: "full", once so and once with
http_kept_conversation_count_max: 0 too, then
    tests/bench/http_chat.py --port 8080 --words 700
"""
import argparse
import http.client
import json
import random
import time


def ask(port, messages, answer_tokens):
    """-> seconds to the first text, the answer, usage."""
    connection = http.client.HTTPConnection("127.0.0.1", port)
    body = {"messages": messages, "max_tokens": answer_tokens, "temperature": 0, "stream": True,
            "stream_options": {"include_usage": True}}
    start = time.monotonic()
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise SystemExit(response.read().decode())
    first_s, answer, usage = None, "", None
    for line in response:
        if not line.startswith(b"data: {"):
            continue
        chunk = json.loads(line[6:])
        usage = chunk.get("usage") or usage
        text = "".join(choice["delta"].get("content") or "" for choice in chunk["choices"])
        if text and first_s is None:
            first_s = time.monotonic() - start
        answer += text
    connection.close()
    return first_s, answer, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=8080)
    parser.add_argument("--words", type=int, default=700, help="of four random letters, in the first question")
    parser.add_argument("--turns", type=int, default=4)
    parser.add_argument("--answer-tokens", type=int, default=20)
    options = parser.parse_args()
    rng = random.Random(1)
    words = ("".join(rng.choices("abcdefghij", k=4)) for _ in range(options.words))
    messages = [{"role": "user", "content": " ".join(words)}]
    print("turn,prompt_tokens,cached_tokens,first_text_s")
    for turn in range(options.turns):
        first_s, answer, usage = ask(options.port, messages, options.answer_tokens)
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        print(f"{turn + 1},{usage['prompt_tokens']},{cached},{-1 if first_s is None else first_s:.2f}", flush=True)
        messages += [{"role": "assistant", "content": answer},
                     {"role": "user", "content": f"And what about number {turn}?"}]


if __name__ == "__main__":
    main()

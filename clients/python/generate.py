#!/usr/bin/env python3
"""Generates text with Cairn, from Python: a complete client of the compute protocol.

    generate.py [--socket PATH] [--conversation ID] [--tokens N] [--stop TEXT] [--temperature T] [--seed N]
                [--chat] [--system TEXT] [--logprobs N] PROMPT

With --chat the prompt is the user's message, written with the model's chat template, and what follows is the
assistant's answer; without it the text is gone on with as it is. To go on with a conversation send only what is new.

Needs Debian's python3-grpcio, python3-protobuf and protobuf-compiler. Debian's grpc_tools lag behind its protobuf, so
this file makes the message classes with protoc when it starts, and calls the service by its name: three lines for each
call, no generated stubs. An application would run protoc once, when it is built.
"""
import argparse
import contextlib
import importlib
import os
import re
import subprocess
import sys
import tempfile

import grpc

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
PROTO = "cairn/compute/v1/inference.proto"
SERVICE = "/cairn.compute.v1.InferenceService/"


def load_messages(proto=PROTO):
    """-> the module with a protocol's message classes."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(["protoc", f"--proto_path={REPOSITORY}/proto", f"--python_out={folder}", proto], check=True)
        sys.path.insert(0, folder)
        try:
            return importlib.import_module(proto.removesuffix(".proto").replace("/", ".") + "_pb2")
        finally:
            sys.path.remove(folder)


class CairnClient:
    """The calls that a chat program needs; the others look the same. Calls may come from several threads."""

    def __init__(self, socket):
        self.pb = load_messages()
        self.socket = socket
        self._channels = set()  # of the calls that run

    @contextlib.contextmanager
    def _channel(self):
        """A connection for one call, which over a Unix socket costs some milliseconds. Of one that is kept only a
        failed call shows that the daemon was started again meanwhile, and one that was refused waits longer each time
        before it tries again."""
        options = [("grpc.use_local_subchannel_pool", 1)]  # nothing is shared with channels of other calls
        with grpc.insecure_channel("unix:" + self.socket, options=options) as channel:
            self._channels.add(channel)
            try:
                yield channel
            finally:
                self._channels.discard(channel)

    def _unary(self, name, request, reply_class):
        with self._channel() as channel:
            call = channel.unary_unary(SERVICE + name, request_serializer=type(request).SerializeToString,
                                       response_deserializer=reply_class.FromString)
            return call(request, timeout=60)

    def close(self):
        """Ends the calls that run: they fail."""
        for channel in list(self._channels):
            channel.close()

    def status(self):
        """-> GetStatusResponse"""
        return self._unary("GetStatus", self.pb.GetStatusRequest(), self.pb.GetStatusResponse)

    def delete(self, conversation_id):
        """Deletes a conversation."""
        request = self.pb.DeleteConversationRequest(conversation_id=conversation_id)
        self._unary("DeleteConversation", request, self.pb.DeleteConversationResponse)

    def generate(self, **fields):
        """Yields GenerateEvent messages: started, prefill, token, ..., finished; before the first token recomputing,
        too, where what was stored is damaged. Closing the generator cancels."""
        with self._channel() as channel:
            call = channel.unary_stream(SERVICE + "Generate",
                                        request_serializer=self.pb.GenerateRequest.SerializeToString,
                                        response_deserializer=self.pb.GenerateEvent.FromString)
            yield from call(self.pb.GenerateRequest(**fields))


def default_socket():
    """-> $CAIRN_SOCKET, else where cairn-compute-node listens unless its configuration says otherwise."""
    if os.environ.get("CAIRN_SOCKET"):
        return os.environ["CAIRN_SOCKET"]
    if os.environ.get("XDG_RUNTIME_DIR"):
        return os.path.join(os.environ["XDG_RUNTIME_DIR"], "cairn", "compute.sock")
    if os.geteuid() == 0:
        return "/run/cairn/compute.sock"
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "cairn", "compute.sock")


def version():
    """-> Cairn's, as its build description has it."""
    with open(os.path.join(REPOSITORY, "CMakeLists.txt"), encoding="utf-8") as file:
        return re.search(r"VERSION (\d[\d.]*) LANGUAGES", file.read()).group(1)


def main():
    parser = argparse.ArgumentParser(description="Generate text with Cairn.",
                                     epilog="example: generate.py --chat 'What is the code of the red door?'")
    parser.add_argument("prompt")
    parser.add_argument("--version", action="version", version=f"generate.py {version()}")
    parser.add_argument("--socket", default=default_socket(),
                        help="of cairn-compute-node; default: $CAIRN_SOCKET, else where it listens")
    parser.add_argument("--conversation", type=int, default=0, help="continue this conversation")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--stop", action="append", default=[], help="end before this text; may be repeated")
    parser.add_argument("--temperature", type=float, default=0, help="0: always the most likely token")
    parser.add_argument("--seed", type=int, default=0, help="equal seeds give equal text; 0: a random one")
    parser.add_argument("--chat", action="store_true", help="the prompt is a message for the assistant")
    parser.add_argument("--system", default="", help="with --chat: what the model is told first")
    parser.add_argument("--logprobs", type=int, help="show how likely each token was, and the N most likely ones")
    arguments = parser.parse_args()

    client = CairnClient(arguments.socket)
    if arguments.chat:
        told = [{"role": "system", "content": arguments.system}] if arguments.system else []
        prompt = {"messages": {"messages": [*told, {"role": "user", "content": arguments.prompt}]}}
    else:
        prompt = {"text": arguments.prompt}
    events = client.generate(**prompt, conversation_id=arguments.conversation, tokens_max=arguments.tokens,
                             stop=arguments.stop, logprobs=arguments.logprobs is not None,
                             top_logprob_count=arguments.logprobs or 0,
                             sampling={"temperature": arguments.temperature, "seed": arguments.seed})
    conversation = 0
    try:
        for event in events:
            kind = event.WhichOneof("event")
            if kind == "started":
                conversation = event.started.conversation_id
            elif kind == "recomputing" and event.recomputing.reason:
                print(f"generate.py: what is stored is damaged, so {event.recomputing.token_count} tokens are computed "
                      f"again: {event.recomputing.reason}", file=sys.stderr)
            elif kind == "token" and arguments.logprobs is None:
                print(event.token.text, end="", flush=True)
            elif kind == "token":
                # A token's own bytes may be a part of a character.
                print(*(f"{token.text!r} {token.logprob:.3f}"
                        for token in (event.token.logprob, *event.token.top_logprobs)), sep="  ", flush=True)
            elif kind == "finished":
                print()
                print(f"conversation={conversation} tokens={event.finished.generated_token_count} "
                      f"io_engine={event.finished.io_engine}", file=sys.stderr)
    except grpc.RpcError as error:
        print(f"generate.py: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        events.close()
        if conversation:
            print(f"\ngenerate.py: interrupted; what is stored is in conversation {conversation}: go on with "
                  f"--conversation {conversation}", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())

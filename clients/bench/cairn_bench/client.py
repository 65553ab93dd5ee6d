"""The calls of the compute protocol that workloads need, beside those of clients/python/generate.py."""
import dataclasses
import os
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "python"))
from generate import CairnClient  # noqa: E402  pylint: disable=wrong-import-position,import-error


@dataclasses.dataclass(frozen=True)
class Retrieval:
    """How a conversation chooses what it reads; only a new one is told, its forks inherit it."""
    policy: str
    select_percent: float
    select_tokens_min: int
    select_tokens_max: int
    cluster_target_entries: int
    seed: int


class Client(CairnClient):
    """One connection; calls may come from several threads."""

    def fork(self, conversation_id):
        """-> the id of a new conversation with all tokens of this one."""
        request = self.pb.ForkConversationRequest(conversation_id=conversation_id)
        return self._unary("ForkConversation", request, self.pb.ForkConversationResponse).conversation_id

    def store(self, text, retrieval, prefill_tokens_max=0):
        """Computes a text as a new conversation and generates nothing -> its id, the Finished message.

        prefill_tokens_max: only so many tokens are prefilled, the others are computed one by one; 0: all are prefilled.
        """
        conversation, finished = 0, None
        for event in self.generate(text=text, tokens_max=-1, retrieval=dataclasses.asdict(retrieval),
                                   prefill_tokens_max=prefill_tokens_max):
            kind = event.WhichOneof("event")
            if kind == "started":
                conversation = event.started.conversation_id
            elif kind == "finished":
                finished = event.finished
        return conversation, finished

    def answer(self, conversation_id, text, tokens_max, stop):
        """Goes on with a conversation, greedily -> the text, the Finished message."""
        said, finished = [], None
        for event in self.generate(conversation_id=conversation_id, text=text, tokens_max=tokens_max, stop=[stop]):
            kind = event.WhichOneof("event")
            if kind == "token":
                said.append(event.token.text)
            elif kind == "finished":
                finished = event.finished
        return "".join(said), finished

    def close(self):
        """Ends the calls that run: they fail."""
        self.channel.close()


def seconds(duration):
    """-> the seconds of a google.protobuf.Duration."""
    return duration.seconds + duration.nanos / 1e9

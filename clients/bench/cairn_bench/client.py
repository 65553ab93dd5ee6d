"""The calls of the compute protocol that workloads need, beside those of clients/python/generate.py."""
import os
import sys

REPOSITORY = os.path.dirname(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
sys.path.insert(0, os.path.join(REPOSITORY, "clients", "python"))
from generate import CairnClient, load_messages, version  # noqa: E402,F401


def message(text):
    """-> the prompt of a user's message, for Client.store and Client.answer."""
    return {"messages": {"messages": [{"role": "user", "content": text}]}}


class Client(CairnClient):
    """Calls may come from several threads."""

    def fork(self, conversation_id):
        """-> the id of a new conversation with all tokens of this one."""
        request = self.pb.ForkConversationRequest(conversation_id=conversation_id)
        return self._unary("ForkConversation", request, self.pb.ForkConversationResponse).conversation_id

    def store(self, retrieval, prefill_tokens_max=0, **prompt):
        """Computes a prompt, text or tokens, as a new conversation, generates nothing -> its id, the Finished message.

        retrieval: of options.retrieval.
        prefill_tokens_max: only so many tokens are prefilled, the others are computed one by one; 0: all are prefilled.
        """
        conversation, _, finished = _collect(self.generate(
            tokens_max=-1, retrieval=retrieval, prefill_tokens_max=prefill_tokens_max, **prompt))
        return conversation, finished

    def answer(self, conversation_id, tokens_max, stop, **prompt):
        """Goes on with a conversation, greedily -> the text, the Finished message. stop: a text that ends it, or ""."""
        _, said, finished = _collect(self.generate(conversation_id=conversation_id, tokens_max=tokens_max,
                                                   stop=[stop] if stop else [], **prompt))
        return said, finished

    def write(self, conversation_id, count, seed):
        """Begins a line and goes on with exactly count tokens, drawn as the model finds them likely -> the Finished
        message.
        """
        _, _, finished = _collect(self.generate(conversation_id=conversation_id, text="\n", tokens_max=count,
                                                ignore_eos=True, sampling={"temperature": 1, "seed": seed}))
        return finished

    def is_full(self, finished):
        """-> whether a generation ended because the model's context has no more room."""
        return finished.reason == self.pb.FINISH_REASON_CONTEXT

    def token_count(self, text, special=True):
        """-> how many tokens a text is, as a prompt that a conversation begins with; special: False: as a part of one.
        """
        request = self.pb.TokenizeRequest(text=text, special=special)
        return len(self._unary("Tokenize", request, self.pb.TokenizeResponse).ids)

    def decode(self, conversation_id, token, count, on_first=None):
        """Appends a token to a conversation and generates exactly count tokens -> the Finished message.

        on_first: called when the first of them comes; the conversation goes on meanwhile.
        """
        _, _, finished = _collect(self.generate(conversation_id=conversation_id, tokens={"ids": [token]},
                                                tokens_max=count, ignore_eos=True), on_first)
        return finished

    def model(self):
        """-> the Model message of what is served."""
        return self._unary("ListModels", self.pb.ListModelsRequest(), self.pb.ListModelsResponse).models[0]

    def vocab_count(self):
        """-> how many tokens the model knows."""
        return self.model().vocab_count


def _collect(events, on_first=None):
    """-> the conversation's id, the text, the Finished message. on_first: called at the first token."""
    conversation, said, finished = 0, [], None
    for event in events:
        kind = event.WhichOneof("event")
        if kind == "started":
            conversation = event.started.conversation_id
        elif kind == "token":
            if on_first and not said:
                on_first()
            said.append(event.token.text)
        elif kind == "finished":
            finished = event.finished
    return conversation, "".join(said), finished


def seconds(duration):
    """-> the seconds of a google.protobuf.Duration."""
    return duration.seconds + duration.nanos / 1e9

"""Writes documents with facts, and questions that only who has read the right place can answer.

A document is a log book: sentences of a small grammar, facts that are stated once, and nothing that would let them be
guessed. Equal seeds and counts of tokens give equal documents.
"""
import collections
import random

from .task_words import (ADJECTIVES, DAYS, GROUND, MOODS, NAMES, OBJECTS, PEOPLE, PLACES, SOUNDS, STATES, SYLLABLES,
                         TIMES, WEATHER, WORDS)

# The order in which documents of a length are written.
KINDS = ("single", "mixed", "dense")
# A fact that no unused name is found for in so many tries is left out.
NAME_TRIES = 50
# Tokens of a sentence, about: a document is full when none more fits, and dense when there is a fact in each.
SENTENCE_TOKENS, FACT_TOKENS = 20, 14
# How deep the needles of documents of one needle lie, in turn: from the first sentence to the last.
DEPTHS = (0, 1 / 4, 2 / 4, 3 / 4, 1)
# The items of a list may be told in any order. So many are drawn, and the first is the answer: with another number the
# same seed would give other documents.
LIST_ORDERS = 4

# statements: sentences. answer: without the space in front of it.
Fact = collections.namedtuple("Fact", "statements question answer")


def with_article(word):
    return ("an " if word[0] in "aeiou" else "a ") + word


class Writer:
    """Draws sentences. used: names that facts of the document have, so that each question has one answer."""

    def __init__(self, seed):
        self.random, self.used = random.Random(seed), set()

    def filler(self):
        """-> a sentence without a fact, with the space in front of it."""
        chance = self.random.random()
        if chance < .12:
            text = (f"the {self._one(WEATHER)} was {self._one(MOODS + STATES)} and the {self._one(GROUND)} was "
                    f"{self._one(ADJECTIVES)}")
        elif chance < .2:
            text = f"there was {with_article(self._one(ADJECTIVES))} {self._one(OBJECTS)} in the {self._one(PLACES)}"
        else:
            text = f"{self._somebody()} {self._action()}" + self._addition()
        if self.random.random() < .35:
            text = self._one(TIMES) + ", " + text
        text = text[0].upper() + text[1:]
        return (" " if self.random.random() > .12 else "\n") + text + "."

    def _addition(self):
        chance = self.random.random()
        if chance < .25:
            return f", and {self._somebody()} {self._action()}"
        if chance < .35:
            return f", but nobody saw {self._something()}"
        return f" because the {self._one(PLACES)} was {self._one(STATES)}" if chance < .45 else ""

    def _somebody(self):
        chance = self.random.random()
        if chance < .45:
            return self._one(NAMES)
        return "the " + (self._one(MOODS + STATES) + " " if chance < .75 else "") + self._one(PEOPLE)

    def _something(self):
        return "the " + (self._one(ADJECTIVES) + " " if self.random.random() < .6 else "") + self._one(OBJECTS)

    def _action(self):
        one, something = self._one, self._something
        return one((
            lambda: f"walked to the {one(PLACES)}",
            lambda: f"looked at {something()}",
            lambda: f"carried {something()} to the {one(PLACES)}",
            lambda: f"talked with {one(NAMES)} about {something()}",
            lambda: f"waited near the {one(PLACES)}",
            lambda: f"opened {something()}",
            lambda: f"left the {one(PLACES)} and went home",
            lambda: f"cleaned {something()} with {with_article(one(OBJECTS))}",
            lambda: f"found {with_article(one(ADJECTIVES))} {one(OBJECTS)} behind the {one(PLACES)}",
            lambda: f"heard a {one(SOUNDS)} sound from the {one(PLACES)}",
            lambda: f"helped {one(NAMES)} at the {one(PLACES)}",
            lambda: f"slept in the {one(PLACES)} until {one(DAYS)}"))()

    def code(self):
        """-> a Fact, as of all below; None where no name for another one is found."""
        def thing():
            kind = self._one(ADJECTIVES) if self.random.random() < .92 else self._new_word()
            return kind + " " + self._one(OBJECTS)
        what = self._unused("code", thing)
        number = self._number(4)
        return self._fact(f"The code of the {what} is", f"What is the code of the {what}?", number) if what else None

    def secret_word(self):
        def name():
            return self._one(NAMES) if self.random.random() < .8 else self._new_word().capitalize()
        who = self._unused("secret", name)
        return who and self._fact(f"The secret word of {who} is", f"What is the secret word of {who}?", self._word())

    def record(self):
        number = self._unused("record", lambda: str(self.random.randrange(10, 100)))
        return number and self._fact(f"Record {number} says", f"What does record {number} say?",
                                     self._word() + " " + self._word())

    def purchases(self, count):
        """-> a Fact whose answer is a list, in any order."""
        who = self._unused("purchases", lambda: self._one(NAMES))
        if not who:
            return None
        things = self.random.sample(OBJECTS, count)
        orders = [self.random.sample(things, count) for _ in range(LIST_ORDERS)]
        return Fact([f"{who} bought {with_article(thing)}." for thing in things], f"What did {who} buy?",
                    f"{who} bought {', '.join(map(with_article, orders[0]))}.")

    def copies(self, count):
        """-> a Fact whose statements lead from one to the next."""
        words = [self._unused("copies", lambda: self._one(WORDS)) for _ in range(count)]
        if None in words:
            return None
        number = self._unused("number", lambda: self._number(4))
        steps = zip([number, *words], words)
        return Fact([f"Copy {source} to {target}." for source, target in steps], f"Which words hold {number}?",
                    f"The words that hold {number} are {', '.join(words)}.")

    def note(self, count):
        who = self._unused("note", lambda: self._one(NAMES))
        pool = WORDS + OBJECTS + ADJECTIVES + PLACES
        return who and self._fact(f"{who} wrote:", f"What did {who} write?", " ".join(
            self._one(pool) if self.random.random() < .93 else self._number(2) for _ in range(count)))

    @staticmethod
    def _fact(start, question, value):
        return Fact([f"{start} {value}."], question, f"{start} {value}.")

    def _one(self, values):
        return self.random.choice(values)

    def _number(self, digits):
        return str(self.random.randrange(1, 10)) + "".join(str(self.random.randrange(10)) for _ in range(digits - 1))

    def _new_word(self):
        return "".join(self._one(SYLLABLES) for _ in range(self.random.randrange(2, 4)))

    def _word(self):
        return self._new_word() if self.random.random() < .25 else self._one(WORDS)

    def _unused(self, kind, draw):
        for _ in range(NAME_TRIES):
            name = draw()
            if (kind, name) not in self.used:
                self.used.add((kind, name))
                return name
        return None


# Of a mixed document: task, how many facts, what draws one.
MIX = (("multikey8", 8, Writer.code), ("word8", 8, Writer.secret_word), ("record8", 8, Writer.record),
       ("multivalue4", 2, lambda writer: writer.purchases(4)), ("chain5", 2, lambda writer: writer.copies(5)),
       ("note20", 2, lambda writer: writer.note(20)))


def write_document(kind, token_count, count_tokens, generator, depth):
    """-> a text of about so many tokens, its questions in the form of a tasks file.

    kind: one of KINDS. count_tokens: of a sentence -> how many tokens it is. generator: a random.Random. depth: where
    the needle of a document with one lies, 0 to 1.
    """
    writer, sentences, questions = Writer(generator.randrange(1 << 60)), [], []

    def add(task, fact, at=None):
        if fact is None:
            return
        places = [at] if at is not None else sorted(generator.random() for _ in fact.statements)
        sentences.extend((place, " " + statement) for place, statement in zip(places, fact.statements))
        questions.append({"task": task, "question": fact.question, "answer": " " + fact.answer,
                          "depth": round(places[0], 4)})

    if kind == "single":
        add("single", writer.code(), depth)
    elif kind == "dense":
        for _ in range(token_count // FACT_TOKENS):
            add("dense", writer.code())
    else:
        for task, count, draw in MIX:
            for _ in range(count):
                add(task, draw(writer))
    count = sum(count_tokens(text) for _, text in sentences)
    while count < token_count - SENTENCE_TOKENS:
        filler = writer.filler()
        sentences.append((generator.random(), filler))
        count += count_tokens(filler)
    sentences.sort(key=lambda sentence: sentence[0])
    return "".join(text for _, text in sentences)[1:], questions


def write_documents(seed, lengths, counts, count_tokens, count_text, questions_max):
    """Yields documents as a tasks file has them: for each length so many of each of KINDS.

    count_tokens: of a sentence within a text; count_text: of a whole text, with the token that begins it.
    questions_max: of a dense document; which ones are asked is drawn.
    """
    for length in lengths:
        for kind, count in zip(KINDS, counts):
            generator = random.Random(seed * 1000003 + length * 31 + len(kind))
            for number in range(count):
                depth = DEPTHS[number % len(DEPTHS)] * .98 + .01
                context, questions = write_document(kind, length, count_tokens, generator, depth)
                if kind == "dense" and len(questions) > questions_max:
                    questions = generator.sample(questions, questions_max)
                yield {"kind": kind, "seed": seed, "token_count": count_text(context), "context": context,
                       "questions": questions}

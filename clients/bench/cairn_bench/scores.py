"""How well a text answers a question, from 0 to 1, as RULER, LongBench and needle files have it judged.

Functions of the text that a model said and of reference texts; they need no package beside the standard library.
"""
import collections
import difflib
import re
import string

ARTICLES = re.compile(r"\b(?:a|an|the)\b")
PUNCTUATION = str.maketrans("", "", string.punctuation)
NUMBER = re.compile(r"\d+")
# A line with one of these is a comment or the fence of a code block.
NO_CODE = ("`", "#", "//")


def share_named(said, texts):
    """-> the share of texts that occur in the answer, whatever their case."""
    said = said.lower()
    return sum(text.lower() in said for text in texts) / len(texts)


def any_named(said, texts):
    return float(share_named(said, texts) > 0)


def best(measure, said, references):
    """-> the score by the reference that the answer fits best."""
    return max(measure(said, reference) for reference in references)


def words(text):
    """-> the words of a text, without case, punctuation and articles."""
    return ARTICLES.sub(" ", text.lower().translate(PUNCTUATION)).split()


def word_f1(said, reference):
    """-> the harmonic mean of precision and recall of words; a word counts as often as it occurs in both."""
    said, reference = words(said), words(reference)
    common = (collections.Counter(said) & collections.Counter(reference)).total()
    return harmonic_mean(common / len(said), common / len(reference)) if common else 0.0


def rouge_l(said, reference):
    """-> ROUGE-L of whole texts, as the package rouge computes it: sentences end at full stops, and what counts is how
    many different words there are, of both texts and of all longest common subsequences of their sentences.
    """
    said, reference = _sentences(said), _sentences(reference)
    if not said or not reference:
        return 0.0
    common = set()
    for wanted in reference:
        for sentence in said:
            common.update(longest_common(wanted, sentence))
    return harmonic_mean(len(common) / len(set().union(*said)), len(common) / len(set().union(*reference)))


def _sentences(text):
    # Splitting at " " leaves an empty word of a sentence that is only spaces: the package counts it too.
    return [" ".join(part.split()).split(" ") for part in text.split(".") if part]


def longest_common(first, second):
    """-> a longest common subsequence; of several, the one that goes on longest in first."""
    lengths = [[0] * (len(second) + 1) for _ in range(len(first) + 1)]
    for i, one in enumerate(first):
        for j, other in enumerate(second):
            lengths[i + 1][j + 1] = (lengths[i][j] + 1 if one == other else
                                     max(lengths[i][j + 1], lengths[i + 1][j]))
    found, i, j = [], len(first), len(second)
    while i and j:
        if first[i - 1] == second[j - 1]:
            found.append(first[i - 1])
            i, j = i - 1, j - 1
        elif lengths[i - 1][j] > lengths[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return found[::-1]


def class_named(said, reference, classes):
    """-> 1 where the answer names the right class alone; where it names others too, their number divides it.

    A class whose name is a part of the right one's is not counted.
    """
    named = {name for name in classes if name in said and (name == reference or name not in reference)}
    return 1 / len(named) if reference in named else 0.0


def number_named(said, reference):
    """-> the share of the answer's numbers that are the reference's first one."""
    numbers, wanted = NUMBER.findall(said), NUMBER.search(reference)
    return numbers.count(wanted.group()) / len(numbers) if numbers and wanted else 0.0


def code_similarity(said, reference):
    """-> how like the reference the answer's first line of code is, in hundredths: difflib's ratio."""
    line = next((line for line in said.lstrip("\n").split("\n") if not any(mark in line for mark in NO_CODE)), "")
    return round(100 * difflib.SequenceMatcher(None, line, reference).ratio()) / 100


def share_of_words(said, texts, known):
    """-> the share of the different words of texts that occur in the answer, without those of the text `known`."""
    wanted = {word for text in texts for word in words(text)} - set(words(known))
    return len(wanted & set(words(said))) / len(wanted)


def harmonic_mean(first, second):
    return 2 * first * second / (first + second) if first + second else 0.0

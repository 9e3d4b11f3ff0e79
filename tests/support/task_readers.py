"""A slow reading of every task's rule from the tokens alone, written from the definitions, not from the generators."""

import itertools
from collections.abc import Callable

Answers = dict[int, tuple[str, int]]  # place -> (answer, difficulty)


def mqar(words: list[str]) -> Answers:
    pairs, place = {}, 0
    while words[place][0] == "k" and words[place] not in pairs:
        pairs[words[place]] = (words[place + 1], place)
        place += 2
    return {
        i: (pairs[word][0], i - pairs[word][1])
        for i, word in enumerate(words)
        if i >= place and word in pairs
    }


def selective_copy(words: list[str]) -> Answers:
    first = words.index("?")
    items = [(i, word) for i, word in enumerate(words[:first]) if word != "."]
    assert words[first:] == ["?"] * len(items)
    return {first + n: (word, first + n - i) for n, (i, word) in enumerate(items)}


def palindrome(words: list[str]) -> Answers:
    middle = words.index("|")
    word = words[:middle]
    assert words[middle + 1 :] == word[::-1][:-1]
    return {middle + n: (word[middle - 1 - n], 2 * n + 1) for n in range(middle)}


def stack(words: list[str]) -> Answers:
    stacks: dict[str, list] = {}
    found = {}
    for place in range(0, len(words), 3):
        what, name, item = words[place : place + 3]
        if what == "push":
            stacks.setdefault(name, []).append((item, place))
        else:
            top, pushed = stacks[name].pop()
            assert top == item
            found[place + 1] = (top, place - pushed)
    return found


def flip_flop(words: list[str]) -> Answers:
    assert (words[0], words[-2]) == ("w", "r")
    found, bit, written = {}, "", 0
    for place in range(0, len(words), 2):
        if words[place] == "w":
            bit, written = words[place + 1], place
        elif words[place] == "r":
            assert words[place + 1] == bit
            found[place] = (bit, place - written)
        else:
            assert words[place] == "i"
    return found


def parity(words: list[str]) -> Answers:
    return {i: (str(words[: i + 1].count("1") % 2), i + 1) for i in range(1, len(words))}


def permutations(words: list[str]) -> Answers:
    found, points = {}, list(range(1, len(words[0]) + 1))
    for i, word in enumerate(words):
        points = [int(word[point - 1]) for point in points]
        if i:
            found[i] = ("".join(map(str, points)), i + 1)
    return found


def needle(words: list[str]) -> Answers:
    facts = {
        word: (after, i)
        for i, (word, after) in enumerate(itertools.pairwise(words))
        if (word[0], after[0]) == ("k", "v")
    }
    return {len(words) - len(facts) + n: (facts[word][0], len(words) - len(facts) + n - facts[word][1])
            for n, word in enumerate(words[len(words) - len(facts) :])}  # fmt: skip


def noisy_recall(words: list[str]) -> Answers:
    found, last = {}, {}
    for i, word in enumerate(words):
        if word[0] == "k":
            if word in last:
                before, value = last[word]
                assert words[i + 1] == value
                found[i] = (value, i - before)
            last[word] = (i, words[i + 1])
    return found


def fuzzy_recall(words: list[str]) -> Answers:
    """Reads one token after another; where a key that came before is complete, its value has to follow."""
    found, last, place = {}, {}, 0
    runs = [(kind, list(group)) for kind, group in itertools.groupby(words, key=lambda word: word[0])]
    for (kind, key), (_, value) in zip(runs[::2], [*runs[1::2], ("v", [])], strict=False):
        assert kind == "k"
        name, start = tuple(key), place
        if name in last:
            before, known = last[name]
            assert value == known[: len(value)]
            for n, word in enumerate(known):
                if start + len(key) - 1 + n < len(words):
                    found[start + len(key) - 1 + n] = (word, start - before)
            last[name] = (start, known)
        elif value:
            last[name] = (start, value)
        place += len(key) + len(value)
    return found


def induction(words: list[str]) -> Answers:
    """The word ends where its first token comes again; after the last place it goes on the same way."""
    period = words.index(words[0], 1)
    assert len(set(words[:period])) == period
    assert all(words[i] == words[i - period] for i in range(period, len(words)))
    following = [*words[1:], words[len(words) % period]]
    return {i: (word, words[: i + 1].count(words[period - 1])) for i, word in enumerate(following)}


def entity_tracking(words: list[str]) -> Answers:
    """Follows the item in the box that is asked for, from the question back to the beginning."""
    found, swaps = {}, 0
    boxes = dict(word.split(":") for word in words if ":" in word)
    for i, word in enumerate(words[len(boxes) :], len(boxes)):
        if word[0] != "?":
            swaps += 1
            continue
        box = word[1:]
        for earlier in reversed(words[:i]):
            one, _, other = earlier.partition("-")
            if other and box in (one, other):
                box = other if box == one else one
        found[i] = (boxes[box], swaps)
    return found


READERS: dict[str, Callable[[list[str]], Answers]] = {
    reader.__name__: reader
    for reader in (
        *(mqar, selective_copy, palindrome, stack, flip_flop, parity, permutations, needle, noisy_recall),
        *(fuzzy_recall, induction, entity_tracking),
    )
}

"""Commands in advice: what a shell and then Hydra make of a word is the text that was meant."""

import shlex

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf

from analysis.files import word

HARD = [
    *("it's/b", 'q"x/b', "a,b", "(1)/x", "{b}=x", "[x]", " ends ", "1e3", "null", "true", "", "two\nlines"),
    *("a;b|c&d*?", "a${b}c", "\\${x}", "a\\\\${b}", "$HOME/x", "a\\", "a\\'b", 'a\\"b', "~/x", "é ü"),
]  # fmt: skip


@pytest.mark.parametrize("text", HARD)
def test_a_word_survives_the_shell_and_hydra(text: str):
    (override,) = shlex.split(word("runs", text))
    key, _, _ = override.partition("=")
    assert OmegaConf.create({key: OverridesParser.create().parse_override(override).value()}).runs == text


def test_what_needs_no_quotes_gets_none():
    assert word("runs", "results/my_sweep.2") == "runs=results/my_sweep.2"
    assert word("runs", "my results/a") == "'runs=my results/a'"

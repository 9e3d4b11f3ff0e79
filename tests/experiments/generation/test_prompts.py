"""Where prompts come from, and what is said of those that are none."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest

from experiments.configuration.schema import GenerateConfig
from experiments.generation import read_prompts
from zoo import UserError


def read(folder: Path, content: bytes, name: str = "prompts.txt") -> list[str]:
    (folder / name).write_bytes(content)
    return read_prompts(GenerateConfig(file=str(folder / name)))


def test_keys():
    assert read_prompts(GenerateConfig()) == ["The "]
    assert read_prompts(GenerateConfig(prompt="a")) == ["a"]
    assert read_prompts(GenerateConfig(prompt="")) == [""]
    assert read_prompts(GenerateConfig(prompts=["a", "b "])) == ["a", "b "]


def test_a_line_is_a_prompt_as_it_stands(tmp_path: Path):
    assert read(tmp_path, b"one\n two \nthr\xc3\xa9e") == ["one", " two ", "thrée"]
    assert read(tmp_path, b"\xef\xbb\xbfone\r\ntwo\xe2\x80\xa8still two\r\n") == ["one", "two\u2028still two"]


def test_an_object_is_a_prompt_of_any_text(tmp_path: Path):
    content = b'{"prompt": "one\\ntwo", "more": 1}\n{"prompt": ""}\n'
    assert read(tmp_path, content, "prompts.jsonl") == ["one\ntwo", ""]


def test_the_standard_input(monkeypatch):
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"one\ntwo\n")))
    assert read_prompts(GenerateConfig(file="-")) == ["one", "two"]


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "prompts.txt is empty"),
        (b"\n \n", "prompts.txt is empty"),
        (b"one\n\ntwo\n", "prompts.txt: line 2 is empty"),
        (b"one\n\n", "line 2 is empty"),
        (b"one \xff", "is not UTF-8 text: byte 4 is 0xff"),
        (b"one\0", "is binary, not text: byte 3 is NUL"),
    ],
)
def test_a_file_without_prompts(tmp_path: Path, content: bytes, says: str):
    with pytest.raises(UserError, match=says):
        read(tmp_path, content)


@pytest.mark.parametrize(
    "line", ["one", "[]", "{}", '{"prompt": 3}', '{"prompt": null}', "", "null", "[" * 100_000]
)
def test_a_line_that_is_no_object_with_a_prompt(tmp_path: Path, line: str):
    with pytest.raises(UserError, match=r'prompts.jsonl: line 2 is not of the form {"prompt": "some text"}'):
        read(tmp_path, b'{"prompt": "one"}\n' + line.encode() + b"\n", "prompts.jsonl")


def test_half_a_character_is_no_text(tmp_path: Path):
    for prompts in ({"prompt": "a\ud800"}, {"prompts": ["a", "\udcff"]}):
        with pytest.raises(UserError, match="half of a character"):
            read_prompts(GenerateConfig(**prompts))
    with pytest.raises(UserError, match="half of a character"):
        read(tmp_path, b'{"prompt": "\\ud800"}', "prompts.jsonl")


def test_places_that_are_no_file(tmp_path: Path):
    with pytest.raises(UserError, match=r"generate.file=/nope: no such file"):
        read_prompts(GenerateConfig(file="/nope"))
    with pytest.raises(UserError, match="is no regular file"):
        read_prompts(GenerateConfig(file=str(tmp_path)))


def test_two_sources_are_one_too_many():
    for config in (GenerateConfig(prompt="a", prompts=["b"]), GenerateConfig(file="x", prompts=["b"])):
        with pytest.raises(UserError, match=r"generate\.prompts.* both given|both given"):
            read_prompts(config)

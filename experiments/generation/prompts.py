"""The prompts of job=generate: given as keys, or read from a file."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from experiments.configuration.schema import GenerateConfig
from experiments.data.sources.text import decode_text
from zoo.errors import UserError

STANDARD_INPUT = "-"


def read_prompts(config: GenerateConfig) -> list[str]:
    """The texts to continue: of generate.file, generate.prompts or generate.prompt.

    An empty text that is given as a key, or in a .jsonl file, stands for the beginning of a document. Raises UserError
    where two of the keys are given, a prompt is no text, or the file is missing, empty, no text, or has a line without
    a prompt.
    """
    given = {
        "generate.file": config.file,
        "generate.prompts": config.prompts,
        "generate.prompt": config.prompt if config.prompt != GenerateConfig.prompt else None,
    }
    if config.file == "":
        raise UserError("generate.file names no file; leave it out, or give one with a prompt in every line")
    named = [key for key, value in given.items() if value]
    if len(named) > 1:
        raise UserError(f"{named[0]} and {named[1]} are both given; leave one of them out")
    prompts = _read_file(config.file) if config.file else config.prompts or [config.prompt]
    for prompt in prompts:
        try:
            prompt.encode()
        except UnicodeEncodeError as error:
            raise UserError(f"the prompt {prompt!a} is no text: it holds half of a character") from error
    return prompts


def _read_file(name: str) -> list[str]:
    place = "the standard input" if name == STANDARD_INPUT else f"generate.file={name}"
    text = decode_text(_read_bytes(name, place), place, "give another file")
    if not text.strip():
        raise UserError(f"{place} is empty; give a prompt in every line")
    parse = _json_prompt if Path(name).suffix == ".jsonl" else _plain_prompt
    lines = text.removesuffix("\n").split("\n")
    return [parse(line, f"{place}: line {i}") for i, line in enumerate(lines, 1)]


def _read_bytes(name: str, place: str) -> bytes:
    if name == STANDARD_INPUT:
        return sys.stdin.buffer.read()
    try:
        return Path(name).expanduser().read_bytes()
    except FileNotFoundError as error:
        raise UserError(f"{place}: no such file; it has a prompt in every line") from error
    except OSError as error:
        raise UserError(f"{place} cannot be read: {error.strerror}") from error


def _plain_prompt(line: str, where: str) -> str:
    if not line.strip():
        raise UserError(f"{where} is empty; remove it")
    return line


def _json_prompt(line: str, where: str) -> str:
    try:
        prompt = json.loads(line)["prompt"]
    except (ValueError, LookupError, TypeError, RecursionError):
        prompt = None
    if not isinstance(prompt, str):
        raise UserError(f'{where} is not of the form {{"prompt": "some text"}}')
    return prompt

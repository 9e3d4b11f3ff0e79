"""Instructions out of a file of the compiler's."""

from __future__ import annotations

import struct

import pytest

from experiments.bench.static.elf import code_sections


def elf(sections: dict[str, bytes]) -> bytes:
    """A file of 64 bits with these sections, and the one of their names last."""
    names, offsets = b"\0", []
    for name in (*sections, ".shstrtab"):
        offsets.append(len(names))
        names += name.encode() + b"\0"
    contents = [*sections.values(), names]
    headers, body = b"", b""
    for name, content in zip(offsets, contents, strict=True):
        headers += struct.pack("<IIQQQQIIQQ", name, 1, 0, 0, 64 + len(body), len(content), 0, 0, 128, 0)
        body += content
    head = b"\x7fELF\x02\x01\x01".ljust(0x28, b"\0") + struct.pack(
        "<QIHHHHHH", 64 + len(body), 0, 64, 0, 0, 64, len(contents), len(contents) - 1
    )
    return head + body + headers


def test_code_is_that_of_all_functions_in_the_files_order():
    file = elf({".strtab": b"text", ".text.first": b"AAAA", ".nv.info": b".text", ".text.second": b"BB"})
    assert code_sections(file) == b"AAAABB"


@pytest.mark.parametrize("file", [b"PTX", elf({".strtab": b"text"}).replace(b"ELF\x02", b"ELF\x01")])
def test_what_is_no_elf_file_of_64_bits_is_refused(file: bytes):
    with pytest.raises(ValueError, match="no ELF file of 64 bits"):
        code_sections(file)

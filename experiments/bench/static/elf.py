"""ELF files, as far as a GPU's code needs them."""

from __future__ import annotations

import struct

_SECTION = struct.Struct("<IIQQQQIIQQ")
"""A section's header in a file of 64 bits: name, type, flags, address, offset, size, ..."""


def code_sections(file: bytes) -> bytes:
    """The instructions of all functions in a cubin, one after the other as the file has them.

    Raises ValueError for what is no ELF file of 64 bits. Source: System V ABI, chapter 4 (object files).
    """
    if file[:5] != b"\x7fELF\x02":
        raise ValueError("the compiler's output is no ELF file of 64 bits")
    (start,) = struct.unpack_from("<Q", file, 0x28)
    size, count, names = struct.unpack_from("<HHH", file, 0x3A)
    sections = [_SECTION.unpack_from(file, start + place * size) for place in range(count)]
    texts = sections[names][4]
    return b"".join(
        file[offset : offset + length]
        for name, _, _, _, offset, length, *_ in sections
        if file.startswith(b".text", texts + name)
    )

"""Bytes of a file to plain text, or a line that says why they are none."""

from __future__ import annotations

from zoo.errors import UserError


def decode_text(raw: bytes, place: str, otherwise: str) -> str:
    """The text of UTF-8 bytes, without a byte order mark, a single newline at every line end.

    place: where the bytes come from; otherwise: what a person can do besides converting them. Raises UserError with
    the offset for bytes that are no UTF-8, and for NUL.
    """
    nul = raw.find(b"\0")
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError as error:
        if nul < 0 or error.start < nul:
            raise UserError(
                f"{place} is not UTF-8 text: byte {error.start} is 0x{raw[error.start]:02x}; convert it "
                f"(iconv -f ENCODING -t UTF-8), or {otherwise}"
            ) from error
    if nul >= 0:
        raise UserError(f"{place} is binary, not text: byte {nul} is NUL; {otherwise}, or convert it")
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")

"""Words of command lines that a page or a message tells to give."""

import re
import shlex


def word(key: str, text: str) -> str:
    """KEY=TEXT, quoted for a shell and for Hydra: the key gets exactly this text, commas, quotes and ${ included."""
    from hydra.core.override_parser.types import Quote, QuotedString  # only where advice is given

    if _read_plainly(f"{key}={text}") == text and "${" not in text:
        return shlex.quote(f"{key}={text}")
    # OmegaConf takes ${ for an interpolation, unless an odd number of backslashes stands before it.
    escaped = re.sub(r"(\\*)\$\{", r"\1\1\\${", text)
    return shlex.quote(f"{key}={QuotedString(escaped, Quote.double).with_quotes()}")


def _read_plainly(override: str) -> object:
    """Return the value that Hydra reads from an override; None where it reads none."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return OverridesParser.create().parse_override(override).value()
    except HydraException:
        return None

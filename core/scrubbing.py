"""Takes an upstream's key out of whatever the upstream sends back. Pure."""

import json
from urllib.parse import quote

MASK = b"********"
LEAST_IN_ERRORS = 6
LEAST_IN_ANSWERS = 16
"""Shorter keys may be words, such as `ollama`, that answers contain; in errors they are masked from 6 characters on."""


class Scrubber:
    """Knows how one secret is spelled: as it is, as JSON writes it, and as URLs do."""

    def __init__(self, secret: str) -> None:
        spellings = {secret, json.dumps(secret)[1:-1], quote(secret, safe=""), quote(secret)}
        enough = len(secret) >= LEAST_IN_ERRORS
        self._needles = sorted((text.encode() for text in spellings), key=len, reverse=True) if enough else []
        self._secret = secret.encode()

    def clean(self, data: bytes) -> bytes:
        """Return `data` without the secret."""
        for needle in self._needles:
            if needle in data:
                data = data.replace(needle, MASK)
        return data

    def stream(self) -> "ScrubbedStream | None":
        """Return what takes the secret out of an answer that comes in pieces; `None` where it might be a word."""
        return ScrubbedStream(self._secret) if len(self._secret) >= LEAST_IN_ANSWERS else None


class ScrubbedStream:
    """Takes a secret out of pieces that follow each other, also where it is spread over several.

    An end of a piece that may be the secret's beginning waits for the next piece; ends of events never do.
    """

    def __init__(self, secret: bytes) -> None:
        self._secret = secret
        self._held = b""

    def feed(self, piece: bytes) -> bytes:
        """Return what may be passed on now; may be b""."""
        if self._held:
            piece, self._held = self._held + piece, b""
        if self._secret in piece:
            piece = piece.replace(self._secret, MASK)
        if piece and piece[-1] in self._secret:
            held = self._begun(piece)
            if held:
                piece, self._held = piece[:-held], piece[-held:]
        return piece

    def rest(self) -> bytes:
        """Return what still waits, at the end."""
        held, self._held = self._held, b""
        return held

    def _begun(self, piece: bytes) -> int:
        """Return how many bytes at the end of `piece` are the secret's beginning."""
        longest = min(len(piece), len(self._secret) - 1)
        return next((n for n in range(longest, 0, -1) if piece.endswith(self._secret[:n])), 0)

"""Tokenizers' files to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

__all__ = ["WORDS", "word_tokenizer"]

WORDS = ("[UNK]", "[PAD]", "[BOS]", "[EOS]", "a", "photo", "of", "cat", "dog", *"0123456789")


def word_tokenizer(path: Path, *, padding: dict[str, Any] | None = None, direction: str = "right") -> Path:
    """Writes the file of a tokenizer whose ids are the places of words in :data:`WORDS`, between a start and an end.

    Args:
        path: The file.
        padding: The file's own padding; None for none.
        direction: The side on which it truncates.
    """
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[BOS] $A [EOS]", special_tokens=[("[BOS]", 2), ("[EOS]", 3)]
    )
    tokenizer.enable_truncation(99, direction=direction)
    if padding is not None:
        tokenizer.enable_padding(**padding)
    tokenizer.save(str(path))
    return path

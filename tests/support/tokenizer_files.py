"""Tokenizers' files to try things on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors

__all__ = ["WORDS", "byte_tokenizer", "word_tokenizer"]

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


def byte_tokenizer(path: Path) -> Path:
    """Writes the file of a byte-level BPE, as CLIP has one. Its merges are given, as training would start threads."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("c", "a"), ("ca", "t"), ("d", "o"), ("do", "g"), ("\u0120", "a")]
    tokens = ["[PAD]", *letters, *(first + second for first, second in merges)]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.save(str(path))
    return path

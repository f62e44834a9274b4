"""Writes llama_style.json: a small SentencePiece-like tokenizer.json and what the `tokenizers` package makes of it.

    pip install tokenizers==0.23.3
    python make_llama_style.py
"""

import json
import pathlib

from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, processors

words = ["▁the", "▁quick", "▁fox", "▁Hello", "ing", "▁▁", "▁▁▁▁", "日本"]
vocab = {"<unk>": 0, "<s>": 1, "</s>": 2} | {f"<0x{b:02X}>": 3 + b for b in range(256)}
merges = []
for word in words:
    for n in range(1, len(word)):
        pair = (word[:n], word[n])
        merges += [] if pair in merges else [pair]
for c in sorted({c for word in words for c in word} | set("abcdefghijklmnopqrstuvwxyz,.!")):
    vocab[c] = len(vocab)
for a, b in merges:
    vocab.setdefault(a + b, len(vocab))

t = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
t.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
t.decoder = decoders.Sequence(
    [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 1)])
t.add_special_tokens([AddedToken(s, normalized=False, special=True) for s in ["<unk>", "<s>", "</s>"]])

texts = ["", "the quick fox", "Hello, the  fox    ing!", "日本語 👍", "<s>the</s> fox", "\n\t", "  the"]
cases = [{"text": s, "ids": t.encode(s, add_special_tokens=False).ids, "whole": t.encode(s).ids,
          "decoded": t.decode(t.encode(s).ids)} for s in texts]
out = {"tokenizer": json.loads(t.to_str()), "cases": cases}
(pathlib.Path(__file__).parent / "llama_style.json").write_text(json.dumps(out, ensure_ascii=False) + "\n")

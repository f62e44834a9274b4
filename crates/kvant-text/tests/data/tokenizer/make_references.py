"""Writes the reference ids beside this file. Not a test: run by hand when a text or a vocabulary is added.

    pip install cyllama==0.2.18 gguf==0.19.0 tokenizers==0.23.3
    python make_references.py SMOLLM2.gguf QWEN2.5-CODER.gguf

The ids come from llama.cpp (the cyllama wheel). Where llama.cpp only approximates the splitting rule a model was
trained with, they come from the Python `tokenizers` package, whose regular expressions are Oniguruma's.
Vocabularies: SmolLM2 and Qwen2.5-Coder are Apache-2.0; `probe` and `sentence` are made up here.
"""

import gzip
import itertools
import json
import pathlib
import random
import sys
import tempfile

import cyllama.llama.llama_cpp as llama
import gguf
import numpy as np
import tokenizers

HERE = pathlib.Path(__file__).parent
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = 1, 2, 3, 4, 5, 6

TEXTS = [
    "",
    " ",
    "  ",
    "Hello, world!",
    " Hello world",
    "The quick brown fox jumps over the lazy dog.",
    "It's we're I'll they'd you've I'm don't IT'S WE'RE it’s o'clock 'tis ''s",
    "1 12 123 1234 12345 123456 1234567890 3.14159 1,000,000 0x1F 1e-9 v1.2.3",
    "fn main() {\n    println!(\"{}\", 1 + 2);\n}\n",
    "def f(x):\n\tif x:\n\t\treturn  x\n\n\n\nclass A: pass\n",
    "a    b     c      d       e        f",
    "x" + " " * 16 + "y" + " " * 31 + "z" + " " * 100,
    " " * 7 + "\t" * 5 + "\n" * 4 + " \n \n\t\n" + "\r\n\r\n",
    "tab\there\t\tnew\nline\n\nend\n",
    "trailing spaces   ",
    "   leading spaces",
    "\n",
    "\n\n\n",
    "\t",
    " \n",
    "日本語のテキストと漢字、ひらがな。カタカナ！",
    "你好，世界。这是一个测试。",
    "한국어 텍스트입니다.",
    "مرحبا بالعالم، كيف حالك؟ ١٢٣",
    "שלום עולם",
    "Привет, мир! Ёжик",
    "Ελληνικά ΑΒΓ ὦ",
    "हिन्दी पाठ नमस्ते",
    "สวัสดีชาวโลก",
    "👩‍👩‍👧‍👦 👍🏽 🇩🇪🇫🇷 🏴‍☠️ ❤️ 😀😃",
    "e\u0301 n\u0303 a\u0308\u0304 Z\u0351\u036b\u0343",
    "é ñ ä Å ﬁ ﬀ Ω ℝ",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\u202frtl\u2028line\u0085nel",
    "<|im_start|>user\nHi<|im_end|>\n<|endoftext|>",
    "<s>text <unk> <bos> <start_of_turn>user<end_of_turn>",
    "<tool_call>\n{\"name\": \"f\"}\n</tool_call> <|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>",
    "<|im_end", "|im_end|>", "<|im_end|><|im_end|>x<|im_start|>",
    "<0x41><0x0A>", "▁under▁score", "Ġspelled Ċ Ã©",
    "\u0000\u0001\u0007\u001b[0m\u007f\ufffd\ufeff",
    "$100 €20 £5 ¥1 +1 -1 a=b a+b x^2 ~/home C:\\dir 50% #tag @user & | \\ `code`",
    "!!! ??? ... --- === *** ### ((())) [[]] {{}} <<>> \"'\"'",
    "https://example.com/path?q=1&r=2#frag user@example.com",
    "ⅣⅧ ½ ² ³ ① 𝟙𝟚 ٣٤ ५",
    "CamelCaseWordsAndACRONYMSLikeHTTPServer snake_case_words kebab-case-words",
    "a.b,c;d:e!f?g/h\\i|j", "word\u2019s \u201cquoted\u201d \u2014 dash\u2026",
    "ſ 'ſ K ı İ ß ẞ ǅ ǈ",
    "\U0001d54f\U00010400\U0001f9ff\U000e0067 \u0e01\u0e33",
    "   \u3000 \u00a0\u00a0 x", "a\r\nb\rc\n\rd", "x \n\n y \t\n z",
    "{\n  \"key\": [1, 2.5, null, true],\n  \"s\": \"\\u00e9\\n\"\n}",
    "SELECT * FROM t WHERE a >= 10 AND b != 'x''y';",
    "supercalifragilisticexpialidocious antidisestablishmentarianism",
]
# unit, times: too long to list, checked by count and hash
LONG = [["The quick brown fox, 123 times over.\n\n    ", 500], ["a", 20000], [" ", 5000], ["\n", 3000], ["漢字 ", 2000],
        ["ab" * 50 + "1" * 99 + "!" * 77 + "\t", 40]]

# Rules that llama.cpp follows exactly.
PRE = ["default", "gpt-2", "smollm", "llama-bpe", "dbrx", "qwen2", "qwen35", "deepseek-v3", "falcon", "bloom", "viking",
       "bailingmoe", "seed-coder"]
# Rules that it approximates (the case of letters beyond ASCII, combining marks, U+3000), as in their tokenizer.json.
APPROXIMATED = {
    "deepseek-llm": [
        r"[\r\n]",
        r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+",
        r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
        r"\s+$",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}+",
    ],
    "deepseek-coder": [
        r"[\r\n]",
        r"\s?\p{L}+",
        r"\s?\p{P}+",
        r"[一-龥ࠀ-一가-퟿]+",
        r"\p{N}",
    ],
    "tekken": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
    "gpt-4o": [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    ],
}


def byte_alphabet():
    literal = [*range(33, 127), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table, extra = {}, 256
    for byte in range(256):
        table[byte] = chr(byte) if byte in literal else chr(extra)
        extra += byte not in literal
    return table


ALPHABET = byte_alphabet()
PROBE_SYMBOLS = list(" \n\t\raBs'189._-<$€") + ["é", "Ж", "中", "か", "\u0301", "²", "٣", "\u00a0", "\u3000", "한"]


def probe_vocabulary():
    """Bytes, then every string of up to three of a few telling characters: splits show in the ids."""
    spell = lambda s: "".join(ALPHABET[b] for b in s.encode())
    tokens = [ALPHABET[b] for b in range(256)]
    merges, seen = [], set(tokens)

    def merge(left, right):
        merges.append(f"{left} {right}")
        if left + right not in seen:
            seen.add(left + right)
            tokens.append(left + right)

    symbols = [spell(s) for s in PROBE_SYMBOLS]
    for symbol in symbols:
        for n in range(1, len(symbol)):
            if f"{symbol[:n]} {symbol[n]}" not in merges:
                merge(symbol[:n], symbol[n])
    for a, b in itertools.product(symbols, repeat=2):
        merge(a, b)
    for a, b, c in itertools.product(symbols, repeat=3):
        merge(a + b, c)
    return tokens, merges


def sentence_vocabulary():
    """A SentencePiece BPE vocabulary with ties, byte fallback, user-defined and control tokens."""
    tokens = [("<unk>", 0, UNKNOWN), ("<s>", 0, CONTROL), ("</s>", 0, CONTROL)]
    tokens += [(f"<0x{b:02X}>", 0, BYTE) for b in range(256)]
    words = "▁the ▁quick ▁brown ▁fox ▁Hello ▁world ▁it ▁is ▁in ▁on ▁a ▁an ▁and fn main print ln return class pass " \
            "ing tion ed er es th he an in on re 12 123 234 34 00 000 日本 日本語 漢字 ▁▁ ▁▁▁ ▁▁▁▁ ▁▁▁▁▁▁▁▁ aa aaa aaaa " \
            "abab ab ba aba éa ▁é 👍 ▁( () !! !!! ... .. == ==="
    pieces, order = {}, []
    for word in words.split():
        for n in range(2, len(word) + 1):
            if word[:n] not in pieces:
                pieces[word[:n]] = None
                order.append(word[:n])
            if word[-n:] not in pieces:
                pieces[word[-n:]] = None
                order.append(word[-n:])
    rng = random.Random(7)
    rng.shuffle(order)
    # Ties on purpose: three pieces share each score.
    tokens += [(piece, -1.0 - i // 3, NORMAL) for i, piece in enumerate(order)]
    chars = sorted({c for word in words.split() for c in word} | set("abcdefghijklmnopqrstuvwxyzTIW0123456789.,!?:;'\"-_<>|"))
    tokens += [(c, -1000.0 - i, NORMAL) for i, c in enumerate(chars)]
    tokens += [("<end_of_turn>", 0, CONTROL), ("<start_of_turn>", 0, CONTROL), ("\n\n", 0, USER), ("\n\n\n", 0, USER),
               ("<tag>", 0, USER), ("[pad]", -2000.0, UNUSED)]
    return tokens


def write_model(path, *, model, tokens, kinds, pre=None, merges=None, scores=None, **extra):
    """A one-layer llama with the given vocabulary: llama.cpp loads nothing less."""
    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(64), w.add_embedding_length(32), w.add_block_count(1), w.add_feed_forward_length(32)
    w.add_head_count(1), w.add_layer_norm_rms_eps(1e-5), w.add_rope_dimension_count(32)
    w.add_tokenizer_model(model), w.add_token_list(tokens), w.add_token_types(kinds)
    if pre: w.add_tokenizer_pre(pre)
    if merges: w.add_token_merges(merges)
    if scores: w.add_token_scores(scores)
    for key, value in extra.items():
        add = w.add_bool if isinstance(value, bool) else w.add_uint32
        add(f"tokenizer.ggml.{key}", value)
    z = lambda *shape: np.zeros(shape, dtype=np.float32)
    w.add_tensor("token_embd.weight", z(len(tokens), 32)), w.add_tensor("output_norm.weight", z(32))
    for name in ["attn_norm", "ffn_norm"]: w.add_tensor(f"blk.0.{name}.weight", z(32))
    for name in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]:
        w.add_tensor(f"blk.0.{name}.weight", z(32, 32))
    w.write_header_to_file(), w.write_kv_data_to_file(), w.write_tensors_to_file(), w.close()


def load(path):
    model = llama.LlamaModel(str(path), llama.LlamaModelParams())
    return model, model.get_vocab()


def fnv1a(ids):
    h = 0xCBF29CE484222325
    for i in ids:
        for b in i.to_bytes(4, "little"):
            h = (h ^ b) * 0x100000001B3 % 2**64
    return f"{h:016x}"


def references(vocab, kinds):
    """Ends of generation: llama.cpp makes any token that looks like one a control token; we ask the file."""
    encode = lambda text, special: vocab.tokenize(text, False, special)
    return {
        "plain": [encode(t, False) for t in TEXTS],
        "special": [encode(t, True) for t in TEXTS],
        "whole": vocab.tokenize("Hello", True, False),
        "long": [[len(ids), fnv1a(ids)] for ids in (encode(u * n, False) for u, n in LONG)],
        "end": [i for i, kind in enumerate(kinds) if vocab.is_eog(i) and kind in (CONTROL, USER)],
    }


def with_tokenizers(tokens, merges, rules, texts, ignore_merges):
    vocab = {token: i for i, token in enumerate(tokens)}
    model = tokenizers.models.BPE(vocab, [tuple(merge.split(" ")) for merge in merges],
                                  ignore_merges=ignore_merges)
    tokenizer = tokenizers.Tokenizer(model)
    cut = [tokenizers.pre_tokenizers.Split(tokenizers.Regex(rule), "isolated") for rule in rules]
    spell = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Sequence([*cut, spell])
    return [tokenizer.encode(text).ids for text in texts]


def field(reader, name):
    f = reader.fields.get("tokenizer." + name)
    return f.contents() if f else None


def real_vocabulary(name, path):
    r = gguf.GGUFReader(path)
    get = lambda key: field(r, "ggml." + key)
    head = {key: get(key) for key in ["model", "pre", "bos_token_id", "eos_token_id", "unknown_token_id",
                                      "padding_token_id", "add_bos_token", "add_space_prefix"] if get(key) is not None}
    tokens, kinds, merges = get("tokens"), get("token_type"), get("merges")
    # Most tokens are what the next merge makes; only the others are listed.
    made, listed = iter(merges), {}
    expected = next(made).replace(" ", "")
    for i, token in enumerate(tokens):
        if token == expected and kinds[i] == NORMAL:
            expected = next(made, "").replace(" ", "")
        else:
            listed[i] = [token, kinds[i]]
    assert expected == ""
    head |= {"len": len(tokens), "listed": listed}
    text = json.dumps(head, ensure_ascii=False) + "\n" + "\n".join(merges)
    with open(HERE / f"{name}.vocab.gz", "wb") as out:
        out.write(gzip.compress(text.encode(), 9, mtime=0))
    model, vocab = load(path)
    dump(f"{name}.ids.json", references(vocab, kinds))


def random_texts(count):
    rng = random.Random(1)
    return ["".join(rng.choices(PROBE_SYMBOLS, k=rng.randint(1, 24))) for _ in range(count)]


def dump(name, value):
    lines = ",\n".join(f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, separators=(',', ':'))}" for k, v in value.items())
    (HERE / name).write_text("{\n" + lines + "\n}\n")


def main():
    tmp = pathlib.Path(tempfile.mkdtemp())
    dump("texts.json", {"texts": TEXTS, "long": LONG, "random": random_texts(120), "probe_symbols": PROBE_SYMBOLS})

    tokens = sentence_vocabulary()
    listed = {"tokens": [t[0] for t in tokens], "scores": [float(t[1]) for t in tokens], "kinds": [t[2] for t in tokens]}
    refs = {}
    for name, prefix in [("with_space", True), ("without_space", False)]:
        path = tmp / f"{name}.gguf"
        write_model(path, model="llama", tokens=listed["tokens"], kinds=listed["kinds"], scores=listed["scores"],
                    bos_token_id=1, eos_token_id=2, unknown_token_id=0, add_space_prefix=prefix)
        model, vocab = load(path)
        refs[name] = references(vocab, listed["kinds"])
    dump("sentence.json", {**listed, **refs})

    tokens, merges = probe_vocabulary()
    cases = TEXTS + random_texts(120)
    ids = {}
    for pre in PRE:
        path = tmp / "probe.gguf"
        write_model(path, model="gpt2", pre=pre, tokens=tokens, kinds=[NORMAL] * len(tokens), merges=merges,
                    bos_token_id=0, eos_token_id=0)
        model, vocab = load(path)
        ids[pre] = [vocab.tokenize(t, False, False) for t in cases]
    for pre, rules in APPROXIMATED.items():
        ids[pre] = with_tokenizers(tokens, merges, rules, cases, ignore_merges=pre == "tekken")
    dump("pre.ids.json", ids)

    for name, path in zip(["smollm2", "qwen2"], sys.argv[1:]):
        real_vocabulary(name, path)


main()

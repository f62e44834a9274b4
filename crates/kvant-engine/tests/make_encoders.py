"""Makes tests/fixtures/encoders: tiny random encoders with what they give, by the formulas in numpy and f64.

Run it with numpy, tokenizers and safetensors; where transformers and torch are installed too, they are asked for the same and must agree:

    python make_encoders.py fixtures/encoders [--check]

With --check nothing is written: what lies there is computed anew, and by transformers.
"""

import json
import math
import sys
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

HIDDEN, HEADS, INNER, LAYERS = 16, 2, 24, 2
TEXTS = ["the cat sat on the mat", "Rain falls, and wind!", "unbelievable cats"]
PAIRS = [["what falls", "rain and wind"], ["cat", "the mat"]]


# --- the formulas -----------------------------------------------------------------------------------------------------------------


def layer_norm(x, weight, bias, eps):
    mean = x.mean(-1, keepdims=True)
    return (x - mean) / np.sqrt(((x - mean) ** 2).mean(-1, keepdims=True) + eps) * weight + (0 if bias is None else bias)


def gelu(x):
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def silu(x):
    return x / (1 + np.exp(-x))


def rotated(x, theta):
    """(tokens, heads, dim), halves paired."""
    tokens, _, dim = x.shape
    angles = np.outer(np.arange(tokens), theta ** (-2 * np.arange(dim // 2) / dim))[:, None]
    a, b = x[..., : dim // 2], x[..., dim // 2 :]
    return np.concatenate([a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)], -1)


def attention(q, k, v, heads, theta=None, reach=None):
    tokens, width = q.shape
    q, k, v = (x.reshape(tokens, heads, width // heads) for x in (q, k, v))
    if theta:
        q, k = rotated(q, theta), rotated(k, theta)
    scores = np.einsum("qhd,khd->hqk", q, k) / math.sqrt(width // heads)
    if reach is not None:
        distance = np.abs(np.arange(tokens)[:, None] - np.arange(tokens))
        scores = np.where(distance <= reach, scores, -np.inf)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, v).reshape(tokens, width)


class Net:
    """Weights by name; a linear layer and a norm of them."""

    def __init__(self, config, weights):
        self.config = config
        self.weights = {name: value.astype(np.float64) for name, value in weights.items()}

    def linear(self, x, name):
        y = x @ self.weights[name + ".weight"].T
        return y + self.weights[name + ".bias"] if name + ".bias" in self.weights else y

    def norm(self, x, name, eps):
        return layer_norm(x, self.weights[name + ".weight"], self.weights.get(name + ".bias"), eps)


def bert(net, ids, second):
    config = net.config
    prefix = next(name for name in net.weights if name.endswith("embeddings.word_embeddings.weight"))
    prefix = prefix[: -len("embeddings.word_embeddings.weight")]
    first = 0 if config["model_type"] == "bert" else config["pad_token_id"] + 1
    eps = config["layer_norm_eps"]
    at = lambda name: net.weights[f"{prefix}embeddings.{name}.weight"]  # noqa: E731
    segments = (np.arange(len(ids)) >= second).astype(int).clip(max=config["type_vocab_size"] - 1)
    x = at("word_embeddings")[ids] + at("position_embeddings")[first : first + len(ids)] + at("token_type_embeddings")[segments]
    x = net.norm(x, f"{prefix}embeddings.LayerNorm", eps)
    for layer in range(config["num_hidden_layers"]):
        place = f"{prefix}encoder.layer.{layer}."
        q, k, v = (net.linear(x, f"{place}attention.self.{name}") for name in ("query", "key", "value"))
        y = net.linear(attention(q, k, v, config["num_attention_heads"]), f"{place}attention.output.dense")
        x = net.norm(x + y, f"{place}attention.output.LayerNorm", eps)
        y = net.linear(gelu(net.linear(x, f"{place}intermediate.dense")), f"{place}output.dense")
        x = net.norm(x + y, f"{place}output.LayerNorm", eps)
    return x


def nomic(net, ids, second):
    config, eps = net.config, net.config["layer_norm_epsilon"]
    segments = (np.arange(len(ids)) >= second).astype(int)
    x = net.weights["embeddings.word_embeddings.weight"][ids] + net.weights["embeddings.token_type_embeddings.weight"][segments]
    x = net.norm(x, "emb_ln", eps)
    for layer in range(config["n_layer"]):
        place = f"encoder.layers.{layer}."
        q, k, v = np.split(net.linear(x, place + "attn.Wqkv"), 3, -1)
        y = net.linear(attention(q, k, v, config["n_head"], theta=config["rotary_emb_base"]), place + "attn.out_proj")
        x = net.norm(x + y, place + "norm1", eps)
        y = net.linear(net.linear(x, place + "mlp.fc11") * silu(net.linear(x, place + "mlp.fc12")), place + "mlp.fc2")
        x = net.norm(x + y, place + "norm2", eps)
    return x


def modernbert(net, ids, _):
    config, eps = net.config, net.config["norm_eps"]
    prefix = "model." if "model.embeddings.norm.weight" in net.weights else ""
    x = net.norm(net.weights[f"{prefix}embeddings.tok_embeddings.weight"][ids], f"{prefix}embeddings.norm", eps)
    for layer in range(config["num_hidden_layers"]):
        place = f"{prefix}layers.{layer}."
        is_local = layer % config["global_attn_every_n_layers"] != 0
        y = net.norm(x, place + "attn_norm", eps) if layer else x
        q, k, v = np.split(net.linear(y, place + "attn.Wqkv"), 3, -1)
        seen = (config["local_rope_theta"], config["local_attention"] // 2) if is_local else (config["global_rope_theta"], None)
        x = x + net.linear(attention(q, k, v, config["num_attention_heads"], *seen), place + "attn.Wo")
        gate, up = np.split(net.linear(net.norm(x, place + "mlp_norm", eps), place + "mlp.Wi"), 2, -1)
        x = x + net.linear(gelu(gate) * up, place + "mlp.Wo")
    return net.norm(x, f"{prefix}final_norm", eps)


def hidden(net, ids, second):
    kind = {"nomic_bert": nomic, "modernbert": modernbert}.get(net.config["model_type"], bert)
    return kind(net, np.array(ids), second)


def logits(net, rows):
    """Of a classifier, of the rows of a pair; none without one."""
    if "classifier.out_proj.weight" in net.weights:
        return net.linear(np.tanh(net.linear(rows[0], "classifier.dense")), "classifier.out_proj")
    if "head.dense.weight" in net.weights:
        pooled = rows.mean(0) if net.config["classifier_pooling"] == "mean" else rows[0]
        return net.linear(net.norm(gelu(net.linear(pooled, "head.dense")), "head.norm", net.config["norm_eps"]), "classifier")
    if "classifier.weight" in net.weights:
        return net.linear(np.tanh(net.linear(rows[0], "bert.pooler.dense")), "classifier")
    return None


# --- tiny models ------------------------------------------------------------------------------------------------------------------


def word_piece():
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    letters = "abcdefghijklmnopqrstuvwxyz,!."
    words = ["the", "cat", "sat", "on", "mat", "rain", "fall", "and", "wind", "un", "what", "##s", "##ed", "##able", "##believ", "##ing"]
    tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", *letters, *(f"##{c}" for c in "abcdefghijklmnopqrstuvwxyz"), *words]
    vocab = {token: id for id, token in enumerate(dict.fromkeys(tokens))}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]", max_input_chars_per_word=40))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    around = [("[CLS]", vocab["[CLS]"]), ("[SEP]", vocab["[SEP]"])]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1", special_tokens=around
    )
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    return tokenizer


def unigram():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    words = ["▁the", "▁cat", "▁sat", "▁on", "▁mat", "▁", "s", "rain", "▁Rain", "▁fall", "▁and", "▁wind", "▁what", ",", "!", "."]
    pieces = [("<s>", 0.0), ("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    pieces += [(word, -2.0 - index / 8) for index, word in enumerate(words)]
    pieces += [(letter, -9.0) for letter in "abcdefghijklmnopqrtuvwxyz"]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=3, byte_fallback=False))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    tokenizer.add_special_tokens(["<s>", "<pad>", "</s>", "<unk>"])
    return tokenizer


class Drawn:
    """Random weights, f16, so that files are small; norms near one."""

    def __init__(self, seed):
        self.random, self.weights = np.random.default_rng(seed), {}

    def matrix(self, name, *shape, scale=0.25):
        self.weights[name + ".weight"] = (self.random.standard_normal(shape) * scale).astype(np.float16)

    def linear(self, name, outputs, inputs, biased=True):
        self.matrix(name, outputs, inputs)
        if biased:
            self.weights[name + ".bias"] = (self.random.standard_normal(outputs) * 0.1).astype(np.float16)

    def norm(self, name, biased=True):
        self.weights[name + ".weight"] = (1 + self.random.standard_normal(HIDDEN) * 0.1).astype(np.float16)
        if biased:
            self.weights[name + ".bias"] = (self.random.standard_normal(HIDDEN) * 0.1).astype(np.float16)


def draw_bert(seed, prefix, vocabulary, positions, segments):
    drawn = Drawn(seed)
    for name, rows in (("word", vocabulary), ("position", positions), ("token_type", segments)):
        drawn.matrix(f"{prefix}embeddings.{name}_embeddings", rows, HIDDEN, scale=0.5)
    drawn.norm(f"{prefix}embeddings.LayerNorm")
    for layer in range(LAYERS):
        place = f"{prefix}encoder.layer.{layer}."
        for name in ("attention.self.query", "attention.self.key", "attention.self.value", "attention.output.dense"):
            drawn.linear(place + name, HIDDEN, HIDDEN)
        drawn.norm(place + "attention.output.LayerNorm")
        drawn.linear(place + "intermediate.dense", INNER, HIDDEN)
        drawn.linear(place + "output.dense", HIDDEN, INNER)
        drawn.norm(place + "output.LayerNorm")
    return drawn


def sizes(**more):
    return {
        "hidden_size": HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "intermediate_size": INNER,
        **more,
    }


def make_bert(vocabulary):
    config = sizes(
        model_type="bert", architectures=["BertModel"], vocab_size=vocabulary, hidden_act="gelu", layer_norm_eps=1e-12,
        max_position_embeddings=72, type_vocab_size=2, pad_token_id=0,
    )
    drawn = draw_bert(1, "", vocabulary, 72, 2)
    drawn.linear("pooler.dense", HIDDEN, HIDDEN)
    return config, drawn.weights


def make_bert_rank(vocabulary):
    config = sizes(
        model_type="bert", architectures=["BertForSequenceClassification"], vocab_size=vocabulary, hidden_act="gelu",
        layer_norm_eps=1e-12, max_position_embeddings=72, type_vocab_size=2, pad_token_id=0, num_labels=1,
        id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0},
    )
    drawn = draw_bert(2, "bert.", vocabulary, 72, 2)
    drawn.linear("bert.pooler.dense", HIDDEN, HIDDEN)
    drawn.linear("classifier", 1, HIDDEN)
    return config, drawn.weights


def make_xlm_roberta_rank(vocabulary):
    config = sizes(
        model_type="xlm-roberta", architectures=["XLMRobertaForSequenceClassification"], vocab_size=vocabulary,
        hidden_act="gelu", layer_norm_eps=1e-5, max_position_embeddings=74, type_vocab_size=1, pad_token_id=1,
        bos_token_id=0, eos_token_id=2, id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0},
    )
    drawn = draw_bert(3, "roberta.", vocabulary, 74, 1)
    drawn.linear("classifier.dense", HIDDEN, HIDDEN)
    drawn.linear("classifier.out_proj", 1, HIDDEN)
    return config, drawn.weights


def make_modernbert(vocabulary):
    config = sizes(
        model_type="modernbert", architectures=["ModernBertForSequenceClassification"], vocab_size=vocabulary,
        hidden_activation="gelu", norm_eps=1e-5, norm_bias=False, attention_bias=False, mlp_bias=False,
        max_position_embeddings=72, global_attn_every_n_layers=2, local_attention=6, global_rope_theta=160000.0,
        local_rope_theta=10000.0, classifier_pooling="mean", classifier_bias=False, classifier_activation="gelu",
        pad_token_id=0, cls_token_id=2, sep_token_id=3, bos_token_id=2, eos_token_id=3,
        id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0},
    )
    drawn = Drawn(4)
    drawn.matrix("model.embeddings.tok_embeddings", vocabulary, HIDDEN, scale=0.5)
    drawn.norm("model.embeddings.norm", biased=False)
    for layer in range(LAYERS):
        place = f"model.layers.{layer}."
        if layer:
            drawn.norm(place + "attn_norm", biased=False)
        drawn.linear(place + "attn.Wqkv", 3 * HIDDEN, HIDDEN, biased=False)
        drawn.linear(place + "attn.Wo", HIDDEN, HIDDEN, biased=False)
        drawn.norm(place + "mlp_norm", biased=False)
        drawn.linear(place + "mlp.Wi", 2 * INNER, HIDDEN, biased=False)
        drawn.linear(place + "mlp.Wo", HIDDEN, INNER, biased=False)
    drawn.norm("model.final_norm", biased=False)
    drawn.linear("head.dense", HIDDEN, HIDDEN, biased=False)
    drawn.norm("head.norm", biased=False)
    drawn.linear("classifier", 1, HIDDEN)
    return config, drawn.weights


def make_nomic_bert(vocabulary):
    config = {
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": vocabulary, "n_embd": HIDDEN,
        "n_layer": LAYERS, "n_head": HEADS, "n_inner": INNER, "n_positions": 72, "type_vocab_size": 2,
        "activation_function": "swiglu", "layer_norm_epsilon": 1e-12, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False, "prenorm": False, "qkv_proj_bias": False, "mlp_fc1_bias": False,
        "mlp_fc2_bias": False, "use_rms_norm": False,
    }
    drawn = Drawn(5)
    drawn.matrix("embeddings.word_embeddings", vocabulary, HIDDEN, scale=0.5)
    drawn.matrix("embeddings.token_type_embeddings", 2, HIDDEN, scale=0.5)
    drawn.norm("emb_ln")
    for layer in range(LAYERS):
        place = f"encoder.layers.{layer}."
        drawn.linear(place + "attn.Wqkv", 3 * HIDDEN, HIDDEN, biased=False)
        drawn.linear(place + "attn.out_proj", HIDDEN, HIDDEN, biased=False)
        drawn.norm(place + "norm1")
        drawn.linear(place + "mlp.fc11", INNER, HIDDEN, biased=False)
        drawn.linear(place + "mlp.fc12", INNER, HIDDEN, biased=False)
        drawn.linear(place + "mlp.fc2", HIDDEN, INNER, biased=False)
        drawn.norm(place + "norm2")
    return config, drawn.weights


MODELS = {
    "bert": (make_bert, word_piece, "cls"),
    "bert_rank": (make_bert_rank, word_piece, None),
    "xlm_roberta_rank": (make_xlm_roberta_rank, unigram, None),
    "modernbert_rank": (make_modernbert, word_piece, None),
    "nomic_bert": (make_nomic_bert, word_piece, "mean"),
}


def expected(net, tokenizer):
    """Ids, rows of every token or logits, for texts or pairs."""
    found = []
    has_head = logits(net, np.zeros((1, HIDDEN))) is not None
    for text in PAIRS if has_head else TEXTS:
        encoding = tokenizer.encode(*text) if has_head else tokenizer.encode(text)
        types = encoding.type_ids
        second = types.index(1) if 1 in types else len(types)
        rows = hidden(net, encoding.ids, second)
        one = {"text": text, "ids": encoding.ids}
        if has_head:
            one["logits"] = [round(float(z), 7) for z in logits(net, rows)]
        else:
            one["rows"] = [[round(float(x), 6) for x in row] for row in rows]
        found.append(one)
    return found


def check(folder, found):
    """The same by transformers."""
    import torch
    import transformers
    from tokenizers import Tokenizer

    if json.loads((folder / "config.json").read_text())["model_type"] == "nomic_bert":
        return "not asked: transformers has it under other names"
    has_head = "logits" in found[0]
    kind = transformers.AutoModelForSequenceClassification if has_head else transformers.AutoModel
    model = kind.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").double().eval()
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    worst = 0.0
    for one in found:
        given = tokenizer.encode(*one["text"]) if has_head else tokenizer.encode(one["text"])
        assert given.ids == one["ids"], one
        inputs = {"input_ids": torch.tensor([one["ids"]])}
        if model.config.model_type == "bert":
            inputs["token_type_ids"] = torch.tensor([given.type_ids])
        with torch.no_grad():
            out = model(**inputs)
        theirs = out.logits[0] if has_head else out.last_hidden_state[0]
        ours = torch.tensor(one["logits"] if has_head else one["rows"], dtype=torch.float64)
        worst = max(worst, float((theirs - ours).abs().max()))
    assert worst < 2e-5, worst
    return f"largest difference {worst:.1e}"


def main():
    root, checks = Path(sys.argv[1]), "--check" in sys.argv
    for name, (make, vocabulary, pooling) in MODELS.items():
        folder = root / name
        if not checks:
            folder.mkdir(parents=True, exist_ok=True)
            tokenizer = vocabulary()
            config, weights = make(tokenizer.get_vocab_size())
            (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
            tokenizer.save(str(folder / "tokenizer.json"), pretty=False)
            save_file(weights, folder / "model.safetensors", {"format": "pt"})
            if pooling:
                (folder / "1_Pooling").mkdir(exist_ok=True)
                modes = {"pooling_mode_cls_token": pooling == "cls", "pooling_mode_mean_tokens": pooling == "mean"}
                (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes) + "\n")
            found = expected(Net(config, weights), tokenizer)
            (folder / "expected.json").write_text(json.dumps(found) + "\n")
        found = json.loads((folder / "expected.json").read_text())
        config = json.loads((folder / "config.json").read_text())
        net = Net(config, load_file(folder / "model.safetensors"))
        for one in found:
            pair = isinstance(one["text"], list)
            begins = one["ids"].index(3) + 1 if pair and config["model_type"] == "bert" else len(one["ids"])
            rows = hidden(net, one["ids"], begins)
            again = logits(net, rows) if pair else rows
            assert np.abs(again - np.array(one["logits" if pair else "rows"])).max() < 1e-5, name
        try:
            said = check(folder, found)
        except ImportError:
            said = "transformers is not here"
        print(f"{name}: {said}")


main()

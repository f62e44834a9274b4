//! Pre-tokenizers: how text is cut into words before byte pairs are merged.
//!
//! A GGUF file carries no splitting rule, only a name in `tokenizer.ggml.pre`. The rules below are those of the
//! `tokenizer.json` each name was given for. They apply one after another: a match becomes a piece of its own,
//! what lies between matches stays a piece, and the next rule cuts the pieces further.
//!
//! **Invariant:** a name that is not in the table is refused. A near miss is not used in its place, because wrong
//! splits give plausible text of lower quality.

/// The splitting rules behind a set of names.
pub(super) struct PreTokenizer {
    /// The values of `tokenizer.ggml.pre` that mean this.
    pub(super) names: &'static [&'static str],
    /// Regular expressions, in the order they apply.
    pub(super) splits: &'static [&'static str],
    /// A word that is itself a token is taken whole, without merging.
    pub(super) ignore_merges: bool,
    /// A beginning-of-text token is put first unless the file says otherwise.
    pub(super) add_bos: bool,
}

/// The rules for a name.
pub(super) fn pre_tokenizer(name: &str) -> Option<&'static PreTokenizer> {
    RULES.iter().find(|rule| rule.names.contains(&name))
}

/// The name under which GGUF files know these splits; `ignore_merges` where words that are tokens are taken whole.
///
/// Of several names it is one that llama.cpp knows too.
pub fn pre_tokenizer_name(splits: &[String], ignore_merges: bool) -> Option<&'static str> {
    let rule = RULES.iter().find(|rule| rule.splits == splits && rule.ignore_merges == ignore_merges)?;
    Some(if rule.names.contains(&"llama-bpe") { "llama-bpe" } else { rule.names[0] })
}

/// The rules behind a name: regular expressions in the order they apply, and whether words that are tokens are taken whole.
pub fn pre_tokenizer_splits(name: &str) -> Option<(&'static [&'static str], bool)> {
    pre_tokenizer(name).map(|rule| (rule.splits, rule.ignore_merges))
}

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

const LLAMA3: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

const QWEN2: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

/// Latin, Greek, Cyrillic, Armenian, Georgian, Cherokee, … : the cased letters DeepSeek's first vocabulary lists.
/// Code points that Unicode normalisation would change are escaped.
const DEEPSEEK_LETTERS: &str = r"\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\x{1F7D}ᾀ-ᾴᾶ-ᾼ\x{1FBE}ῂ-ῄῆ-ῌῐ-\x{1FD3}ῖ-\x{1FDB}ῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\x{2126}ℨ\x{212A}-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃]+";

const DEEPSEEK3_WORDS: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;

const BLOOM: &str = r" ?[^(\s|.,!?…。，、।۔،)]+";

static RULES: &[PreTokenizer] = &[
    PreTokenizer {
        names: &["default"],
        splits: &[r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "gpt-2",
            "phi-2",
            "mpt",
            "olmo",
            "jais",
            "trillion",
            "granite-docling",
            "exaone4",
            "gigachat",
            "mellum",
            "a.x-4.0",
            "modern-bert",
            "jina-es",
            "jina-de",
            "jina-v2-es",
            "jina-v2-de",
        ],
        splits: &[GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "smollm",
            "starcoder",
            "refact",
            "command-r",
            "codeshell",
            "exaone",
            "minerva-7b",
            "mellum2",
        ],
        splits: &[r"\p{N}", GPT2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "llama3",
            "llama-v3",
            "llama-bpe",
            "falcon3",
            "falcon-h1",
            "pixtral",
            "midm-2.0",
            "lfm2",
            "jina-v5-nano",
        ],
        splits: &[LLAMA3],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["dbrx", "smaug-bpe", "glm4", "chatglm-bpe"],
        splits: &[LLAMA3],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &[
            "qwen2",
            "deepseek-r1-qwen",
            "stablelm2",
            "hunyuan",
            "megrez",
            "kormo",
            "f2llmv2",
            "solar-open",
            "grok-2",
        ],
        splits: &[QWEN2],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["qwen35"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-llm"],
        splits: &[
            r"[\r\n]",
            DEEPSEEK_LETTERS,
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            r"[一-龥ࠀ-一가-퟿]+",
            r"\p{N}+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-coder"],
        splits: &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥ࠀ-一가-퟿]+", r"\p{N}"],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"],
        splits: &[r"\p{N}{1,3}", r"[一-龥぀-ゟ゠-ヿ]+", DEEPSEEK3_WORDS],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["falcon"],
        splits: &[r"[\p{P}\$\+<=>\^~\|`]+", GPT2, "[0-9][0-9][0-9]"],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["bloom", "poro-chat", "gpt3-finnish"],
        splits: &[BLOOM],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer { names: &["viking"], splits: &[BLOOM, r"\p{N}"], ignore_merges: false, add_bos: false },
    PreTokenizer {
        names: &["tekken"],
        splits: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: true,
        add_bos: true,
    },
    PreTokenizer {
        names: &["gpt-4o", "llama4", "kanana2", "minimax-m2", "talkie"],
        splits: &[
            r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["bailingmoe", "bailingmoe2", "llada-moe"],
        splits: &[
            r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
    PreTokenizer {
        names: &["seed-coder"],
        splits: &[
            r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+",
        ],
        ignore_merges: false,
        add_bos: false,
    },
];

/// The names of all known pre-tokenizers.
#[cfg(test)]
pub(super) fn known_names() -> impl Iterator<Item = &'static str> {
    RULES.iter().flat_map(|rule| rule.names.iter().copied())
}

#[cfg(test)]
mod tests {
    #[test]
    fn no_name_stands_in_two_rules() {
        let mut names: Vec<&str> = super::known_names().collect();
        names.sort_unstable();
        assert!(names.windows(2).all(|pair| pair[0] != pair[1]));
    }
}

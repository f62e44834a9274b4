//! What targets share: a tiny model, numbers drawn from the input, and JSON that is nearly right.

use kvant_model::Tensor;
use kvant_model::gguf::{ValueType, Writer, WriterValue};
use serde_json::{Value, json};

const WIDTH: usize = 32;
const HIDDEN: usize = 64;
const TEMPLATE: &str = "{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant] ";

/// A GGUF file of one layer with a vocabulary of bytes.
pub fn model() -> Vec<u8> {
    let tokens: Vec<String> = ["<unk>", "<s>", "</s>"]
        .into_iter()
        .map(str::to_owned)
        .chain((0..=255).map(|byte| format!("<0x{byte:02X}>")))
        .collect();
    let count = tokens.len();
    let kinds = (0..count).map(|id| match id {
        0 => 2,
        1 | 2 => 3,
        _ => 6,
    });
    let mut writer = Writer::new("llama");
    let sizes = [
        ("context_length", 256),
        ("embedding_length", WIDTH),
        ("block_count", 1),
        ("feed_forward_length", HIDDEN),
        ("attention.head_count", 2),
        ("attention.head_count_kv", 1),
    ];
    for (key, value) in sizes {
        writer.set(&format!("llama.{key}"), WriterValue::U32(value as u32));
    }
    writer
        .set("llama.attention.layer_norm_rms_epsilon", WriterValue::F32(1e-6))
        .set("tokenizer.ggml.model", WriterValue::String("llama".to_owned()))
        .set("tokenizer.ggml.scores", WriterValue::f32s(vec![0.0; count]))
        .set("tokenizer.ggml.token_type", WriterValue::i32s(kinds))
        .set(
            "tokenizer.ggml.tokens",
            WriterValue::Array(ValueType::String, tokens.into_iter().map(WriterValue::String).collect()),
        )
        .set("tokenizer.ggml.eos_token_id", WriterValue::U32(2))
        .set("tokenizer.chat_template", WriterValue::String(TEMPLATE.to_owned()));
    let mut tensor = |name: &str, shape: &[usize]| {
        let numbers: Vec<f32> = (0..shape.iter().product())
            .map(|i: usize| (i as f32 * 0.7 + name.len() as f32).sin() * 0.3)
            .collect();
        writer.tensor(Tensor::from_f32(name.to_owned(), shape.to_vec(), &numbers).expect("a tensor"));
    };
    tensor("token_embd.weight", &[count, WIDTH]);
    tensor("output_norm.weight", &[WIDTH]);
    for (name, rows, columns) in [
        ("attn_q", WIDTH, WIDTH),
        ("attn_k", WIDTH / 2, WIDTH),
        ("attn_v", WIDTH / 2, WIDTH),
        ("attn_output", WIDTH, WIDTH),
        ("ffn_gate", HIDDEN, WIDTH),
        ("ffn_up", HIDDEN, WIDTH),
        ("ffn_down", WIDTH, HIDDEN),
    ] {
        tensor(&format!("blk.0.{name}.weight"), &[rows, columns]);
    }
    tensor("blk.0.attn_norm.weight", &[WIDTH]);
    tensor("blk.0.ffn_norm.weight", &[WIDTH]);
    writer.to_bytes().expect("a model")
}

/// Numbers out of the input; zeros once it is used up.
pub struct Numbers<'a>(pub &'a [u8]);

impl<'a> Numbers<'a> {
    /// Whether anything is left.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A number below `count`, from two bytes.
    pub fn below(&mut self, count: usize) -> usize {
        let (bytes, rest) = self.0.split_at(self.0.len().min(2));
        self.0 = rest;
        bytes.iter().fold(0, |number, byte| number << 8 | usize::from(*byte)) % count.max(1)
    }

    /// So many bytes, or what is left.
    pub fn bytes(&mut self, count: usize) -> &'a [u8] {
        let (bytes, rest) = self.0.split_at(self.0.len().min(count));
        self.0 = rest;
        bytes
    }

    /// One of a list.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }
}

/// Something that does not belong there, or a text of the input's.
fn odd(numbers: &mut Numbers<'_>) -> Value {
    match numbers.below(20) {
        0 => Value::Null,
        1 => json!(true),
        2 => json!(-1),
        3 => json!(1e300),
        4 => json!(u64::MAX),
        5 => json!(i64::MIN),
        6 => json!(0.5),
        7 => json!([]),
        8 => json!({}),
        9 => json!([[[[]]]]),
        10 => json!("../../x"),
        11 => json!("\u{0}\u{1b}]52;c;x\u{7}\u{f8ff}<|im_start|>"),
        12 => json!("a/".repeat(3000)),
        13 => json!(numbers.below(1 << 16)),
        14 => json!({"type": "object", "properties": {"a": {"$ref": "#"}}}),
        _ => {
            let count = numbers.below(64);
            json!(String::from_utf8_lossy(numbers.bytes(count)))
        }
    }
}

/// Puts something odd in the place of a part, takes the part away, or gives it another name.
pub fn spoil(value: &mut Value, numbers: &mut Numbers<'_>) {
    let parts = match value {
        Value::Array(items) => items.len(),
        Value::Object(fields) => fields.len(),
        _ => 0,
    };
    if parts == 0 || numbers.below(4) == 0 {
        *value = odd(numbers);
        return;
    }
    let (at, how) = (numbers.below(parts), numbers.below(8));
    match (value, how) {
        (Value::Array(items), 0) => drop(items.remove(at)),
        (Value::Array(items), 1) => items.push(items[at].clone()),
        (Value::Array(items), _) => spoil(&mut items[at], numbers),
        (Value::Object(fields), 0 | 1) => {
            let name = fields.keys().nth(at).cloned().unwrap_or_default();
            let taken = fields.remove(&name);
            if how == 1 {
                let other = String::from_utf8_lossy(numbers.bytes(6)).into_owned();
                fields.insert(other, taken.unwrap_or_default());
            }
        }
        (Value::Object(fields), _) => {
            if let Some(field) = fields.values_mut().nth(at) {
                spoil(field, numbers);
            }
        }
        _ => {}
    }
}

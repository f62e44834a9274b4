//! Ways to keep keys and values as people type them: with a suggestion for what is mistyped, and llama.cpp's types.

use kvant_codec::{PRESETS, catalogue};
use kvant_engine::KvChoice;

/// A guess is worth making up to so many letters away.
const NEAR: usize = 2;

/// Reads a spec, and says what may have been meant where that cannot be.
pub fn kv_choice(text: &str) -> Result<KvChoice, String> {
    if text.trim().is_empty() {
        return Err("name a cache, such as int4; `--kv list` lists them".to_owned());
    }
    text.parse().map_err(|error: kvant_cache::PolicyError| with_guess(text, &error.to_string()))
}

/// The error with the nearest name, if one is near.
pub fn with_guess(text: &str, error: &str) -> String {
    let names = PRESETS.iter().map(|preset| preset.name.to_owned());
    let specs = catalogue().into_iter().map(|line| line.name);
    let known = names.chain(specs).chain(["auto".to_owned(), "f32".to_owned(), "f16".to_owned()]);
    let typed = text.trim().to_ascii_lowercase();
    let near = known
        .map(|name| (strsim::damerau_levenshtein(&typed, &name), name))
        .filter(|(distance, name)| *distance <= NEAR.min(name.len() / 2))
        .min_by_key(|(distance, _)| *distance);
    match near {
        Some((_, name)) if name != typed => {
            format!("there is no cache `{text}`; did you mean {name}? `--kv list` lists all")
        }
        _ => format!("{error}; `--kv list` lists them"),
    }
}

/// What llama.cpp's `-ctk` and `-ctv` come to: codecs of as many bits that are made for the side they are on.
pub fn llama_cpp_spec(keys: Option<&str>, values: Option<&str>) -> Result<String, String> {
    let side = |flag: &str, kind: &str, codecs: [&str; 5]| {
        let [f32, f16, eight, five, four] = codecs;
        match kind.to_ascii_lowercase().as_str() {
            "f32" => Ok(f32.to_owned()),
            "f16" | "bf16" => Ok(f16.to_owned()),
            "q8_0" => Ok(eight.to_owned()),
            "q5_0" | "q5_1" => Ok(five.to_owned()),
            "q4_0" | "q4_1" | "iq4_nl" => Ok(four.to_owned()),
            other => Err(format!(
                "{flag} {other}: llama.cpp's types are f32, f16, bf16, q8_0, q5_1, q5_0, q4_1, q4_0 and iq4_nl; kvant's own are \
                 chosen by --kv, and `--kv list` prints them"
            )),
        }
    };
    let key = side("-ctk", keys.unwrap_or("f16"), ["f32", "f16", "ch8", "ch5", "ch4"])?;
    let value = side("-ctv", values.unwrap_or("f16"), ["f32", "f16", "sym8g32", "rot5g32", "rot4g32"])?;
    Ok(format!("k={key},v={value}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mistyped_cache_is_told_what_was_meant() {
        for (typed, meant) in
            [("itn4", "int4"), ("int5", "int4"), ("kv84", "k8v4"), ("atuo", "auto"), ("q4-0", "q4_0")]
        {
            let error = kv_choice(typed).unwrap_err();
            assert!(error.contains(&format!("did you mean {meant}?")), "{typed}: {error}");
        }
        let error = kv_choice("nonsense").unwrap_err();
        assert!(!error.contains("did you mean") && error.contains("--kv list"), "{error}");
    }

    #[test]
    fn types_of_llama_cpp_become_codecs_of_as_many_bits() {
        let spec = |keys, values| llama_cpp_spec(keys, values).unwrap();
        assert_eq!(spec(Some("q8_0"), Some("q4_0")), "k=ch8,v=rot4g32");
        assert_eq!(spec(Some("q8_0"), None), "k=ch8,v=f16");
        for kind in ["f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"] {
            kv_choice(&spec(Some(kind), Some(kind))).unwrap();
        }
        assert!(llama_cpp_spec(Some("q3_k"), None).unwrap_err().contains("--kv list"));
    }
}

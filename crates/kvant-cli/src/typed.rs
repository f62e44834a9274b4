//! What people type who come from llama.cpp or Ollama: flags of one dash and several letters, which the parser of flags does not
//! know, are given their long names before it sees them.

use std::ffi::{OsStr, OsString};

/// What is typed, and what it is called here.
const SPELLINGS: [(&str, &str); 17] = [
    ("-ngl", "--n-gpu-layers"),
    ("-ctk", "--cache-type-k"),
    ("-ctv", "--cache-type-v"),
    ("-sys", "--system"),
    ("-hf", "--model"),
    ("-mu", "--model"),
    ("-fa", "--flash-attn"),
    ("-np", "--parallel"),
    ("-cnv", "--chat"),
    ("-no-cnv", "--raw"),
    ("-ub", "--ubatch-size"),
    ("-ot", "--override-tensor"),
    ("-ncmoe", "--n-cpu-moe"),
    ("-mg", "--main-gpu"),
    ("-st", "--single-turn"),
    ("-md", "--speculate"),
    ("--model-draft", "--speculate"),
];
/// What may follow `-fa`; anything else is not its value.
const SWITCHES: [&str; 5] = ["on", "off", "auto", "1", "0"];

/// The arguments with long names; `--kv list` anywhere is a command of its own.
pub fn rewritten(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut given: Vec<OsString> = arguments.collect();
    let own = given.iter().position(|argument| argument == "--").unwrap_or(given.len());
    let rest = given.split_off(own);
    let is_list = |pair: &[OsString]| pair[0] == "--kv" && pair[1] == "list";
    if given.windows(2).any(is_list) || given.iter().any(|argument| argument == "--kv=list") {
        return vec![given.swap_remove(0), "kv-list".into()];
    }
    let mut written: Vec<OsString> = Vec::new();
    let mut arguments = given.into_iter().peekable();
    while let Some(argument) = arguments.next() {
        let long = SPELLINGS.iter().find(|(typed, _)| argument == *typed).map(|(_, long)| *long);
        match long.map_or(argument.as_os_str(), OsStr::new) {
            flash if flash == "--flash-attn" => {
                let value = arguments.next_if(|next| SWITCHES.iter().any(|switch| next == *switch));
                let mut whole = OsString::from("--flash-attn=");
                whole.push(value.unwrap_or_else(|| "on".into()));
                written.push(whole);
            }
            // llama.cpp's number of drafted tokens; a file is a draft model.
            draft if draft == "--draft" => {
                let is_number =
                    |next: &OsString| next.to_str().is_some_and(|text| text.parse::<u32>().is_ok());
                let flag = if arguments.peek().is_some_and(is_number) { "--draft-max" } else { "--draft" };
                written.push(flag.into());
            }
            other => written.push(other.to_owned()),
        }
    }
    written.extend(rest);
    written
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(arguments: &str) -> String {
        let written = rewritten(arguments.split(' ').map(OsString::from));
        written.iter().map(|argument| argument.to_string_lossy()).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn flags_of_llama_cpp_get_their_long_names() {
        assert_eq!(of("kvant run -ngl 99 -m x"), "kvant run --n-gpu-layers 99 -m x");
        assert_eq!(of("kvant run -ctk q8_0 -ctv q4_0"), "kvant run --cache-type-k q8_0 --cache-type-v q4_0");
        assert_eq!(of("kvant run -fa on -sys hi"), "kvant run --flash-attn=on --system hi");
        assert_eq!(of("kvant run --draft 16 hi"), "kvant run --draft-max 16 hi");
        assert_eq!(of("kvant run --draft small.gguf"), "kvant run --draft small.gguf");
        assert_eq!(of("kvant run -md small.gguf"), "kvant run --speculate small.gguf");
        assert_eq!(of("kvant run -fa why"), "kvant run --flash-attn=on why");
        assert_eq!(of("kvant run --flash-attn off"), "kvant run --flash-attn=off");
        assert_eq!(of("kvant run -- -ngl"), "kvant run -- -ngl");
        assert_eq!(of("kvant run -n 5 -f x"), "kvant run -n 5 -f x");
    }

    #[test]
    fn the_list_of_caches_is_a_command() {
        assert_eq!(of("kvant run --kv list"), "kvant kv-list");
        assert_eq!(of("kvant bench m.gguf --kv=list"), "kvant kv-list");
        assert_eq!(of("kvant run list"), "kvant run list");
    }
}

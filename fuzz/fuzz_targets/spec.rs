//! Any text parses to a spec that prints and parses to itself, or to an error that points inside the text.
#![no_main]

use kvant_codec::KvSpec;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| {
    match text.parse::<KvSpec>() {
        Ok(spec) => {
            let printed = spec.to_string();
            let again: KvSpec =
                printed.parse().unwrap_or_else(|e| panic!("{text:?} printed as {printed:?}: {e}"));
            assert_eq!(again, spec, "{text:?} printed as {printed:?}");
            assert_eq!(again.to_string(), printed);
            // Whatever it is, it can be built or says why not. That takes a hundred times as long: one in 32 is.
            if crc32fast::hash(printed.as_bytes()) % 32 == 0 {
                let _ = spec.bits_per_value(24);
            }
        }
        Err(error) => {
            assert!(text.is_char_boundary(error.position()), "{text:?}: {error}");
            assert!(error.to_string().contains('^'));
        }
    }
    if let Ok(list) = KvSpec::parse_list(text) {
        assert!(!list.is_empty());
    }
});

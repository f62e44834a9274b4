//! Specs: what they parse from, how they are printed, and where errors point.

use kvant_codec::{FAMILIES, KvSpec, PRESETS, catalogue};
use proptest::prelude::*;

/// Words of options, of every class.
const WORDS: &str = "trellis plain srht srft had64 haar token g16 g32 g64 g128 ch chg16 chg32 chg64 chg128 sym max asym fitmax \
                     fitasym lm s16 s32 p32 p64 p128 lambda mean balanced scaled cayley householder";

fn parse(text: &str) -> KvSpec {
    text.parse().unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn every_preset_parses_and_prints_its_name() {
    for preset in &PRESETS {
        assert_eq!(parse(preset.name).to_string(), preset.name);
        assert_eq!(parse(&format!("k={},v={}", preset.key, preset.value)), parse(preset.name));
    }
}

#[test]
fn the_catalogue_has_every_published_codec_once_under_the_name_it_parses_from() {
    let shown = catalogue();
    for entry in &shown {
        assert_eq!(parse(&entry.name), entry.spec, "{}", entry.name);
        assert_eq!(shown.iter().filter(|other| other.spec == entry.spec).count(), 1, "{}", entry.name);
        assert!(!entry.about.is_empty() && !entry.about.contains('\n'), "{}", entry.name);
        for dim in [48, 64, 72, 80, 96, 128, 192, 256, 512] {
            assert!(entry.spec.bits_per_value(dim).is_ok(), "{} at {dim}", entry.name);
        }
    }
    for name in
        "f32 f16 bf16 int8 int4 k8v4 tq3 q8_0 q5_0 q4_0 q5_1 q4_1 iq4_nl kivi2 kivi3 nf4 uniform4 uniform2 \
                 polar3 polar4 polar5 qjl1 turbo3 turbo4 delta3 delta4 asym4 asym5 iq4"
            .split_whitespace()
    {
        assert!(shown.iter().any(|entry| entry.spec == parse(name)), "{name}");
    }
}

#[test]
fn spellings_of_the_same_codec_are_equal_and_print_alike() {
    for (text, canonical) in [
        ("k=ch4,v=rot4g32", "int4"),
        ("k=ch4,v=rot4", "int4"),
        (" k = ch4 , v = srht4:fitmax,g32 ", "int4"),
        ("k=int4,v=int4", "int4"),
        ("k=f16,v=tq3", "v3"),
        ("k=f16,v=f16", "f16"),
        ("sym4:srft,g32", "srft4g32"),
        ("srft4:g32,lambda", "srft4g32:lambda"),
        ("srft4:lambda,g32", "srft4g32:lambda"),
        ("srft8:token", "srft8:token"),
        ("asym4", "asym4g32"),
        ("tq3", "tq3"),
        ("k=sym8:had64,v=f16", "k=sym8g32:had64,v=f16"),
        ("tq2:g32", "tq2g32"),
        ("rot4:token", "rot4:token"),
        ("tq3:p128,seed=7", "tq3:p128,seed=7"),
        ("ch5:s32,p32", "ch5:s32,p32"),
        ("k=klt,v=int4", "k=klt4.25,v=rot4g32"),
        ("k=klt4.5:p64,v=tq3", "k=klt4.5:p64,v=tq3"),
        ("klt3.00", "klt3"),
        ("klt3.05", "klt3.05"),
        ("k=klt3.20:trellis,v=trellis", "k=klt3.2:trellis,v=trellis3"),
        ("trellis3.5:mean", "trellis3.5:mean"),
        ("rot4:mean,balanced", "rot4g32:mean,balanced"),
        ("srft4:cayley", "srft4g32:cayley"),
        ("srft4:plain,householder,mean", "sym4g32:mean,householder"),
        ("k=srft4:scaled,v=int4", "k=srft4g32:scaled,v=rot4g32"),
        ("f16:p128", "f16:p128"),
        ("uniform4", "uniform4g128"),
        ("uniform2:g32", "uniform2g32"),
        ("asym4:g128", "asym4g128"),
        ("nf4:g64", "nf4g64"),
        ("nf4:sym,g32", "sym4g32"),
        ("iq4:had64", "iq4_nl"),
        ("q4_1:plain", "asym4g32"),
        ("int4:p32", "k=ch4:p32,v=rot4g32:p32"),
        ("k=qjl1,v=asym2", "qjl"),
        ("qjl1:seed=3", "qjl1:seed=3"),
        ("turbo3:haar", "turbo3:haar"),
        ("polar4", "polar4"),
        ("delta4:g32", "delta4g32"),
        ("delta4:srht,token", "delta4:srht,token"),
    ] {
        assert_eq!(parse(text).to_string(), canonical, "{text}");
        assert_eq!(parse(canonical), parse(text), "{text}");
    }
}

#[test]
fn lists_split_where_a_new_spec_starts() {
    let list = KvSpec::parse_list("f16,int4,k=ch8,v=tq3,srft4:g64,lambda,tq3,seed=3")
        .map(|specs| specs.iter().map(ToString::to_string).collect::<Vec<_>>());
    // `tq3,seed=3`: without a colon there is no option list, so the seed stands alone and is refused.
    assert_eq!(list.unwrap_err().position(), 42);
    let list = KvSpec::parse_list("f16,int4,k=ch8,v=tq3,srft4:g64,lambda,tq3:seed=3,q4_0").unwrap();
    let names: Vec<String> = list.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["f16", "int4", "k=ch8,v=tq3", "srft4g64:lambda", "tq3:seed=3", "q4_0"]);
}

#[test]
fn errors_point_at_the_character_and_list_what_is_allowed() {
    for (text, position, hint) in [
        ("", 0, "int4"),
        ("int5", 0, "presets"),
        ("k=ch4", 5, "v=CODEC"),
        ("v=ch4,k=ch4", 0, "k=CODEC,v=CODEC"),
        ("k=ch4,w=ch4", 6, "v=CODEC"),
        ("k=ch4,v=rut4", 8, "there is no codec `rut4`"),
        ("ch9", 2, "1 to 8 bits"),
        ("rot", 3, "2 to 8 bits"),
        ("tq6", 2, "1 to 5 bits"),
        ("rot4g48", 4, "g16, g32, g64 or g128"),
        ("polar3g32", 6, "no groups"),
        ("klt0.99", 3, "1 to 8 bits"),
        ("klt8.01", 3, "1 to 8 bits"),
        ("klt4.", 3, "two decimals"),
        ("klt4.125", 3, "two decimals"),
        ("klt99999", 3, "klt4.25"),
        ("klt4g32", 3, "two decimals"),
        ("klt:mean", 4, "trellis s16 s32 p32 p64 p128"),
        ("trellis0.5", 7, "1 to 8 bits"),
        ("trellis3:p64", 9, "mean"),
        ("qjl2", 3, "1 to 1 bits"),
        ("nf3", 2, "4 to 4 bits"),
        ("qjl1:srht", 5, "s16 s32 p32 p64 p128 seed=N"),
        ("rot4:g32,mena", 9, "does not belong here"),
        ("rot4:mena", 5, "mean"),
        ("f16:srht", 4, "p32 p64 p128"),
        ("rot4:seed=x", 10, "whole number"),
        ("rot4:seed=99999999999999999999", 10, "below 2^64"),
        ("int4,", 5, "nothing follows"),
        ("k=ch4,v=rot4,v=rot4", 13, "does not belong"),
        ("ch99999999999999999999", 2, "1 to 8 bits"),
    ] {
        let error = text.parse::<KvSpec>().expect_err(text);
        assert_eq!(error.position(), position, "{text}: {error}");
        assert!(error.reason().contains(hint), "{text}: {error}");
    }
    let picture = "k=ch4,v=rut4".parse::<KvSpec>().unwrap_err().to_string();
    assert!(picture.ends_with("\n  k=ch4,v=rut4\n          ^"), "{picture}");
}

#[test]
fn errors_in_text_beyond_ascii_do_not_panic() {
    for text in ["ключ", "rot4é", "k=ch4,v=→", "🦀4", "rot４"] {
        let error = text.parse::<KvSpec>().expect_err(text);
        assert!(error.to_string().contains(text));
    }
}

/// A part from random words; many are refused, the rest must round-trip.
fn any_part() -> impl Strategy<Value = String> {
    let words = prop::sample::subsequence(WORDS.split_whitespace().collect::<Vec<_>>(), 0..5);
    let family = prop::sample::select(FAMILIES.iter().map(|f| f.name).collect::<Vec<_>>());
    (family, 0..9u8, words, prop::option::of(any::<u64>())).prop_map(|(family, bits, mut words, seed)| {
        let seed = seed.map(|seed| format!("seed={seed}"));
        words.extend(seed.as_deref());
        let bits = if bits == 0 { String::new() } else { bits.to_string() };
        let colon = if words.is_empty() { "" } else { ":" };
        format!("{family}{bits}{colon}{}", words.join(","))
    })
}

proptest! {
    #[test]
    fn printing_and_parsing_round_trip(key in any_part(), value in any_part()) {
        for text in [format!("k={key},v={value}"), key, value] {
            if let Ok(spec) = text.parse::<KvSpec>() {
                let printed = spec.to_string();
                prop_assert_eq!(&printed.parse::<KvSpec>().unwrap(), &spec, "{} printed as {}", text, printed);
                prop_assert_eq!(KvSpec::parse_list(&printed).unwrap(), vec![spec]);
            }
        }
    }

    #[test]
    fn any_text_parses_or_points_inside_itself(text in "[a-z0-9=,:_ ]{0,24}|\\PC{0,12}") {
        if let Err(error) = text.parse::<KvSpec>() {
            prop_assert!(error.position() <= text.len());
            prop_assert!(error.to_string().contains('^'));
        }
    }
}

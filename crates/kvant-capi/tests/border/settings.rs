//! Settings by name: what has no field of its own in a structure.

use crate::engine::{Home, generate_options, options, prompt, tokens_of};
use crate::support::{fails, ok};
use kvant::*;
use std::ffi::CStr;
use std::ptr::{null, null_mut};

fn opening(settings: &CStr) -> KvantOpenOptions {
    KvantOpenOptions { settings: settings.as_ptr(), ..options() }
}

/// What a prompt is continued with by an engine of its own.
fn continued(home: &Home, asked: &KvantOpenOptions, generate: &KvantGenerateOptions) -> Vec<u32> {
    let engine = home.open(asked).unwrap();
    let (mut session, prompt) = (null_mut(), prompt(1, 40));
    // SAFETY: everything lives; what is made is freed once.
    unsafe {
        ok(kvant_session_new(engine, &mut session));
        let (tokens, count) = (prompt.as_ptr(), prompt.len());
        ok(kvant_session_generate(session, tokens, count, generate, None, null_mut(), null_mut()));
        let held = tokens_of(session);
        kvant_session_free(session);
        kvant_engine_free(engine);
        held
    }
}

#[test]
fn a_device_a_window_and_sinks_are_had_by_name() {
    let home = Home::new();
    let asked = generate_options();
    let usual = continued(&home, &options(), &asked);
    assert_eq!(continued(&home, &opening(c"{\"device\": \"cpu\", \"mlock\": false}"), &asked), usual);
    let window = KvantOpenOptions { window: 16, context: 0, ..options() };
    let by_name = KvantOpenOptions { context: 0, ..opening(c"{\"window\": 16}") };
    assert_eq!(continued(&home, &by_name, &asked), continued(&home, &window, &asked));
    let engine = home.open(&by_name).unwrap();
    // SAFETY: numbers, and everything lives.
    unsafe {
        let mut info: KvantEngineInfo = std::mem::zeroed();
        info.struct_size = size_of::<KvantEngineInfo>();
        ok(kvant_engine_describe(engine, &mut info));
        assert_eq!(info.context, usize::MAX, "a window has no end");
        kvant_engine_free(engine);
    }
    let sparse = home.open(&opening(c"{\"sparse_v\": 0.5, \"sinks\": 8}")).unwrap();
    // SAFETY: everything lives.
    unsafe {
        let kv = CStr::from_ptr(kvant_engine_kv(sparse)).to_str().unwrap().to_owned();
        assert!(kv.contains("sparse"), "{kv}");
        kvant_engine_free(sparse);
    }
    home.free(&[]);
}

#[test]
fn options_that_cannot_be_are_refused_in_the_engines_words() {
    let home = Home::new();
    for (settings, words) in [
        (c"{\"device\": \"tpu\"}", "`tpu` is not a device: there are auto, cpu, cuda, cuda:N and gpu"),
        (c"{\"devise\": \"cpu\"}", "there is no option `devise`"),
        (c"{\"sparse_v\": 2}", "sparse_v"),
        (c"[]", "settings are not a JSON object"),
    ] {
        fails(home.open(&opening(settings)).unwrap_err(), KvantStatus::InvalidArgument, &[words]);
    }
    home.free(&[]);
}

#[test]
fn samplers_settings_by_name_are_those_of_the_fields() {
    let home = Home::new();
    let fields =
        KvantGenerateOptions { temperature: 0.9, top_k: 40, seed: 7, min_p: 0.01, ..generate_options() };
    let named = KvantGenerateOptions {
        settings: c"{\"temperature\": 0.9, \"top_k\": 40, \"seed\": 7, \"min_p\": 0.01}".as_ptr(),
        ..generate_options()
    };
    assert_eq!(continued(&home, &options(), &named), continued(&home, &options(), &fields));
    for (settings, words) in [
        (c"{\"warmth\": 1}", "there is no setting `warmth`"),
        (c"{\"top_k\": 1.5}", "top_k: `1.5` is not a whole number"),
        (c"{\"top_p\": 7}", "top_p is 7"),
        (c"3", "settings are not a JSON object"),
    ] {
        let asked = KvantGenerateOptions { settings: settings.as_ptr(), max_tokens: 0, ..generate_options() };
        let mut sampler = null_mut();
        // SAFETY: everything lives.
        let status = unsafe { kvant_sampler_new(&asked, &mut sampler) };
        fails(status, KvantStatus::InvalidArgument, &[words]);
    }
    home.free(&[]);
}

/// Programs that were built with the header of before say so by a smaller size, and what lies behind is not read.
#[test]
fn structures_without_settings_are_as_good_as_ever() {
    let home = Home::new();
    let short = std::mem::offset_of!(KvantOpenOptions, settings);
    let old = KvantOpenOptions { struct_size: short, settings: std::ptr::dangling(), ..options() };
    let short = std::mem::offset_of!(KvantGenerateOptions, settings);
    let asked =
        KvantGenerateOptions { struct_size: short, settings: std::ptr::dangling(), ..generate_options() };
    let usual = KvantGenerateOptions { settings: null(), ..generate_options() };
    assert_eq!(continued(&home, &old, &asked), continued(&home, &options(), &usual));
    home.free(&[]);
}

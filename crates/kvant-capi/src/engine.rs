//! A model as `kvant run` opens it, and its words.

use crate::memory::{Versioned, borrow, fill, handle, list, optional_text, options, release, report, text};
use crate::message::KvantMessage;
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::grammar::GrammarCompiler;
use kvant_engine::{DeviceChoice, LoadedModel, OpenOptions, TurnOptions};
use kvant_text::chat::RenderOptions;
use kvant_text::tokenizer::EncodeOptions;
use std::ffi::{CString, c_char};
use std::sync::{Arc, OnceLock};

/// What can be asked for when a model is opened. Set struct_size to sizeof, everything else to zero, then fill in: zeros, like a
/// NULL in place of the structure, are what `kvant run` does without flags.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantOpenOptions {
    /// sizeof(kvant_open_options).
    pub struct_size: usize,
    /// How keys and values are kept: "auto", a policy such as "int4", or the path of a .kvplan file. NULL for what suits the
    /// model.
    pub kv: *const c_char,
    /// The most tokens of a session, prompt and answer together; 0 for what suits model and memory.
    pub context: usize,
    /// Streaming attention (StreamingLLM) in place of a context: sinks and this many last tokens, without end. 0 for none.
    pub window: usize,
    /// The most bytes for keys and values of a session; 0 for no limit.
    pub kv_memory: usize,
    /// What weights are packed to that the file holds as plain numbers: "int4", "int8", or NULL for neither.
    pub weights: *const c_char,
    /// Threads that compute; 0 for as many as there are processors.
    pub threads: usize,
    /// Not 0: weights, keys and values are pinned in memory.
    pub pinned: i32,
    /// Not 0: weights are multiplied with f32 in place of 8-bit activations, which is slower and a little closer to exact.
    pub exact_activations: i32,
    /// Further options by the names of `kvant run`'s flags, with underscores: a JSON object such as
    /// {"device": "cuda", "sparse_v": 1e-4, "sinks": 8}. Fields above go before it; NULL for none.
    /// The device is "cpu" unless it is named here.
    pub settings: *const c_char,
}

// SAFETY: numbers and pointers, the first of which is the size.
unsafe impl Versioned for KvantOpenOptions {}

/// What is known of an open model. Set struct_size to sizeof before it is filled.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantEngineInfo {
    /// sizeof(kvant_engine_info).
    pub struct_size: usize,
    /// The most tokens of a session; SIZE_MAX with a window.
    pub context: usize,
    /// Logits of a step: token ids are smaller.
    pub vocabulary: usize,
    /// Threads that compute.
    pub threads: usize,
    /// Bytes per token of a long context, scales and all.
    pub bytes_per_token: f64,
    /// The token that begins a text; -1 for none.
    pub bos: i64,
    /// The token that ends a text; -1 for none. There may be more: see kvant_engine_is_end.
    pub eos: i64,
    /// 1 for a model with a chat template, 0 for one that only continues text.
    pub converses: i32,
}

// SAFETY: numbers, the first of which is the size.
unsafe impl Versioned for KvantEngineInfo {}

/// An open model. Any number of threads may use it at once.
pub struct KvantEngine(pub(crate) Arc<Model>);

/// What the sessions of a model keep of it.
pub(crate) struct Model {
    pub opened: LoadedModel,
    policy: CString,
    notes: Vec<CString>,
    /// Made when a schema is first asked for.
    compiler: OnceLock<Result<GrammarCompiler, String>>,
}

impl Model {
    /// What turns schemas into constraints.
    pub fn compiler(&self) -> Result<&GrammarCompiler, Failure> {
        let make = || GrammarCompiler::new(self.opened.engine().tokenizer()).map_err(|e| e.to_string());
        self.compiler.get_or_init(make).as_ref().map_err(|e| Failure::new(KvantStatus::Unsupported, e))
    }
}

/// How text becomes tokens: any of these, added up.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantTokenize {
    /// The text as it is.
    Plain = 0,
    /// With the tokens around it that the model expects around a whole text.
    AddSpecial = 1,
    /// Names of control tokens in it become those tokens. Not for text that a user wrote.
    ParseSpecial = 2,
}

/// # Safety
/// What its pointers lead to is as the header says.
unsafe fn open_options(asked: &KvantOpenOptions) -> Result<OpenOptions, Failure> {
    // SAFETY: the caller's contract.
    let (kv, weights, settings) = unsafe {
        let weights = optional_text(asked.weights, "weights")?;
        (optional_text(asked.kv, "kv")?, weights, optional_text(asked.settings, "settings")?)
    };
    let mut options = OpenOptions { device: DeviceChoice::Cpu, ..OpenOptions::default() };
    if let Some(settings) = settings {
        let object = serde_json::from_str(settings)
            .map_err(|e| Failure::argument(format!("settings are not a JSON object: {e}")))?;
        options.set_all(&object).map_err(|e| Failure::argument(format!("settings: {e}")))?;
    }
    let count = |number: usize| (number > 0).then(|| number.to_string());
    let exact = (asked.exact_activations != 0).then(|| "f32".to_owned());
    let pinned = (asked.pinned != 0).then(|| "true".to_owned());
    for (name, value) in [
        ("kv", kv.map(str::to_owned)),
        ("ctx", count(asked.context)),
        ("window", count(asked.window)),
        ("kv_memory", count(asked.kv_memory)),
        ("weights", weights.map(str::to_owned)),
        ("threads", count(asked.threads)),
        ("mlock", pinned),
        ("activations", exact),
    ] {
        value.map_or(Ok(()), |value| options.set(name, &value)).map_err(Failure::argument)?;
    }
    Ok(options)
}

/// Opens the model in a GGUF file or a folder of safetensors, with a cache that suits it and a context that fits in memory.
/// Options may be NULL.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_open(
    path: *const c_char,
    open: *const KvantOpenOptions,
    engine: *mut *mut KvantEngine,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (engine, path, asked) =
            unsafe { (handle(engine, "engine")?, text(path, "path")?, options(open, "options")?) };
        // SAFETY: the caller's contract.
        let opened = unsafe { open_options(&asked) }?.open(path)?;
        // Neither has zeros within.
        let shown = |text: String| CString::new(text).unwrap_or_default();
        let notes = opened.notes().iter().map(|note| shown(note.to_string())).collect();
        let policy = shown(opened.policy().to_string());
        engine.give(KvantEngine(Arc::new(Model { opened, policy, notes, compiler: OnceLock::new() })));
        Ok(())
    })
}

/// Tells what is known of an open model.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_describe(
    engine: *const KvantEngine,
    info: *mut KvantEngineInfo,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let opened = unsafe { &borrow(engine, "engine")?.0.opened };
        let (engine, tokenizer) = (opened.engine(), opened.engine().tokenizer());
        let number = |id: Option<u32>| id.map_or(-1, i64::from);
        let known = KvantEngineInfo {
            struct_size: size_of::<KvantEngineInfo>(),
            context: opened.context(),
            vocabulary: engine.model().vocabulary(),
            threads: engine.pool().threads(),
            bytes_per_token: kvant_engine::kv::bytes_per_token(opened.policy(), engine.model().slots())?,
            bos: number(tokenizer.bos()),
            eos: number(tokenizer.eos()),
            converses: i32::from(engine.converses()),
        };
        // SAFETY: the caller's contract.
        unsafe { report(info, &known, "info") }
    })
}

/// How keys and values are kept, as text that lives as long as the engine; NULL for NULL.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_kv(engine: *const KvantEngine) -> *const c_char {
    // SAFETY: the caller's contract.
    unsafe { borrow(engine, "engine") }.map_or(std::ptr::null(), |engine| engine.0.policy.as_ptr())
}

/// Something that was decided when the model was opened and that people may want to know, such as a shorter context than usual:
/// text that lives as long as the engine. NULL beyond the last.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_note(engine: *const KvantEngine, index: usize) -> *const c_char {
    // SAFETY: the caller's contract.
    let note = unsafe { borrow(engine, "engine") }.ok().and_then(|engine| engine.0.notes.get(index));
    note.map_or(std::ptr::null(), |note| note.as_ptr())
}

/// Makes tokens of a text; `flags` are of kvant_tokenize. `count` gets how many there are, also where the buffer is too small;
/// without a buffer (NULL and 0) that is all.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_tokenize(
    engine: *const KvantEngine,
    prompt: *const c_char,
    flags: i32,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (opened, prompt) = unsafe { (&borrow(engine, "engine")?.0.opened, text(prompt, "text")?) };
        let (add, parse) = (KvantTokenize::AddSpecial as i32, KvantTokenize::ParseSpecial as i32);
        if flags & !(add | parse) != 0 {
            return Err(Failure::argument(format!("flags are {flags}, and no sum of kvant_tokenize")));
        }
        let options = EncodeOptions { add_special: flags & add != 0, parse_special: flags & parse != 0 };
        let ids = opened.engine().tokenizer().encode(prompt, options);
        let ids = ids.map_err(|e| Failure::argument(format!("the text cannot be encoded: {e}")))?;
        // SAFETY: the caller's contract.
        unsafe { fill(&ids, (tokens, capacity), count, "tokens") }
    })
}

/// Makes text of tokens, without control tokens, with a zero at its end. `length` gets its bytes, the zero not among them.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_detokenize(
    engine: *const KvantEngine,
    tokens: *const u32,
    count: usize,
    buffer: *mut c_char,
    capacity: usize,
    length: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (opened, ids) = unsafe { (&borrow(engine, "engine")?.0.opened, list(tokens, count, "tokens")?) };
        let decoded =
            opened.engine().tokenizer().decode(ids).map_err(|e| Failure::argument(e.to_string()))?;
        let mut bytes = decoded.into_bytes();
        let own = bytes.len();
        bytes.push(0);
        // SAFETY: the caller's contract.
        unsafe {
            let filled = fill(&bytes, (buffer.cast(), capacity), length, "text");
            crate::memory::out(length, "length")?.set(own);
            filled
        }
    })
}

/// Makes the tokens of a conversation whose next turn is the assistant's. `tools`, a JSON array in OpenAI's form, and `variables`,
/// a JSON object for the template (such as {"enable_thinking": false}), may be NULL.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_chat_prompt(
    engine: *const KvantEngine,
    messages: *const KvantMessage,
    message_count: usize,
    tools: *const c_char,
    variables: *const c_char,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (opened, turns, options) = unsafe {
            let messages = list(messages, message_count, "messages")?;
            let turns = crate::message::conversation(messages)?;
            (&borrow(engine, "engine")?.0.opened, turns, render_options(tools, variables)?)
        };
        let RenderOptions { tools, variables, .. } = options;
        let options = TurnOptions { tools, variables, ..TurnOptions::default() };
        let ids = opened.engine().turn(&turns, options)?.prompt;
        // SAFETY: the caller's contract.
        unsafe { fill(&ids, (tokens, capacity), count, "tokens") }
    })
}

/// What a template gets.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn render_options(
    tools: *const c_char,
    variables: *const c_char,
) -> Result<RenderOptions, Failure> {
    // SAFETY: the caller's contract.
    let (tools, variables) =
        unsafe { (optional_text(tools, "tools")?, optional_text(variables, "variables")?) };
    let tools = tools.map(|text| {
        serde_json::from_str(text).map_err(|e| Failure::argument(format!("tools are not a JSON array: {e}")))
    });
    let variables = variables.map(|text| {
        serde_json::from_str(text)
            .map_err(|e| Failure::argument(format!("variables are not a JSON object: {e}")))
    });
    Ok(RenderOptions {
        tools: tools.transpose()?.unwrap_or_default(),
        variables: variables.transpose()?.unwrap_or_default(),
        ..RenderOptions::default()
    })
}

/// 1 for a token that ends a generation, 0 for any other.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_is_end(engine: *const KvantEngine, token: u32) -> i32 {
    // SAFETY: the caller's contract.
    let engine = unsafe { borrow(engine, "engine") };
    engine.map_or(0, |engine| i32::from(engine.0.opened.engine().tokenizer().is_end_of_generation(token)))
}

/// Frees an engine. Its sessions live on. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_engine_free(engine: *mut KvantEngine) {
    // SAFETY: the caller's contract.
    unsafe { release(engine) }
}

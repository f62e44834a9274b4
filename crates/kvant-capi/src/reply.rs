//! What came of a generation.

use crate::memory::{Versioned, borrow, fill, optional, release, report};
use crate::status::{Failure, KvantStatus, guard};
use kvant_engine::reply::ParsedReply;
use kvant_engine::{Finish, Reply, Stats};
use std::ffi::c_char;

/// Why a generation ended.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KvantFinish {
    /// The model ended it.
    EndOfText = 0,
    /// One of the stop strings came up.
    Stop = 1,
    /// As many tokens as asked for.
    MaxTokens = 2,
    /// No room for another token.
    ContextFull = 3,
    /// The callback, or kvant_session_cancel, stopped it.
    Cancelled = 4,
}

/// Counts and times of a generation. Set struct_size to sizeof before it is filled.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct KvantReplyInfo {
    /// sizeof(kvant_reply_info).
    pub struct_size: usize,
    /// Tokens that were chosen, the ending one included.
    pub tokens: usize,
    /// Calls of functions: see kvant_reply_tool_call.
    pub tool_calls: usize,
    /// Tokens of the prompt that the session held already.
    pub reused: usize,
    /// Tokens of the prompt that were read.
    pub prefilled: usize,
    /// Passes of one token each.
    pub decoded: usize,
    /// Seconds to read the prompt.
    pub prefill_seconds: f64,
    /// Seconds for the tokens after the first.
    pub decode_seconds: f64,
    /// The seed that repeats it.
    pub seed: u64,
    /// Why it ended.
    pub finish: KvantFinish,
}

// SAFETY: numbers, the first of which is the size; zero is a kvant_finish.
unsafe impl Versioned for KvantReplyInfo {}

/// What came of a generation. It never changes, and any number of threads may read it.
pub struct KvantReply {
    /// Each with a zero at its end.
    text: Vec<u8>,
    reasoning: Vec<u8>,
    /// Name and arguments.
    calls: Vec<[Vec<u8>; 2]>,
    tokens: Vec<u32>,
    info: KvantReplyInfo,
}

impl KvantReply {
    pub(crate) fn new(reply: Reply, parsed: ParsedReply) -> Self {
        let ended = |text: String| {
            let mut bytes = text.into_bytes();
            bytes.push(0);
            bytes
        };
        let Stats { reused, prefilled, prefill, decoded, decode, .. } = reply.stats;
        let info = KvantReplyInfo {
            struct_size: size_of::<KvantReplyInfo>(),
            tokens: reply.tokens.len(),
            tool_calls: parsed.calls.len(),
            reused,
            prefilled,
            decoded,
            prefill_seconds: prefill.as_secs_f64(),
            decode_seconds: decode.as_secs_f64(),
            seed: reply.seed,
            finish: match reply.finish {
                Finish::EndOfText(_) => KvantFinish::EndOfText,
                Finish::Stop(_) => KvantFinish::Stop,
                Finish::MaxTokens => KvantFinish::MaxTokens,
                Finish::ContextFull => KvantFinish::ContextFull,
                Finish::Cancelled => KvantFinish::Cancelled,
            },
        };
        Self {
            text: ended(parsed.text),
            reasoning: ended(parsed.reasoning),
            calls: parsed.calls.into_iter().map(|call| [ended(call.name), ended(call.arguments)]).collect(),
            tokens: reply.tokens,
            info,
        }
    }
}

/// What was said, UTF-8 with a zero at its end, as long as the reply lives; NULL for NULL. `length` (which may be NULL) gets its
/// bytes, the zero not among them.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_text(reply: *const KvantReply, length: *mut usize) -> *const c_char {
    // SAFETY: the caller's contract.
    unsafe { lend(borrow(reply, "reply").ok().map(|reply| &reply.text), length) }
}

/// What was thought before the answer, in a chat, as kvant_reply_text tells the answer.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_reasoning(
    reply: *const KvantReply,
    length: *mut usize,
) -> *const c_char {
    // SAFETY: the caller's contract.
    unsafe { lend(borrow(reply, "reply").ok().map(|reply| &reply.reasoning), length) }
}

/// # Safety
/// `length` is NULL or can be written.
unsafe fn lend(text: Option<&Vec<u8>>, length: *mut usize) -> *const c_char {
    // SAFETY: the caller's contract.
    if let Ok(length) = unsafe { optional(length, "length") } {
        length.set(text.map_or(0, |text| text.len() - 1));
    }
    text.map_or(std::ptr::null(), |text| text.as_ptr().cast())
}

/// A call of a function: its name, and its arguments as a JSON object. Both live as long as the reply.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_tool_call(
    reply: *const KvantReply,
    index: usize,
    name: *mut *const c_char,
    arguments: *mut *const c_char,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        let (reply, name, arguments) =
            unsafe { (borrow(reply, "reply")?, optional(name, "name")?, optional(arguments, "arguments")?) };
        let count = reply.calls.len();
        let missing = || Failure::argument(format!("there is no call {index}: the reply has {count}"));
        let [own_name, own_arguments] = reply.calls.get(index).ok_or_else(missing)?;
        name.set(own_name.as_ptr().cast());
        arguments.set(own_arguments.as_ptr().cast());
        Ok(())
    })
}

/// Tells the tokens that were chosen, as kvant_engine_tokenize tells them.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_tokens(
    reply: *const KvantReply,
    tokens: *mut u32,
    capacity: usize,
    count: *mut usize,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { fill(&borrow(reply, "reply")?.tokens, (tokens, capacity), count, "tokens") }
    })
}

/// Tells counts and times.
///
/// # Safety
/// As kvant.h says of pointers.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_describe(
    reply: *const KvantReply,
    info: *mut KvantReplyInfo,
) -> KvantStatus {
    guard(|| {
        // SAFETY: the caller's contract.
        unsafe { report(info, &borrow(reply, "reply")?.info, "info") }
    })
}

/// Frees a reply. NULL is nothing.
///
/// # Safety
/// As kvant.h says of handles.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn kvant_reply_free(reply: *mut KvantReply) {
    // SAFETY: the caller's contract.
    unsafe { release(reply) }
}

//! The engine through its C functions, held against kvant's own.

use crate::support::{bits, fails, message, ok};
use crate::tiny;
use kvant::*;
use kvant_engine::{OpenOptions, Request, SamplingParams};
use std::ffi::{CStr, CString, c_char, c_void};
use std::ops::ControlFlow;
use std::ptr::{null, null_mut};

/// A model on disk, open.
pub struct Home {
    folder: tempfile::TempDir,
    pub engine: *mut KvantEngine,
}

impl Home {
    pub fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("model.gguf"), tiny::model_bytes(true)).unwrap();
        let home = Self { folder, engine: null_mut() };
        let engine = home.open(&options()).unwrap_or_else(|_| panic!("{}", message()));
        Self { engine, ..home }
    }

    fn path(&self, name: &str) -> CString {
        CString::new(self.folder.path().join(name).to_str().unwrap()).unwrap()
    }

    pub fn open(&self, options: &KvantOpenOptions) -> Result<*mut KvantEngine, KvantStatus> {
        let mut engine = null_mut();
        // SAFETY: everything lives.
        match unsafe { kvant_engine_open(self.path("model.gguf").as_ptr(), options, &mut engine) } {
            KvantStatus::Ok => Ok(engine),
            status => Err(status),
        }
    }

    pub fn session(&self) -> *mut KvantSession {
        let mut session = null_mut();
        // SAFETY: everything lives.
        ok(unsafe { kvant_session_new(self.engine, &mut session) });
        session
    }

    /// The same model by kvant's own interface.
    pub fn own(&self) -> kvant_engine::LoadedModel {
        let options = OpenOptions { context: Some(400), threads: Some(1), ..OpenOptions::default() };
        options.open(self.folder.path().join("model.gguf")).unwrap()
    }

    pub fn free(self, sessions: &[*mut KvantSession]) {
        // SAFETY: made here, and freed once; sessions outlive their engine.
        unsafe {
            kvant_engine_free(self.engine);
            sessions.iter().for_each(|session| kvant_session_free(*session));
        }
    }
}

pub fn options() -> KvantOpenOptions {
    // SAFETY: numbers and pointers.
    let zeros: KvantOpenOptions = unsafe { std::mem::zeroed() };
    KvantOpenOptions { struct_size: size_of::<KvantOpenOptions>(), context: 400, threads: 1, ..zeros }
}

pub fn generate_options() -> KvantGenerateOptions {
    // SAFETY: numbers and pointers.
    let zeros: KvantGenerateOptions = unsafe { std::mem::zeroed() };
    KvantGenerateOptions { struct_size: size_of::<KvantGenerateOptions>(), max_tokens: 12, ..zeros }
}

pub fn prompt(seed: u32, count: u32) -> Vec<u32> {
    (0..count).map(|i| (i * 7 + seed * 13) % 250).collect()
}

pub fn tokens_of(session: *const KvantSession) -> Vec<u32> {
    let mut count = 0;
    // SAFETY: everything lives.
    unsafe {
        ok(kvant_session_tokens(session, null_mut(), 0, &mut count));
        let mut tokens = vec![0; count];
        ok(kvant_session_tokens(session, tokens.as_mut_ptr(), count, &mut count));
        tokens
    }
}

fn text(pointer: *const c_char) -> String {
    // SAFETY: the library's text.
    unsafe { CStr::from_ptr(pointer) }.to_str().unwrap().to_owned()
}

fn info(reply: *const KvantReply) -> KvantReplyInfo {
    // SAFETY: numbers, and zero is a finish.
    let mut info: KvantReplyInfo = unsafe { std::mem::zeroed() };
    info.struct_size = size_of::<KvantReplyInfo>();
    // SAFETY: everything lives.
    ok(unsafe { kvant_reply_describe(reply, &mut info) });
    info
}

/// What a callback was told, and after how many texts it stops.
#[derive(Default)]
struct Heard {
    text: String,
    texts: usize,
    prefills: Vec<(usize, usize)>,
    stop_after: Option<usize>,
    /// Is used from within, and has to be refused.
    session: Option<*mut KvantSession>,
}

/// # Safety
/// `user` leads to what was [`Heard`].
unsafe extern "C" fn hear(event: *const KvantEvent, user: *mut c_void) -> i32 {
    // SAFETY: what the tests pass.
    let (event, heard) = unsafe { (&*event, &mut *user.cast::<Heard>()) };
    assert_eq!(event.struct_size, size_of::<KvantEvent>());
    if let Some(session) = heard.session {
        // SAFETY: it lives.
        let status = unsafe { kvant_session_rollback(session, 0, null_mut()) };
        fails(status, KvantStatus::Busy, &["callback"]);
    }
    match event.kind {
        KvantEventKind::Prefill => heard.prefills.push((event.done, event.total)),
        KvantEventKind::Text => {
            let said = text(event.text);
            assert_eq!(said.len(), event.length);
            heard.text.push_str(&said);
            heard.texts += 1;
        }
        KvantEventKind::Reasoning | KvantEventKind::ToolCall => {}
    }
    i32::from(heard.stop_after.is_some_and(|after| heard.texts >= after))
}

#[test]
fn generation_says_what_the_library_says() {
    let home = Home::new();
    let own = home.own();
    let session = home.session();
    let prompt = prompt(3, 150);
    let request = Request {
        prompt: prompt.clone(),
        sampling: SamplingParams::greedy(),
        max_tokens: Some(12),
        ..Request::default()
    };
    let expected = own.session().unwrap().generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut heard = Heard { session: Some(session), ..Heard::default() };
    let mut reply = null_mut();
    // SAFETY: everything lives.
    unsafe {
        let user = (&raw mut heard).cast();
        let asked = generate_options();
        ok(kvant_session_generate(
            session,
            prompt.as_ptr(),
            prompt.len(),
            &asked,
            Some(hear),
            user,
            &mut reply,
        ));
        let mut length = 0;
        assert_eq!(text(kvant_reply_text(reply, &mut length)), expected.text);
        assert_eq!((length, heard.text.as_str()), (expected.text.len(), expected.text.as_str()));
        assert_eq!(text(kvant_reply_reasoning(reply, null_mut())), "");
        let mut tokens = vec![0; 12];
        let mut count = 0;
        ok(kvant_reply_tokens(reply, tokens.as_mut_ptr(), 12, &mut count));
        assert_eq!(tokens[..count], expected.tokens);
        if count > 1 {
            let short = kvant_reply_tokens(reply, tokens.as_mut_ptr(), 1, &mut count);
            fails(short, KvantStatus::BufferTooSmall, &[&count.to_string()]);
        }
        fails(
            kvant_reply_tool_call(reply, 0, null_mut(), null_mut()),
            KvantStatus::InvalidArgument,
            &["call 0"],
        );
    }
    assert_eq!((heard.prefills[0], heard.prefills.last()), ((0, 150), Some(&(150, 150))));
    let found = info(reply);
    assert_eq!((found.prefilled, found.reused, found.tokens), (150, 0, expected.tokens.len()));
    // SAFETY: made above.
    unsafe { kvant_reply_free(reply) };
    home.free(&[session]);
}

#[test]
fn a_chat_is_the_template_and_goes_on_where_it_was() {
    let home = Home::new();
    let own = home.own();
    let session = home.session();
    let turn = |role: &'static CStr, content: &'static CStr| KvantMessage {
        role: role.as_ptr(),
        content: content.as_ptr(),
        fields: null(),
    };
    let turns = [turn(c"system", c"be kind"), turn(c"user", c"hello there")];
    let messages = [("system", "be kind"), ("user", "hello there")]
        .map(|(role, text)| kvant_text::chat::Message::new(role, text));
    let expected = own.engine().chat_prompt(&messages).unwrap();
    let (mut ids, mut count) = (vec![0; 200], 0);
    let mut reply = null_mut();
    // SAFETY: everything lives.
    unsafe {
        let (tokens, room, place) = (ids.as_mut_ptr(), ids.len(), &raw mut count);
        let prompt = |turns: &[KvantMessage], room| {
            kvant_engine_chat_prompt(
                home.engine,
                turns.as_ptr(),
                turns.len(),
                null(),
                null(),
                tokens,
                room,
                place,
            )
        };
        ok(prompt(&turns, room));
        assert_eq!(ids[..count], expected);
        fails(prompt(&turns, 3), KvantStatus::BufferTooSmall, &["room for 3"]);
        let bad = KvantMessage { fields: c"[1]".as_ptr(), ..turns[0] };
        fails(prompt(&[turns[0], bad], room), KvantStatus::InvalidArgument, &["message 1", "JSON object"]);
        let nobody = KvantMessage { role: null(), ..turns[0] };
        fails(prompt(&[nobody], room), KvantStatus::InvalidArgument, &["message 0", "role is NULL"]);

        let mut heard = Heard::default();
        let user = (&raw mut heard).cast();
        let asked = generate_options();
        ok(kvant_session_chat(session, turns.as_ptr(), 2, &asked, Some(hear), user, &mut reply));
        let request = Request {
            prompt: expected.clone(),
            sampling: SamplingParams::greedy(),
            max_tokens: Some(12),
            trim_start: true,
            ..Request::default()
        };
        let said = own.session().unwrap().generate(&request, &mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!(text(kvant_reply_text(reply, null_mut())), said.text);
        assert_eq!(heard.text, said.text);
        kvant_reply_free(reply);
        // The same once more: all but the last token is there.
        ok(kvant_session_chat(session, turns.as_ptr(), 2, &asked, None, null_mut(), &mut reply));
        assert_eq!(info(reply).reused, expected.len() - 1);
        kvant_reply_free(reply);
        let schema = c"{\"type\": \"object\", \"properties\": {\"a\": {\"enum\": [\"x\"]}}, \"required\": [\"a\"], \"additionalProperties\": false}";
        let strict = KvantGenerateOptions { json_schema: schema.as_ptr(), max_tokens: 40, ..asked };
        ok(kvant_session_chat(session, turns.as_ptr(), 2, &strict, None, null_mut(), &mut reply));
        assert_eq!(text(kvant_reply_text(reply, null_mut())), "{\"a\": \"x\"}");
        kvant_reply_free(reply);
        let broken = KvantGenerateOptions { json_schema: c"{".as_ptr(), ..asked };
        let status = kvant_session_chat(session, turns.as_ptr(), 2, &broken, None, null_mut(), &mut reply);
        fails(status, KvantStatus::InvalidArgument, &["json_schema"]);
        assert!(reply.is_null());
        let tools = KvantGenerateOptions { tools: c"{}".as_ptr(), ..asked };
        let status = kvant_session_chat(session, turns.as_ptr(), 2, &tools, None, null_mut(), null_mut());
        fails(status, KvantStatus::InvalidArgument, &["tools"]);
    }
    home.free(&[session]);
}

#[test]
fn steps_forks_rollbacks_and_files_change_no_bit() {
    let home = Home::new();
    let session = home.session();
    let prompt = prompt(5, 150);
    let (mut logits, mut length, mut fork, mut left) = (null(), 0, null_mut(), 0);
    let mut own = home.own().session().unwrap();
    // SAFETY: everything lives, and logits are read before the next call.
    unsafe {
        ok(kvant_session_prefill(session, prompt.as_ptr(), prompt.len(), &mut logits, &mut length));
        assert_eq!(bits(std::slice::from_raw_parts(logits, length)), bits(own.prefill(&prompt).unwrap()));
        for token in [3, 5, 8] {
            ok(kvant_session_step(session, token, &mut logits, &mut length));
            assert_eq!(bits(std::slice::from_raw_parts(logits, length)), bits(own.step(token).unwrap()));
        }
        ok(kvant_session_fork(session, &mut fork));
        ok(kvant_session_rollback(fork, 151, &mut left));
        assert!(left <= 151, "{left}");
        for &token in &[&prompt[..], &[3, 5, 8]].concat()[left..] {
            ok(kvant_session_step(fork, token, &mut logits, null_mut()));
        }
        let last = bits(std::slice::from_raw_parts(logits, length));
        assert_eq!(last, bits(own.logits()));

        let (file, mut other) = (home.path("saved"), 7);
        ok(kvant_session_save(session, file.as_ptr()));
        let (later, mut bytes) = (home.session(), [0; 2]);
        ok(kvant_session_resume(later, file.as_ptr(), &mut other));
        assert_eq!((tokens_of(later), other), (tokens_of(session), 0));
        ok(kvant_session_size(later, null_mut(), &mut bytes[0]));
        ok(kvant_session_size(session, null_mut(), &mut bytes[1]));
        assert!(bytes[0] == bytes[1] && bytes[0] > 0, "{bytes:?}");
        ok(kvant_session_step(later, 9, &mut logits, &mut length));
        assert_eq!(bits(std::slice::from_raw_parts(logits, length)), bits(own.step(9).unwrap()));

        // Another cache, other bytes, nothing there, another file.
        let int8 = home.open(&KvantOpenOptions { kv: c"int8".as_ptr(), ..options() }).unwrap();
        let mut foreign = null_mut();
        ok(kvant_session_new(int8, &mut foreign));
        fails(
            kvant_session_resume(foreign, file.as_ptr(), null_mut()),
            KvantStatus::Mismatch,
            &["saved", "int4"],
        );
        let nowhere = home.path("nowhere");
        fails(kvant_session_resume(later, nowhere.as_ptr(), null_mut()), KvantStatus::Io, &["nowhere"]);
        let model = home.path("model.gguf");
        fails(kvant_session_resume(later, model.as_ptr(), null_mut()), KvantStatus::BadFile, &["model.gguf"]);
        assert_eq!(tokens_of(later).len(), 154, "what fails changes nothing");
        kvant_engine_free(int8);
        home.free(&[session, fork, later, foreign]);
    }
}

#[test]
fn callbacks_and_other_threads_stop_a_generation() {
    let home = Home::new();
    let session = home.session();
    let prompt = prompt(1, 40);
    let endless = KvantGenerateOptions { max_tokens: 300, ..generate_options() };
    let mut reply = null_mut();
    let mut heard = Heard { stop_after: Some(2), ..Heard::default() };
    // SAFETY: everything lives.
    unsafe {
        let run = |heard: &mut Heard, reply: &mut *mut KvantReply| {
            let user = std::ptr::from_mut(heard).cast();
            kvant_session_generate(session, prompt.as_ptr(), prompt.len(), &endless, Some(hear), user, reply)
        };
        ok(run(&mut heard, &mut reply));
        assert_eq!((info(reply).finish, heard.texts), (KvantFinish::Cancelled, 2));
        kvant_reply_free(reply);

        // From another thread, in the middle: it waits until text has come.
        struct Shared(*mut KvantSession);
        // SAFETY: cancelling is for every thread.
        unsafe impl Sync for Shared {}
        struct Gate {
            session: Shared,
            said: std::sync::Barrier,
            cancelled: std::sync::Barrier,
        }
        /// # Safety
        /// `user` leads to a gate.
        unsafe extern "C" fn wait(event: *const KvantEvent, user: *mut c_void) -> i32 {
            // SAFETY: what is passed below.
            let (event, gate) = unsafe { (&*event, &*user.cast::<Gate>()) };
            if event.kind == KvantEventKind::Text {
                gate.said.wait();
                gate.cancelled.wait();
            }
            0
        }
        let gate = Gate {
            session: Shared(session),
            said: std::sync::Barrier::new(2),
            cancelled: std::sync::Barrier::new(2),
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let gate = &gate;
                gate.said.wait();
                fails(
                    kvant_session_step(gate.session.0, 1, null_mut(), null_mut()),
                    KvantStatus::Busy,
                    &["another thread"],
                );
                kvant_session_cancel(gate.session.0);
                gate.cancelled.wait();
            });
            let user = (&raw const gate).cast_mut().cast();
            ok(kvant_session_generate(
                session,
                prompt.as_ptr(),
                prompt.len(),
                &endless,
                Some(wait),
                user,
                &mut reply,
            ));
        });
        assert_eq!(info(reply).finish, KvantFinish::Cancelled);
        kvant_reply_free(reply);

        // Before it begins, and only once.
        kvant_session_cancel(session);
        for finish in [KvantFinish::Cancelled, KvantFinish::MaxTokens] {
            let few = KvantGenerateOptions { max_tokens: 1, ..endless };
            ok(kvant_session_generate(
                session,
                prompt.as_ptr(),
                prompt.len(),
                &few,
                None,
                null_mut(),
                &mut reply,
            ));
            assert_eq!(info(reply).finish, finish);
            kvant_reply_free(reply);
        }
        kvant_session_cancel(null());
    }
    home.free(&[session]);
}

#[test]
fn two_engines_in_two_threads_say_what_they_say_alone() {
    let homes = [Home::new(), Home::new()];
    struct Moved(*mut KvantSession);
    // SAFETY: handles may move between threads.
    unsafe impl Send for Moved {}
    let said = |session: *mut KvantSession, seed: u32| {
        let (prompt, mut reply) = (prompt(seed, 150), null_mut());
        let asked = generate_options();
        // SAFETY: everything lives.
        unsafe {
            ok(kvant_session_generate(session, prompt.as_ptr(), 150, &asked, None, null_mut(), &mut reply));
            let text = text(kvant_reply_text(reply, null_mut()));
            kvant_reply_free(reply);
            text
        }
    };
    let alone: Vec<String> = (0..2).map(|i| said(homes[i].session(), i as u32)).collect();
    let sessions: Vec<*mut KvantSession> = homes.iter().map(Home::session).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let run = |(seed, session): (usize, &*mut KvantSession)| {
            let moved = Moved(*session);
            scope.spawn(move || {
                let moved = moved;
                let text = said(moved.0, seed as u32);
                // Messages are of the thread that was told.
                // SAFETY: it lives.
                let status =
                    unsafe { kvant_session_step(moved.0, 100_000 + seed as u32, null_mut(), null_mut()) };
                fails(status, KvantStatus::InvalidArgument, &[&format!("10000{seed}")]);
                text
            })
        };
        let running: Vec<_> = sessions.iter().enumerate().map(run).collect();
        running.into_iter().map(|one| one.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    for (home, session) in homes.into_iter().zip(sessions) {
        home.free(&[session]);
    }
}

#[test]
fn words_become_tokens_and_tokens_words() {
    let home = Home::new();
    let own = home.own();
    // SAFETY: everything lives.
    unsafe {
        // SAFETY: numbers.
        let mut known: KvantEngineInfo = std::mem::zeroed();
        known.struct_size = size_of::<KvantEngineInfo>();
        ok(kvant_engine_describe(home.engine, &mut known));
        assert_eq!((known.context, known.vocabulary, known.threads, known.converses), (400, 256, 1, 1));
        assert_eq!((known.bos, known.eos), (1, 2));
        assert_eq!((kvant_engine_is_end(home.engine, 2), kvant_engine_is_end(home.engine, 5)), (1, 0));
        assert_eq!(text(kvant_engine_kv(home.engine)), "int4");
        assert!(kvant_engine_note(home.engine, 0).is_null());
        // An older caller, whose structure ends before the threads.
        let mut older: KvantEngineInfo = std::mem::zeroed();
        (older.struct_size, older.threads) = (std::mem::offset_of!(KvantEngineInfo, threads), 77);
        ok(kvant_engine_describe(home.engine, &mut older));
        assert_eq!((older.vocabulary, older.threads), (256, 77));

        let (mut ids, mut count) = (vec![0; 64], 0);
        let said = c"hello there";
        let mut tokenize = |flags, room| {
            kvant_engine_tokenize(home.engine, said.as_ptr(), flags, ids.as_mut_ptr(), room, &mut count)
        };
        fails(tokenize(8, 64), KvantStatus::InvalidArgument, &["flags"]);
        fails(tokenize(1, 2), KvantStatus::BufferTooSmall, &[]);
        ok(tokenize(KvantTokenize::AddSpecial as i32, 64));
        assert_eq!(ids[..count], own.engine().text_prompt("hello there").unwrap());
        let (mut back, mut length) = (vec![1 as c_char; 32], 0);
        let mut detokenize = |ids: &[u32], room| {
            kvant_engine_detokenize(
                home.engine,
                ids.as_ptr(),
                ids.len(),
                back.as_mut_ptr(),
                room,
                &raw mut length,
            )
        };
        ok(detokenize(&ids[..count], 32));
        fails(detokenize(&[4000], 32), KvantStatus::InvalidArgument, &["4000"]);
        fails(detokenize(&ids[..count], 11), KvantStatus::BufferTooSmall, &[]);
        assert_eq!((text(back.as_ptr()).as_str(), length), ("hello there", 11));
    }
    home.free(&[]);
}

#[test]
fn bad_arguments_are_errors() {
    let home = Home::new();
    let session = home.session();
    let (mut engine, mut reply) = (null_mut(), null_mut());
    let invalid = KvantStatus::InvalidArgument;
    // SAFETY: NULL, or something that lives.
    unsafe {
        fails(kvant_engine_open(null(), null(), &mut engine), invalid, &["path is NULL"]);
        fails(kvant_engine_open(c"x".as_ptr(), null(), null_mut()), invalid, &["engine is NULL"]);
        fails(kvant_engine_open(home.path("no").as_ptr(), null(), &mut engine), KvantStatus::Io, &["no"]);
        std::fs::write(home.folder.path().join("text.gguf"), "no model").unwrap();
        fails(
            kvant_engine_open(home.path("text.gguf").as_ptr(), null(), &mut engine),
            KvantStatus::BadFile,
            &[],
        );
        let refused = |options: KvantOpenOptions| home.open(&options).unwrap_err();
        fails(refused(KvantOpenOptions { kv: c"int5".as_ptr(), ..options() }), invalid, &["int5"]);
        fails(refused(KvantOpenOptions { weights: c"int2".as_ptr(), ..options() }), invalid, &["int2"]);
        fails(refused(KvantOpenOptions { kv_memory: 100, ..options() }), KvantStatus::OutOfMemory, &[]);
        fails(refused(KvantOpenOptions { struct_size: 3, ..options() }), invalid, &["struct_size is 3"]);
        // A structure of a newer header, whose new field is not zero.
        #[repr(C)]
        struct Newer(KvantOpenOptions, u64);
        let size = size_of::<Newer>();
        for (field, expected) in [(0, KvantStatus::Ok), (5, KvantStatus::Unsupported)] {
            let newer = Newer(KvantOpenOptions { struct_size: size, ..options() }, field);
            let path = home.path("model.gguf");
            let status = kvant_engine_open(path.as_ptr(), (&raw const newer).cast(), &mut engine);
            assert_eq!(status, expected, "{}", message());
            kvant_engine_free(engine);
        }

        fails(kvant_session_new(null(), null_mut()), invalid, &["session is NULL"]);
        fails(kvant_session_prefill(session, null(), 0, null_mut(), null_mut()), invalid, &["empty"]);
        fails(
            kvant_session_prefill(session, null(), 3, null_mut(), null_mut()),
            invalid,
            &["tokens is NULL"],
        );
        let long = vec![5; 401];
        let status = kvant_session_prefill(session, long.as_ptr(), 401, null_mut(), null_mut());
        fails(status, KvantStatus::ContextFull, &["401", "400"]);
        let odd = long.as_ptr().cast::<u8>().wrapping_add(1).cast();
        fails(kvant_session_prefill(session, odd, 1, null_mut(), null_mut()), invalid, &["aligned"]);
        fails(
            kvant_session_prefill(session, long.as_ptr(), usize::MAX, null_mut(), null_mut()),
            invalid,
            &["memory"],
        );
        let mut generate = |options: &KvantGenerateOptions| {
            kvant_session_generate(session, long.as_ptr(), 9, options, None, null_mut(), &mut reply)
        };
        let asked = generate_options();
        fails(generate(&KvantGenerateOptions { temperature: -1.0, ..asked }), invalid, &["temperature"]);
        fails(generate(&KvantGenerateOptions { top_p: f32::NAN, ..asked }), invalid, &["top_p"]);
        fails(generate(&KvantGenerateOptions { stop_count: 1, ..asked }), invalid, &["stop is NULL"]);
        fails(
            generate(&KvantGenerateOptions { tools: c"[]".as_ptr(), ..asked }),
            invalid,
            &["kvant_session_chat"],
        );
        fails(
            kvant_session_chat(session, null(), 2, null(), None, null_mut(), null_mut()),
            invalid,
            &["messages is NULL"],
        );
        fails(kvant_session_save(session, home.path("no/where").as_ptr()), KvantStatus::Io, &["no/where"]);
        fails(kvant_session_tokens(session, null_mut(), 0, null_mut()), invalid, &["count is NULL"]);
        assert!(kvant_reply_text(null(), null_mut()).is_null());
        kvant_reply_free(null_mut());
        kvant_session_free(null_mut());
        kvant_engine_free(null_mut());
        assert_eq!(kvant_abi_version(), KVANT_ABI_VERSION);
        assert_eq!(text(kvant_version()), env!("CARGO_PKG_VERSION"));
    }
    home.free(&[session]);
}

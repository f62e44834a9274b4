//! A model with its words: text and conversations in, token ids out.

use crate::chat_prompt::Rendered;
use crate::defaults::makers_sampling;
use crate::encoder::pooling_of;
use crate::least_tokens::LeastTokens;
use crate::reply::{ChatFormat, ReplyParser};
use crate::rerank::Judge;
use crate::sampler::{SamplingOverrides, SamplingParams};
use crate::scheduler::Pooling;
use crate::session::{CARD_PREFILL_CHUNK, PREFILL_CHUNK, Session};
use crate::signature::{device_numerics, numerics};
use crate::speculation::{
    DraftModel, DraftProposer, MakeProposer, MtpHead, MtpSequence, Proposer, SuffixProposer,
};
use kvant_attention::{KvCache, KvUnsupported};
use kvant_cache::snapshot::Numerics;
use kvant_cache::{Policy, Sequence, Store};
use kvant_cpu::{Cpu, LoadOptions};
use kvant_model::{
    AdapterMix, AppliedAdapter, Backend, Checkpoint, ForwardError, LoadError, Model, Outputs, Pass,
};
use kvant_text::chat::{ChatError, ChatTemplate, Message, RenderOptions};
use kvant_text::tokenizer::{EncodeOptions, Tokenizer, TokenizerError};
use kvant_threads::Pool;
use std::sync::{Arc, OnceLock};

/// Everything a checkpoint holds that generation needs. It is immutable; sessions share it.
pub struct Engine {
    model: Arc<Model>,
    tokenizer: Tokenizer,
    template: Option<ChatTemplate>,
    format: ChatFormat,
    /// Control tokens that replies are split at.
    reply_markers: Vec<u32>,
    sampling: SamplingOverrides,
    /// What its passes run on.
    pool: Pool,
    /// What compiled the model.
    device: String,
    /// Which of its kernels compute.
    arithmetic: String,
    /// Made when a prompt is first bounded by them.
    least_tokens: OnceLock<LeastTokens>,
    /// Made when a text is first generated with DRY.
    breakers: OnceLock<Arc<[u32]>>,
    /// Who guesses how texts go on; none for one token a pass.
    proposers: Option<MakeProposer>,
    /// What sequences run with that ask for nothing else.
    adapters: AdapterMix,
    /// Those that requests may ask for.
    library: Vec<OpenedAdapter>,
    /// How it judges documents.
    judge: Option<Judge>,
    /// How vectors of tokens become that of a text, or what its files ask for that is not known.
    pooling: Result<Pooling, String>,
}

/// A LoRA adapter that was opened with a model.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenedAdapter {
    /// The adapter, and how strongly it is meant to be applied.
    pub applied: AppliedAdapter,
    /// A server applies it where a request asks for it alone.
    pub on_request: bool,
}

/// Why a prompt could not be made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PromptError {
    /// The vocabulary cannot express the text.
    #[error("the prompt cannot be encoded: {0}")]
    Tokenizer(#[from] TokenizerError),
    /// The template failed or refused.
    #[error(transparent)]
    Chat(#[from] ChatError),
    /// There is no template.
    #[error(
        "this model has no chat template: it continues text and does not converse; give it text as it is"
    )]
    NoTemplate,
    /// It does not write.
    #[error("this model is an encoder: it gives vectors of texts or scores of pairs, and does not converse")]
    Encoder,
    /// It fits into no context of that size.
    #[error("the prompt has at least {least} tokens, but the context holds {context}: shorten it")]
    TooLong {
        /// Tokens that it has at least.
        least: usize,
        /// Tokens the context holds.
        context: usize,
    },
}

impl Engine {
    /// Loads model, tokenizer and chat template; passes run on as many threads as there are processors for this program.
    ///
    /// # Errors
    /// If one of them cannot be read; a missing template is none.
    pub fn load(checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, LoadError> {
        Self::load_on(Pool::new(kvant_threads::processors()), checkpoint, options)
    }

    /// The same with a pool of the caller's, which engines may share or not: two engines with a pool each run side by side.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn load_on(pool: Pool, checkpoint: &Checkpoint, options: LoadOptions) -> Result<Self, LoadError> {
        Self::load_with(pool, checkpoint, &Cpu::new(options)?)
    }

    /// The same on any backend: its sequences take their pages from its store.
    ///
    /// # Errors
    /// As [`Engine::load`], and if the backend does not run a block of the model.
    pub fn load_with(
        pool: Pool,
        checkpoint: &Checkpoint,
        backend: &(dyn Backend + Sync),
    ) -> Result<Self, LoadError> {
        // A vocabulary takes about as long to read as the weights of a small model.
        let (model, (tokenizer, template)) = std::thread::scope(|scope| {
            let words = scope.spawn(|| (Tokenizer::of(checkpoint), ChatTemplate::of(checkpoint)));
            let model = pool.install(|| Model::load(backend, checkpoint));
            (model, words.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        });
        let (model, tokenizer) = (Arc::new(model?), tokenizer?);
        let (device, arithmetic) = (backend.name().to_owned(), backend.arithmetic());
        let (format, reply_markers) = (ChatFormat::default(), Vec::new());
        let sampling = makers_sampling(checkpoint)?;
        let judge = Judge::of(checkpoint, &tokenizer);
        let pooling = pooling_of(checkpoint)?;
        let proposers = model.abilities().any_rows.then(SuffixProposer::maker);
        let engine = Self {
            model,
            tokenizer,
            template: None,
            format,
            reply_markers,
            sampling,
            pool,
            device,
            arithmetic,
            least_tokens: OnceLock::new(),
            breakers: OnceLock::new(),
            proposers,
            adapters: AdapterMix::default(),
            library: Vec::new(),
            judge,
            pooling,
        };
        Ok(match template? {
            Some(template) => engine.with_template(template),
            None => engine,
        })
    }

    /// The same model with another chat template; how it replies is read from that.
    #[must_use]
    pub fn with_template(self, template: ChatTemplate) -> Self {
        let format = ChatFormat::of(template.source(), &self.tokenizer);
        let reply_markers = format.marker_tokens(&self.tokenizer);
        Self { template: Some(template), format, reply_markers, ..self }
    }

    /// The same model without speculative decoding. The output is the same.
    #[must_use]
    pub fn without_speculation(self) -> Self {
        Self { proposers: None, ..self }
    }

    /// The same model with a draft model, which has to have its words: [`DraftModel::new`] compares them.
    ///
    /// # Errors
    /// As [`Engine::with_proposers`].
    pub fn with_draft(self, draft: DraftModel) -> Result<Self, LoadError> {
        let draft = Arc::new(draft);
        self.with_proposers(Some(Arc::new(move || Box::new(DraftProposer::new(Arc::clone(&draft))))))
    }

    /// The same, where the head of its file that guesses further tokens (MTP) says what follows. The head was loaded
    /// ([`LoadOptions::mtp`]); its sequences hold at most `context` tokens, kept as `policy` says on pages of `store`.
    ///
    /// # Errors
    /// As [`Engine::with_proposers`], and if there is no such head, or no cache keeps its keys and values like that.
    pub fn with_mtp(self, (policy, context, store): (Policy, usize, Store)) -> Result<Self, LoadError> {
        let kept = (policy, context, store);
        let head = Arc::new(MtpHead::new(Arc::clone(&self.model), self.pool.clone(), kept)?);
        let make = move || -> Box<dyn Proposer> {
            Box::new(DraftProposer::with(MtpSequence::new(Arc::clone(&head))))
        };
        self.with_proposers(Some(Arc::new(make)))
    }

    /// The same with proposers of the caller's own, one for each text.
    ///
    /// # Errors
    /// If the model is on a device whose logits may depend on how many tokens are read together.
    pub fn with_proposers(self, proposers: Option<MakeProposer>) -> Result<Self, LoadError> {
        if proposers.is_some() && !self.model.abilities().any_rows {
            return Err(LoadError::unsupported(format!(
                "speculative decoding on {}: its logits may depend on how many tokens are read together; use --speculate off",
                self.device
            )));
        }
        Ok(Self { proposers, ..self })
    }

    /// The same model, whose sequences run with LoRA adapters where they ask for nothing else ([`Request::adapters`](crate::Request)).
    ///
    /// # Errors
    /// If the device applies no adapters, or one was opened for another model.
    pub fn with_adapters(self, adapters: AdapterMix) -> Result<Self, LoadError> {
        self.model.check_adapters(&adapters).map_err(|e| LoadError::unsupported(e.to_string()))?;
        Ok(Self { adapters, ..self })
    }

    /// The same model with adapters that requests may ask for by name; sequences that ask for nothing run with all of them.
    ///
    /// # Errors
    /// As [`Engine::with_adapters`].
    pub fn with_library(self, library: Vec<OpenedAdapter>) -> Result<Self, LoadError> {
        let all = AdapterMix::new(library.iter().map(|opened| opened.applied.clone()));
        Ok(Self { library, ..self.with_adapters(all)? })
    }

    /// The adapters that were opened with it, in that order.
    pub fn library(&self) -> &[OpenedAdapter] {
        &self.library
    }

    /// The adapters that its sequences run with where they ask for nothing else.
    pub fn adapters(&self) -> &AdapterMix {
        &self.adapters
    }

    /// How it judges documents, where it knows the words for that.
    pub fn judge(&self) -> Option<&Judge> {
        self.judge.as_ref()
    }

    /// How the vectors of tokens become that of a text where nobody says: as its files have it, or else their mean.
    ///
    /// # Errors
    /// If they ask for something that is not known, in words.
    pub fn pooling(&self) -> Result<Pooling, &str> {
        self.pooling.as_ref().copied().map_err(String::as_str)
    }

    /// Whether texts are generated with speculative decoding.
    pub fn speculates(&self) -> bool {
        self.proposers.is_some()
    }

    /// Settings with what only the vocabulary tells: the tokens that end a text, where they are forbidden, and those that end DRY's
    /// sequences.
    pub(crate) fn complete(&self, mut sampling: SamplingParams) -> SamplingParams {
        if sampling.ignore_eos {
            let ends = self.tokenizer.end_of_generation().iter();
            sampling.logit_bias.extend(ends.map(|&id| (id, f32::NEG_INFINITY)));
        }
        if sampling.dry_multiplier > 0.0 && sampling.dry_breakers.is_none() {
            let found = self.breakers.get_or_init(|| self.breakers_of(&["\n", ":", "\"", "*"]).into());
            sampling.dry_breakers = Some(Arc::clone(found));
        }
        sampling
    }

    /// The tokens that end the sequences which DRY looks at, in rising order: those with one of these texts in theirs, and where no token
    /// has one, the last token of that text.
    pub fn breakers_of(&self, texts: &[&str]) -> Vec<u32> {
        let count = u32::try_from(self.tokenizer.vocab_len()).unwrap_or(u32::MAX);
        let bytes_of = |id: u32| self.tokenizer.text_bytes(id).unwrap_or_default();
        let mut found = Vec::new();
        for text in texts.iter().filter(|text| !text.is_empty()) {
            let has_it = |id: &u32| bytes_of(*id).windows(text.len()).any(|part| part == text.as_bytes());
            let before = found.len();
            found.extend((0..count).filter(has_it));
            if found.len() == before {
                let encoded = self.tokenizer.encode(text, EncodeOptions::default()).unwrap_or_default();
                found.extend(encoded.last());
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Somebody who guesses how a text goes on.
    pub(crate) fn proposer(&self) -> Option<Box<dyn Proposer>> {
        self.proposers.as_ref().map(|make| make())
    }

    /// What its passes run on.
    pub fn pool(&self) -> &Pool {
        &self.pool
    }

    /// What computes: `cpu`, or the name of a device.
    pub fn device(&self) -> &str {
        &self.device
    }

    /// The rounding that its sequences are computed with.
    pub fn numerics(&self) -> Numerics {
        match self.model.device_store() {
            None => numerics(),
            Some(_) => device_numerics(&self.device, &self.arithmetic),
        }
    }

    /// The most prompt tokens that a pass over sequences like this one, of so many tokens, takes.
    ///
    /// **Invariant:** no result depends on it.
    pub(crate) fn prefill_chunk(&self, sequence: &Sequence, context: usize) -> usize {
        let fits = |cap| sequence.layout().arena_bytes(context, CARD_PREFILL_CHUNK) <= cap;
        let is_card = self.device.starts_with("cuda") || self.arithmetic.contains("matrices");
        match is_card && sequence.store().cap().is_none_or(fits) {
            true => CARD_PREFILL_CHUNK,
            false => PREFILL_CHUNK,
        }
    }

    /// The network.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The vocabulary.
    pub fn tokenizer(&self) -> &Tokenizer {
        &self.tokenizer
    }

    /// True for a model that was taught to converse.
    pub fn converses(&self) -> bool {
        self.template.is_some()
    }

    /// The chat template, as its authors wrote it.
    pub fn template(&self) -> Option<&str> {
        self.template.as_ref().map(ChatTemplate::source)
    }

    /// How its makers want it sampled.
    pub fn sampling_defaults(&self) -> &SamplingOverrides {
        &self.sampling
    }

    /// How it replies, as far as template and vocabulary show.
    pub fn chat_format(&self) -> &ChatFormat {
        &self.format
    }

    /// The control tokens that a [`ReplyParser`] has to see: [`Request::markers`](crate::Request::markers) of a conversation.
    pub fn reply_markers(&self) -> &[u32] {
        &self.reply_markers
    }

    /// Splits the reply to a conversation that was made by [`Engine::chat_prompt`] with these tools.
    pub fn reply_parser(&self, prompt: &[u32], tools: &[serde_json::Value]) -> ReplyParser {
        ReplyParser::new(&self.format, tools).after(&self.prompt_end(prompt))
    }

    /// The end of a prompt, with control tokens by their names: what a [`ReplyParser`] goes on from.
    pub fn prompt_end(&self, prompt: &[u32]) -> String {
        // More than any opening has.
        let end = &prompt[prompt.len().saturating_sub(64)..];
        let bytes: Vec<u8> =
            end.iter().flat_map(|&id| self.tokenizer.token_bytes(id).unwrap_or_default()).copied().collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Bounds texts by their bytes.
    pub(crate) fn least_tokens(&self) -> &LeastTokens {
        self.least_tokens.get_or_init(|| LeastTokens::new(&self.tokenizer))
    }

    /// The ids of a text to be continued. What looks like a control token in it stays plain text.
    ///
    /// # Errors
    /// If the vocabulary cannot express the text.
    pub fn text_prompt(&self, text: &str) -> Result<Vec<u32>, PromptError> {
        Ok(self.tokenizer.encode(text, EncodeOptions { add_special: true, parse_special: false })?)
    }

    /// The ids of a conversation whose next turn is the assistant's. What looks like a control token in its turns stays plain text.
    ///
    /// # Errors
    /// If the model has no chat template, or the template refuses the conversation.
    pub fn chat_prompt(&self, messages: &[Message]) -> Result<Vec<u32>, PromptError> {
        self.chat_prompt_with(messages, RenderOptions::default())
    }

    /// The same with tools and variables for the template; the names of special tokens are filled in.
    ///
    /// # Errors
    /// As [`Engine::chat_prompt`].
    pub fn chat_prompt_with(
        &self,
        messages: &[Message],
        options: RenderOptions,
    ) -> Result<Vec<u32>, PromptError> {
        self.rendered(messages, options)?.encode(&self.tokenizer)
    }

    /// The text of a conversation as the template writes it.
    ///
    /// # Errors
    /// As [`Engine::chat_prompt`].
    pub fn chat_text(&self, messages: &[Message], options: RenderOptions) -> Result<String, PromptError> {
        Ok(self.rendered(messages, options)?.into_text())
    }

    /// The same for an answer that comes at once, without reasoning: what a constraint on the answer needs.
    ///
    /// # Errors
    /// As [`Engine::chat_prompt`].
    pub fn answer_prompt_with(
        &self,
        messages: &[Message],
        options: RenderOptions,
    ) -> Result<Vec<u32>, PromptError> {
        self.rendered_for_answer(messages, options)?.encode(&self.tokenizer)
    }

    pub(crate) fn rendered_for_answer(
        &self,
        messages: &[Message],
        options: RenderOptions,
    ) -> Result<Rendered, PromptError> {
        let mut rendered = self.rendered(messages, options)?;
        rendered.text.push_str(self.format.answer_opening(&rendered.text));
        Ok(rendered)
    }

    pub(crate) fn rendered(
        &self,
        messages: &[Message],
        options: RenderOptions,
    ) -> Result<Rendered, PromptError> {
        let missing = || if self.model.is_encoder() { PromptError::Encoder } else { PromptError::NoTemplate };
        let template = self.template.as_ref().ok_or_else(missing)?;
        let name = |id: Option<u32>| id.and_then(|id| self.tokenizer.token_name(id)).unwrap_or_default();
        let (bos_token, eos_token) = (name(self.tokenizer.bos()), name(self.tokenizer.eos()));
        let options = RenderOptions { bos_token, eos_token, ..options };
        Rendered::new(template, &self.tokenizer, &self.format, messages, options)
    }

    /// One pass of the model over these sequences; see [`Model::forward`].
    ///
    /// # Errors
    /// If tokens or positions are out of range, the backend cannot do what the pass asks, or a sequence refuses; nothing has changed
    /// then.
    pub fn forward(&self, pass: Pass<'_>, sequences: &mut [&mut Sequence]) -> Result<Outputs, ForwardError> {
        let span = tracing::debug_span!("pass", tokens = pass.rows(), sequences = sequences.len());
        span.in_scope(|| self.pool.install(|| self.model.forward(pass, sequences)))
    }

    /// An empty sequence of at most `context` tokens whose keys and values are kept as `kv` says.
    ///
    /// # Errors
    /// If no cache keeps them that way.
    pub fn session(
        self: &Arc<Self>,
        kv: impl Into<Policy>,
        context: usize,
    ) -> Result<Session, KvUnsupported> {
        self.session_in(self.model.store(), kv, context)
    }

    /// The same with pages from an arena that may have a cap, and may be shared; or from the store of the model's device.
    ///
    /// # Errors
    /// As [`Engine::session`].
    pub fn session_in(
        self: &Arc<Self>,
        store: impl Into<Store>,
        kv: impl Into<Policy>,
        context: usize,
    ) -> Result<Session, KvUnsupported> {
        Ok(Session::new(Arc::clone(self), KvCache::in_arena(kv, self.model.slots(), context, store)?))
    }
}

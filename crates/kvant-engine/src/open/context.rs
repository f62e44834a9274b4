//! How many tokens a session holds: as asked for, or as suits model and machine.

use super::OpenOptions;
use super::error::{OpenError, OpenNote};
use crate::estimate::{ContextKind, DoesNotFit, MemoryEstimate, RunConfig, largest};
use crate::kv;
use crate::signature::rotates_by_context;
use kvant_cache::Policy;
use kvant_model::{Checkpoint, Description};
use std::num::NonZero;

/// The context of a model whose file does not say what it was made for.
pub const UNKNOWN_CONTEXT: usize = 8192;
/// A context that memory has shortened is a multiple of this, if it is longer than [`ROUNDED_FROM`].
const ROUNDED_TO: usize = 1024;
const ROUNDED_FROM: usize = 4096;
/// Part of the memory there is that a context nobody asked for leaves to others.
const LEFT_TO_OTHERS: u64 = 16;

/// The context of a model when none is asked for, memory aside: its own. Pages come as they are needed, so a long context costs
/// nothing until it is used.
pub fn default_context(description: &Description) -> usize {
    let own = description.context.unwrap_or(UNKNOWN_CONTEXT);
    description.position_limit().map_or(own, |limit| own.min(limit))
}

/// What a context is chosen by.
pub(super) struct ContextRequest<'a> {
    pub checkpoint: &'a Checkpoint,
    pub description: &'a Description,
    /// With the window that is asked for.
    pub policy: &'a Policy,
    pub options: &'a OpenOptions,
    /// Bytes of memory before anything was loaded, where the system tells.
    pub available: Option<u64>,
    /// Whether that is memory of a device's own.
    pub on_device: bool,
}

impl ContextRequest<'_> {
    /// The most tokens of a session.
    pub fn choose(&self, notes: &mut Vec<OpenNote>) -> Result<usize, OpenError> {
        match self.options.window {
            Some(window) => self.streaming(window, notes),
            None => self.context(notes),
        }
    }

    fn context(&self, notes: &mut Vec<OpenNote>) -> Result<usize, OpenError> {
        let (asked, kind) = (self.options.context, ContextKind::Context);
        if let Some(asked) = asked {
            if let Some(limit) = self.description.position_limit().filter(|&limit| asked > limit) {
                return Err(OpenError::TooFewPositions { kind, asked, limit });
            }
            self.note_training(kind, asked, notes);
        }
        let states = &self.description.slots;
        let capped =
            |tokens| self.within_cap(kind, tokens, |context| Ok(kv::memory(self.policy, states, context)?));
        if let Some(asked) = asked {
            capped(asked)?;
            self.fits(asked, self.available)?.map_err(Box::new)?;
            return Ok(asked);
        }
        let usual = default_context(self.description);
        let allowed = match capped(usual) {
            Err(OpenError::ExceedsCap { longest: Some(longest), .. }) => longest,
            other => other.map(|()| usual)?,
        };
        let context = match self.fits(allowed, self.available.map(|all| all - all / LEFT_TO_OTHERS))? {
            Ok(()) => allowed,
            Err(DoesNotFit { longest: Some(longest), .. }) => longest,
            Err(error) => return Err(Box::new(error).into()),
        };
        if context == usual {
            return Ok(usual);
        }
        let context = self.rounded(context);
        notes.push(OpenNote::ShorterContext { context, usual });
        Ok(context)
    }

    /// A shortened context as a number that the next run comes to as well; where it decides the rotation, the more so.
    fn rounded(&self, context: usize) -> usize {
        match context {
            short @ ..=ROUNDED_FROM => short,
            _ if rotates_by_context(self.checkpoint) => 1 << context.ilog2(),
            _ => context - context % ROUNDED_TO,
        }
    }

    /// No limit, if a full window can be.
    fn streaming(&self, window: usize, notes: &mut Vec<OpenNote>) -> Result<usize, OpenError> {
        let kind = ContextKind::Window;
        if let Some(limit) = self.description.position_limit() {
            return Err(OpenError::TooFewPositions { kind, asked: window, limit });
        }
        self.note_training(kind, window, notes);
        let (mut policy, states) = (self.policy.clone(), &self.description.slots);
        self.within_cap(kind, window, |window| {
            policy.rule.streaming = Some(window);
            Ok(kv::memory(&policy, states, usize::MAX)?)
        })?;
        self.fits(usize::MAX, self.available)?.map_err(Box::new)?;
        Ok(usize::MAX)
    }

    fn note_training(&self, kind: ContextKind, asked: usize, notes: &mut Vec<OpenNote>) {
        let Some(trained) = self.description.context else { return };
        if asked > trained {
            notes.push(OpenNote::BeyondTraining { kind, asked, trained });
        }
    }

    /// Whether a full cache stays within the cap, by the bytes that it needs.
    fn within_cap(
        &self,
        kind: ContextKind,
        tokens: usize,
        mut needs: impl FnMut(usize) -> Result<usize, OpenError>,
    ) -> Result<(), OpenError> {
        let Some(cap) = self.options.kv_memory else { return Ok(()) };
        let needed = needs(tokens)?;
        if needed <= cap {
            return Ok(());
        }
        let longest = largest(tokens, |tokens| needs(tokens).is_ok_and(|needed| needed <= cap));
        Err(OpenError::ExceedsCap { kind, tokens, needed, cap, longest })
    }

    /// Whether a run until this many tokens are held fits in memory, as far as the system tells.
    fn fits(&self, tokens: usize, available: Option<u64>) -> Result<Result<(), DoesNotFit>, OpenError> {
        let Some(available) = available else { return Ok(Ok(())) };
        let processors = || std::thread::available_parallelism().map_or(1, NonZero::get);
        let threads = self.options.threads.unwrap_or_else(processors);
        let run = RunConfig {
            weights: self.options.weights,
            on_device: self.on_device,
            ..RunConfig::answer(self.policy, tokens, threads)
        };
        Ok(MemoryEstimate::check(available, self.checkpoint, self.description, &run)?.map(drop))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    struct Fixture {
        checkpoint: Checkpoint,
        description: Description,
    }

    fn fixture(name: &str) -> Fixture {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../kvant-model/tests/fixtures").join(name);
        let checkpoint = Checkpoint::open(folder).unwrap();
        let description = Description::of(&checkpoint).unwrap();
        Fixture { checkpoint, description }
    }

    impl Fixture {
        fn choose(
            &self,
            options: &OpenOptions,
            available: Option<u64>,
        ) -> Result<(usize, Vec<OpenNote>), OpenError> {
            let policy = options.complete("int4".parse().unwrap());
            let Self { checkpoint, description } = self;
            let mut notes = Vec::new();
            let request = ContextRequest {
                checkpoint,
                description,
                policy: &policy,
                options,
                available,
                on_device: false,
            };
            Ok((request.choose(&mut notes)?, notes))
        }
    }

    fn context(tokens: usize) -> OpenOptions {
        OpenOptions { context: Some(tokens), threads: Some(2), ..OpenOptions::default() }
    }

    #[test]
    fn a_context_that_was_asked_for_is_had_or_refused() {
        let llama = fixture("llama");
        let own = llama.description.context.unwrap();
        assert_eq!(llama.choose(&context(own), None).unwrap(), (own, Vec::new()));
        let kind = ContextKind::Context;
        let beyond = OpenNote::BeyondTraining { kind, asked: own + 1, trained: own };
        assert_eq!(llama.choose(&context(own + 1), None).unwrap(), (own + 1, vec![beyond]));
        let policy: Policy = "int4".parse().unwrap();
        let run = RunConfig::answer(&policy, 2 * own, 2);
        let peak = MemoryEstimate::new(&llama.checkpoint, &llama.description, &run).unwrap().peak();
        assert!(llama.choose(&context(2 * own), Some(peak)).is_ok());
        let Err(OpenError::DoesNotFit(error)) = llama.choose(&context(100 * own), Some(peak)) else {
            panic!("one byte too many")
        };
        assert!(error.longest.unwrap() >= 2 * own, "{error}");
        // Positions that were learned one by one have an end.
        let gpt2 = fixture("gpt2");
        let limit = gpt2.description.position_limit().unwrap();
        assert_eq!(gpt2.choose(&context(limit), None).unwrap().0, limit);
        let error = gpt2.choose(&context(limit + 1), None).unwrap_err().to_string();
        assert!(error.contains(&format!("a context of {} tokens", limit + 1)), "{error}");
        assert!(gpt2.choose(&OpenOptions { window: Some(8), ..OpenOptions::default() }, None).is_err());
    }

    #[test]
    fn a_context_that_was_not_asked_for_is_what_fits() {
        let llama = fixture("llama");
        let usual = default_context(&llama.description);
        let options = OpenOptions { threads: Some(2), ..OpenOptions::default() };
        assert_eq!(llama.choose(&options, Some(u64::MAX)).unwrap(), (usual, Vec::new()));
        assert_eq!(llama.choose(&options, None).unwrap().0, usual);
        let policy: Policy = "int4".parse().unwrap();
        let of = |tokens| {
            let run = RunConfig::answer(&policy, tokens, 2);
            MemoryEstimate::new(&llama.checkpoint, &llama.description, &run).unwrap().peak()
        };
        let half = of(usual / 2);
        assert!(half < of(usual), "the fixture's context is long enough to matter");
        let (chosen, notes) = llama.choose(&options, Some(half + half / (LEFT_TO_OTHERS - 1) + 1)).unwrap();
        assert!((usual / 2..usual).contains(&chosen) && of(chosen) <= half, "{chosen}");
        assert_eq!(notes, [OpenNote::ShorterContext { context: chosen, usual }]);
        assert!(matches!(llama.choose(&options, Some(1 << 20)), Err(OpenError::DoesNotFit(_))));
    }

    #[test]
    fn the_cap_bounds_contexts_and_windows_and_names_the_longest() {
        let llama = fixture("llama");
        let policy: Policy = "int4".parse().unwrap();
        let bytes = |tokens| kv::memory(&policy, &llama.description.slots, tokens).unwrap();
        let cap = bytes(1000);
        let capped =
            |options: OpenOptions| llama.choose(&OpenOptions { kv_memory: Some(cap), ..options }, None);
        assert_eq!(capped(context(1000)).unwrap().0, 1000);
        let Err(OpenError::ExceedsCap { longest, needed, .. }) = capped(context(4000)) else {
            panic!("more than the cap")
        };
        let longest = longest.unwrap();
        assert_eq!(needed, bytes(4000));
        // One that nobody asked for is made to fit.
        let usual = default_context(&llama.description);
        let small = OpenOptions { kv_memory: Some(bytes(300)), ..OpenOptions::default() };
        let (context, notes) = llama.choose(&small, None).unwrap();
        assert!((300..usual).contains(&context) && bytes(context) <= bytes(300), "{context}");
        assert_eq!(notes, [OpenNote::ShorterContext { context, usual }]);
        assert!(longest >= 1000 && bytes(longest) <= cap && bytes(longest + 1) > cap, "{longest}");
        let window = |tokens| OpenOptions { window: Some(tokens), ..OpenOptions::default() };
        assert_eq!(llama.choose(&window(64), None).unwrap().0, usize::MAX);
        let Err(OpenError::ExceedsCap { kind, longest, .. }) = capped(window(4000)) else {
            panic!("more than the cap")
        };
        assert_eq!(kind, ContextKind::Window);
        assert_eq!(capped(window(longest.unwrap())).unwrap().0, usize::MAX);
    }
}

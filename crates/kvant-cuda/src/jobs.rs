//! Pages that a pass closes: taken from sequences, gathered by slot, and listed for the encoders.

use crate::cache::SlotPages;
use crate::pages::unit_as;
use crate::pass::PassParams;
use kvant_cache::{KvSlot, PageId, PageKind, PageWork, Sequence};
use kvant_codec::Side;

/// Pages to encode: (exact keys, exact values, keys, values) of each, then the kv heads. Of slots of any codec keys alone, (exact, page, kv head, 0).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct JobsPlan {
    pub at: u64,
    pub count: usize,
    /// Of values that are encoded apart from keys, where these are of a plan or of any codec.
    pub values_at: u64,
    pub values: usize,
}

/// One side of a page that is to be encoded.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EncodeJob {
    /// Its kv head.
    pub head: usize,
    pub exact: PageId,
    pub page: PageId,
    /// What it has before it is padded.
    pub tokens: usize,
}

/// What is to be encoded in a slot: keys, values.
#[derive(Default)]
pub(crate) struct EncodeJobs(pub [Vec<EncodeJob>; 2]);

impl EncodeJobs {
    /// The pages that codes are written to.
    pub(crate) fn pages(&self) -> impl Iterator<Item = PageId> {
        self.0.iter().flatten().map(|job| job.page)
    }
}

/// Takes the pages of a chunk in a slot, and gathers what is to be encoded.
pub(crate) fn take_pages(
    slot: KvSlot,
    of: &SlotPages,
    sequence: &mut Sequence,
    tokens: usize,
    strict: bool,
    jobs: &mut EncodeJobs,
) -> Result<(), TakeError> {
    let mut partial = None;
    let before = jobs.0.each_ref().map(Vec::len);
    // In strict mode even f16 wants its last page written anew; nothing reads that.
    let is_exact = strict && of.codec == "f16";
    let mut note = |head: usize, side: Side, work: PageWork| {
        if let PageWork::Encode { exact, tokens, page } = work
            && !is_exact
        {
            let (index, whole) = match side {
                Side::Key => (0, of.units.pages[0] * of.units.tokens),
                Side::Value => (1, of.units.pages[1] * of.units.tokens),
            };
            partial = partial.or(Some(tokens).filter(|tokens| *tokens != whole && !strict));
            jobs.0[index].push(EncodeJob { head, exact, page, tokens });
        }
    };
    sequence.append_on_device(slot, tokens, &mut note).map_err(TakeError::Cache)?;
    if let Some(tokens) = partial {
        return Err(TakeError::Device(format!("a page of {tokens} tokens is to be encoded")));
    }
    jobs.0.iter_mut().zip(before).for_each(|(own, before)| own[before..].sort_by_key(|job| job.head));
    let heads = |side: usize| jobs.0[side].iter().map(|job| job.head);
    if of.planned.is_none() && of.general.is_none() && !heads(0).eq(heads(1)) {
        return Err(TakeError::Device("keys and values are not encoded together".to_owned()));
    }
    Ok(())
}

/// Why pages were not taken.
pub(crate) enum TakeError {
    Cache(kvant_cache::CacheError),
    Device(String),
}

/// Enters the pages that are to be encoded: keys beside values, or, where keys are of a plan, keys and then values.
pub(crate) fn add_jobs(
    words: &mut PassParams,
    of: &SlotPages,
    jobs: &EncodeJobs,
) -> Result<JobsPlan, String> {
    let [keys, values] = &jobs.0;
    let place = |job: &EncodeJob, (exact, closed): (PageKind, PageKind)| -> Result<[u32; 2], String> {
        Ok([unit_as(job.exact, exact)?, unit_as(job.page, closed)?])
    };
    let key = |job: &EncodeJob| place(job, (of.key.exact, of.closed(job.head)[0]));
    let of_keys: Vec<[u32; 2]> = keys.iter().map(key).collect::<Result<_, _>>()?;
    let value = |job: &EncodeJob| place(job, (of.value.exact, of.closed(job.head)[1]));
    let of_values: Vec<[u32; 2]> = values.iter().map(value).collect::<Result<_, _>>()?;
    let heads = |jobs: &[EncodeJob]| jobs.iter().map(|job| job.head as u32).collect::<Vec<_>>();
    let mut add = |pages: Vec<[u32; 4]>, heads: Vec<u32>| words.add(pages.into_iter().flatten().chain(heads));
    if of.general.is_some() {
        let own = |(job, [exact, page]): (&EncodeJob, &[u32; 2])| [*exact, *page, job.head as u32, 0];
        let at = add(keys.iter().zip(&of_keys).map(own).collect(), Vec::new());
        let values_at = add(values.iter().zip(&of_values).map(own).collect(), Vec::new());
        return Ok(JobsPlan { at, count: keys.len(), values_at, values: values.len() });
    }
    if of.planned.is_none() {
        let pair = |(key, value): (&[u32; 2], &[u32; 2])| [key[0], value[0], key[1], value[1]];
        let at = add(of_keys.iter().zip(&of_values).map(pair).collect(), heads(keys));
        return Ok(JobsPlan { at, count: keys.len(), ..JobsPlan::default() });
    }
    let at = add(of_keys.iter().map(|[exact, page]| [*exact, 0, *page, 0]).collect(), heads(keys));
    let values_at = add(of_values.iter().map(|[exact, page]| [0, *exact, 0, *page]).collect(), Vec::new());
    Ok(JobsPlan { at, count: keys.len(), values_at, values: values.len() })
}

//! Out of memory is an error, and what was read before it stays.

use crate::policies::policy;
use crate::reading::{read, tokens};
use crate::subject::Subject;
use kvant_model::{Chunk, Pass};

/// Tokens of a pass.
const CHUNK: usize = 60;

pub(crate) fn is_an_error(subject: &Subject) {
    let case = subject.plain();
    let (n, free) = (5 * CHUNK, subject.load(&case.checkpoint));
    let (width, kept) = (free.model.vocabulary(), policy("f16", free.model.slots()));
    let ids = tokens(n, width);
    // What half of the tokens take is not enough for all.
    let mut whole = free.cache(&kept, n);
    let first = read(&free.model, &mut whole, &ids[..2 * CHUNK], &[CHUNK]);
    let cap = free.store.usage().used * 3 / 2;
    let on = subject.load_capped(&case.checkpoint, Some(cap));
    let mut cache = on.cache(&kept, n);
    assert!(read(&on.model, &mut cache, &ids[..2 * CHUNK], &[CHUNK]) == first, "a cap has other bits");
    let refused = loop {
        let at = cache.len();
        assert!(at < n, "{n} tokens fit into {cap} bytes");
        let chunk = [Chunk::new(&ids[at..at + CHUNK], 0..1)];
        match on.model.forward(Pass::new(&chunk), &mut [cache.sequence_mut()]) {
            Ok(_) => assert!(on.store.usage().used <= cap, "more than {cap} bytes"),
            Err(refused) => break refused.to_string(),
        }
    };
    assert!(refused.contains("full") || refused.contains("memory"), "{refused}");
    let at = cache.len();
    assert!(at >= 2 * CHUNK && at.is_multiple_of(CHUNK), "{at} tokens are held");
    // Nothing of the pass is left, and what was there is.
    let left = cache.truncate(2 * CHUNK - 5);
    let again = read(&on.model, &mut cache, &ids[left..2 * CHUNK], &[CHUNK]);
    assert!(again == first[left * width..], "other bits after a pass that did not fit");
    // Others go on when room is made.
    drop(cache);
    assert_eq!(on.store.usage().used, 0, "pages are given back");
    let mut other = on.cache(&kept, n);
    assert!(read(&on.model, &mut other, &ids[..CHUNK], &[CHUNK]) == first[..CHUNK * width]);
}

//! A token's logits have the same bits in chunks, batches, forks, prefixes and after a rollback, with compressed pages.

use crate::cases::Case;
use crate::policies::policy;
use crate::reading::read;
use crate::subject::{ModelSet, Subject};
use kvant_attention::KvCache;
use kvant_model::{Chunk, Pass};

pub(crate) fn stay(subject: &Subject) {
    // Of many tiny models a third in haste: `models_agree_with_the_oracle` reads all of them in chunks too.
    let step = if subject.models == ModelSet::Fixtures { subject.count(1, 3) } else { 1 };
    for case in subject.cases().iter().step_by(step) {
        of_one(subject, case);
    }
}

fn of_one(subject: &Subject, case: &Case) {
    let (name, on) = (&case.name, subject.load(&case.checkpoint));
    let (model, width) = (&on.model, on.model.vocabulary());
    // More than one page and more than one chunk of recurrent state.
    let count = subject.count(140, 76).min(model.position_limit().unwrap_or(usize::MAX));
    let ids = case.tokens(count, width);
    let mut kept = policy("int4", model.slots());
    if subject.cache_refused(&kept, model).is_some() {
        kept = policy("f16", model.slots());
    }
    let open = || on.cache(&kept, count);
    let whole = read(model, &mut open(), &ids, &[count]);
    assert!(whole.iter().all(|logit| logit.is_finite()), "{name}: numbers");
    let row = |at: usize| &whole[at * width..(at + 1) * width];
    let mut cut = open();
    assert!(read(model, &mut cut, &ids, &[7, 1, count - 14, 3, 1]) == whole, "{name}: other chunks");
    // Within the open page, and over its start.
    for back in [count - 3, count * 2 / 3].into_iter().take(subject.count(2, 1)) {
        let left = cut.truncate(back);
        assert!(left <= back, "{name}: {left} tokens are left of {back}");
        assert!(
            read(model, &mut cut, &ids[left..], &[29]) == whole[left * width..],
            "{name}: back to {back}"
        );
    }
    // A fork that goes on and a prefix that brings a chunk, in one pass and then step by step.
    let (early, late) = (count / 3, count / 2);
    let mut fork = open();
    read(model, &mut fork, &ids[..early], &[early]);
    let mut other = fork.over(fork.sequence().fork().unwrap());
    read(model, &mut other, &ids[early..late], &[late]);
    let mut prefix = other.over(other.sequence().prefix(early + 1).unwrap());
    let held = prefix.len();
    assert!(held <= early + 1, "{name}: a prefix of {held} tokens");
    let chunks = [
        Chunk::new(&ids[held..held + 5], 4..5),
        Chunk::new(&ids[late..=late], 0..1),
        Chunk::new(&ids[early..=early], 0..1),
    ];
    let mut batch = [&mut prefix, &mut other, &mut fork].map(KvCache::sequence_mut);
    let all = model.forward(Pass::new(&chunks), &mut batch).unwrap().into_logits();
    for (at, position) in [held + 4, late, early].into_iter().enumerate() {
        assert!(all.row(at) == row(position), "{name}: sequence {at} of a batch");
    }
    let steps = [&ids[late + 1..late + 2], &ids[early + 1..early + 2]].map(|one| Chunk::new(one, 0..1));
    let mut batch = [&mut other, &mut fork].map(KvCache::sequence_mut);
    let both = model.forward(Pass::new(&steps), &mut batch).unwrap().into_logits();
    assert!(both.row(0) == row(late + 1) && both.row(1) == row(early + 1), "{name}: steps in a batch");
    drop((cut, fork, other, prefix));
    assert_eq!(on.store.usage().used, 0, "{name}: pages are given back");
}

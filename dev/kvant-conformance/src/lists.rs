//! Lists of the tokens that rank first are those of the logits, and rows that a list does not settle come as logits.

use crate::policies::policy;
use crate::reading::{read, tokens};
use crate::subject::Subject;
use kvant_model::{Chunk, Form, Output, Pass, TopK, TopTokens};

pub(crate) fn are_beginnings(subject: &Subject) {
    let case = subject.plain();
    let on = subject.load(&case.checkpoint);
    let (model, width) = (&on.model, on.model.vocabulary());
    let (ids, kept) = (tokens(40, width), policy("int4", model.slots()));
    let open = || on.cache(&kept, 64);
    let logits = read(model, &mut open(), &ids, &[40]);
    let of = |count, temperature| Some(TopK { count, temperature });
    // The second is not enough, and comes as logits.
    let accept = |row: usize, _: &TopTokens| row != 1;
    let lists = [of(1, None), of(5, None), of(40, None), of(200, None)];
    let mixed = [of(1, None), None, of(40, None), of(200, Some(0.7))];
    for wanted in [lists, mixed] {
        let chunk = [Chunk::new(&ids, 36..40).form(Form::Top(&wanted))];
        let pass = Pass::new(&chunk).accept(&accept);
        let outputs = model.forward(pass, &mut [open().sequence_mut()]).unwrap();
        assert_eq!(outputs.rows(), wanted.len());
        for (row, of) in wanted.into_iter().enumerate() {
            let logits = &logits[(36 + row) * width..(37 + row) * width];
            match (outputs.row(row), of.filter(|_| row != 1)) {
                (Output::Top(top), Some(of)) => {
                    assert_eq!(Some(top), TopTokens::of(logits, of).as_ref(), "row {row}");
                }
                (Output::Logits(found), None) => assert_eq!(found, logits, "row {row}"),
                // Beside a row that wants all of them, or a softmax denominator, logits may come of every row; on the host they are there.
                (Output::Logits(found), Some(_)) if wanted == mixed || subject.is_host() => {
                    assert_eq!(found, logits, "row {row}");
                }
                (found, of) => panic!("row {row}: {found:?} for {of:?}"),
            }
        }
    }
}

//! References to pages, and the arena that gets them back.

use crate::arena::{Arena, ArenaError};
use crate::page::Page;
use loom::thread;

const LEN: usize = 64;

fn is_all(page: &Page, byte: u8) -> bool {
    page.host().is_some_and(|bytes| bytes.iter().all(|other| *other == byte))
}

/// Two forks of a sequence share a page; one goes on writing it, the other reads it and ends.
pub fn shared() {
    let arena = Arena::with_cap(2 * LEN);
    let mut page = arena.page(LEN).expect("there is room for two");
    page.edit(|bytes| bytes.fill(1));
    let (own, other) = {
        let page = page.freeze();
        (page.clone(), page)
    };
    let fork = thread::spawn(move || {
        assert!(is_all(&other, 1), "a shared page never changes");
        let again = other.clone();
        drop(other);
        assert!(is_all(&again, 1), "a shared page never changes");
    });
    let mut own = own.into_mut().expect("there is room for two");
    own.edit(|bytes| bytes.fill(2));
    fork.join().expect("the fork ends");
    assert!(is_all(&own.freeze(), 2));
    assert_eq!((arena.usage().pages, arena.usage().used), (0, 0), "each page is given back once");
}

/// Two sequences want the same last slot.
pub fn taken() {
    let arena = Arena::with_cap(LEN);
    let sequence = |arena: Arena, byte: u8| {
        move || {
            for _ in 0..2 {
                match arena.page(LEN) {
                    Ok(mut page) => {
                        page.edit(|bytes| {
                            assert!(bytes.iter().all(|byte| *byte == 0), "a page starts empty");
                            bytes.fill(byte);
                        });
                        thread::yield_now();
                        assert!(is_all(&page.freeze(), byte), "a slot has one owner");
                    }
                    Err(error) => assert!(matches!(error, ArenaError::Full { .. }), "{error}"),
                }
            }
        }
    };
    let other = thread::spawn(sequence(arena.clone(), 1));
    sequence(arena.clone(), 2)();
    other.join().expect("the other ends");
    assert_eq!((arena.usage().pages, arena.usage().used), (0, 0), "each page is given back once");
}

//! What all tests of the border need: a status that has to be right, and its message.

use kvant::{KvantDtype, KvantOutput, KvantRows, KvantStatus, kvant_error_message};
use std::ffi::CStr;

/// Asserts success.
#[track_caller]
pub fn ok(status: KvantStatus) {
    assert_eq!(status, KvantStatus::Ok, "{}", message());
}

/// Asserts this failure, with these words in its message.
#[track_caller]
pub fn fails(status: KvantStatus, expected: KvantStatus, words: &[&str]) {
    assert_eq!(status, expected, "{}", message());
    for word in words {
        assert!(message().contains(word), "{word:?} is not in {:?}", message());
    }
}

/// What this thread was last told.
pub fn message() -> String {
    // SAFETY: the library's own text, of this thread.
    unsafe { CStr::from_ptr(kvant_error_message()) }.to_str().unwrap().to_owned()
}

/// Rows without gaps.
pub fn rows(numbers: &[f32]) -> KvantRows {
    let (data, length) = (numbers.as_ptr().cast(), numbers.len());
    KvantRows { data, length, row_stride: 0, head_stride: 0, dtype: KvantDtype::F32 as i32 }
}

/// A place for such rows.
pub fn output(numbers: &mut [f32]) -> KvantOutput {
    let (data, length) = (numbers.as_mut_ptr().cast(), numbers.len());
    KvantOutput { data, length, row_stride: 0, head_stride: 0, dtype: KvantDtype::F32 as i32 }
}

/// The bits of numbers, which are equal or not.
pub fn bits(numbers: &[f32]) -> Vec<u32> {
    numbers.iter().map(|x| x.to_bits()).collect()
}

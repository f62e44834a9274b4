//! What a caller hands over: pointers that may be NULL, sizes that may be wrong, structures of another version.
//!
//! Nothing here can tell whether a pointer that is not NULL leads anywhere: that is the caller's contract. Everything else is
//! checked.

use crate::status::{Failure, KvantStatus};
use std::ffi::{CStr, c_char};

/// Something the caller has lent.
///
/// # Safety
/// `pointer` is NULL or leads to a `T` that nobody changes as long as `'a`.
pub(crate) unsafe fn borrow<'a, T>(pointer: *const T, what: &str) -> Result<&'a T, Failure> {
    check(pointer, what)?;
    // SAFETY: it is neither NULL nor misaligned, and the rest is the caller's contract.
    Ok(unsafe { &*pointer })
}

/// Something that may be left out.
///
/// # Safety
/// As [`borrow`].
pub(crate) unsafe fn borrow_optional<'a, T>(pointer: *const T, what: &str) -> Result<Option<&'a T>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { borrow(pointer, what) }.map(Some)
}

/// Numbers the caller has lent. NULL is an empty list.
///
/// # Safety
/// `pointer` is NULL, or `count` of `T` can be read from there and nobody changes them as long as `'a`.
pub(crate) unsafe fn list<'a, T>(pointer: *const T, count: usize, what: &str) -> Result<&'a [T], Failure> {
    if count == 0 {
        return Ok(&[]);
    }
    check(pointer, what)?;
    check_count::<T>(count, what)?;
    // SAFETY: as above, and no list is larger than memory can be.
    Ok(unsafe { std::slice::from_raw_parts(pointer, count) })
}

/// A text of the caller's.
///
/// # Safety
/// `pointer` is NULL or leads to bytes that end with a zero and that nobody changes as long as `'a`.
pub(crate) unsafe fn text<'a>(pointer: *const c_char, what: &str) -> Result<&'a str, Failure> {
    check(pointer, what)?;
    // SAFETY: the caller's contract.
    let bytes = unsafe { CStr::from_ptr(pointer) };
    bytes.to_str().map_err(|e| Failure::argument(format!("{what} is not UTF-8: {e}")))
}

/// A text that may be left out.
///
/// # Safety
/// As [`text`].
pub(crate) unsafe fn optional_text<'a>(
    pointer: *const c_char,
    what: &str,
) -> Result<Option<&'a str>, Failure> {
    if pointer.is_null() {
        return Ok(None);
    }
    // SAFETY: the caller's contract.
    unsafe { text(pointer, what) }.map(Some)
}

/// Where a result goes; NULL where it may be left out.
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Writes the result.
    pub fn set(&self, value: T) {
        if !self.0.is_null() {
            // SAFETY: it is neither NULL nor misaligned, and whoever made it vouches for the rest.
            unsafe { self.0.write(value) }
        }
    }
}

impl<T> Out<*mut T> {
    /// Gives a new object to the caller, who frees it.
    pub fn give(&self, value: T) {
        self.set(Box::into_raw(Box::new(value)));
    }
}

/// A place for a result.
///
/// # Safety
/// `pointer` is NULL, or a `T` can be written there as long as the call lasts.
pub(crate) unsafe fn out<T>(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
    check(pointer, what)?;
    Ok(Out(pointer))
}

/// A place for a result that may be left out.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn optional<T>(pointer: *mut T, what: &str) -> Result<Out<T>, Failure> {
    // SAFETY: the caller's contract.
    if pointer.is_null() { Ok(Out(pointer)) } else { unsafe { out(pointer, what) } }
}

/// A place for a handle, which is NULL until there is one.
///
/// # Safety
/// As [`out`].
pub(crate) unsafe fn handle<T>(pointer: *mut *mut T, what: &str) -> Result<Out<*mut T>, Failure> {
    // SAFETY: the caller's contract.
    let place = unsafe { out(pointer, what) }?;
    place.set(std::ptr::null_mut());
    Ok(place)
}

/// Frees what was given out by [`Out::give`]. NULL is nothing.
///
/// # Safety
/// `pointer` is NULL or was given out and not freed, and nobody uses it any more.
pub(crate) unsafe fn release<T>(pointer: *mut T) {
    if !pointer.is_null() {
        // Dropping runs code of ours, and a panic may not reach the caller from here either.
        crate::status::guard(|| {
            // SAFETY: the caller's contract.
            drop(unsafe { Box::from_raw(pointer) });
            Ok(())
        });
    }
}

/// Copies `items` to a buffer of the caller's and tells how many there are. Without a buffer it only tells.
///
/// # Safety
/// `buffer` is NULL, or `capacity` of `T` can be written there; `count` as in [`out`].
pub(crate) unsafe fn fill<T: Copy>(
    items: &[T],
    (buffer, capacity): (*mut T, usize),
    count: *mut usize,
    what: &str,
) -> Result<(), Failure> {
    // SAFETY: the caller's contract.
    unsafe { out(count, "count") }?.set(items.len());
    if buffer.is_null() && capacity == 0 {
        return Ok(());
    }
    check(buffer, what)?;
    if items.len() > capacity {
        let message = format!("{what}: there is room for {capacity}, and {} are needed", items.len());
        return Err(Failure::new(KvantStatus::BufferTooSmall, message));
    }
    // SAFETY: the buffer holds that many, and is no memory of ours.
    unsafe { buffer.copy_from_nonoverlapping(items.as_ptr(), items.len()) };
    Ok(())
}

/// A structure whose first field is its size, so that it can grow.
///
/// # Safety
/// All its bytes may be zero, it has no padding that matters, and its first field is `struct_size: usize`.
pub(crate) unsafe trait Versioned: Copy {}

/// No structure is larger, in any version: what says so was not initialised.
const MOST_BYTES: usize = 4096;

/// Reads a structure of the caller's version: fields that it does not have are zero, and fields that we do not have must be.
/// NULL is one of zeros.
///
/// # Safety
/// `pointer` is NULL or leads to a structure of the size that its first field says.
pub(crate) unsafe fn options<T: Versioned>(pointer: *const T, what: &str) -> Result<T, Failure> {
    // SAFETY: what `Versioned` promises.
    let mut own: T = unsafe { std::mem::zeroed() };
    if pointer.is_null() {
        return Ok(own);
    }
    check(pointer, what)?;
    // SAFETY: the caller's contract.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(size_of::<usize>()..=MOST_BYTES).contains(&size) {
        return Err(Failure::argument(format!(
            "{what}: struct_size is {size}; set it to sizeof and everything else to zero before you fill it in"
        )));
    }
    let known = size.min(size_of::<T>());
    // SAFETY: both have that many bytes.
    unsafe { (&raw mut own).cast::<u8>().copy_from_nonoverlapping(pointer.cast::<u8>(), known) };
    for at in known..size {
        // SAFETY: the caller's contract.
        if unsafe { pointer.cast::<u8>().add(at).read() } != 0 {
            let message = format!(
                "{what}: something is asked for that this library is too old to know (its ABI is {}, see kvant_abi_version)",
                crate::KVANT_ABI_VERSION
            );
            return Err(Failure::new(KvantStatus::Unsupported, message));
        }
    }
    Ok(own)
}

/// Writes a structure as far as the caller's version goes.
///
/// # Safety
/// `pointer` is NULL, or leads to a structure of the size that its first field says.
pub(crate) unsafe fn report<T: Versioned>(pointer: *mut T, value: &T, what: &str) -> Result<(), Failure> {
    check(pointer, what)?;
    let header = size_of::<usize>();
    // SAFETY: the caller's contract.
    let size = unsafe { pointer.cast::<usize>().read() };
    if !(header..=MOST_BYTES).contains(&size) {
        return Err(Failure::argument(format!("{what}: struct_size is {size}; set it to sizeof first")));
    }
    let known = size.min(size_of::<T>()) - header;
    // SAFETY: both have that many bytes after their size, which stays as it is.
    unsafe {
        let from = std::ptr::from_ref(value).cast::<u8>().add(header);
        pointer.cast::<u8>().add(header).copy_from_nonoverlapping(from, known);
    }
    Ok(())
}

fn check<T>(pointer: *const T, what: &str) -> Result<(), Failure> {
    if pointer.is_null() {
        return Err(Failure::argument(format!("{what} is NULL")));
    }
    if !pointer.is_aligned() {
        return Err(Failure::argument(format!("{what} is not aligned to {} bytes", align_of::<T>())));
    }
    Ok(())
}

/// Refuses lists that no memory holds.
pub(crate) fn check_count<T>(count: usize, what: &str) -> Result<(), Failure> {
    let most = isize::MAX.cast_unsigned() / size_of::<T>().max(1);
    if count > most {
        return Err(Failure::argument(format!("{what}: {count} are more than memory can hold")));
    }
    Ok(())
}

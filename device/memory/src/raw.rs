//! Copies between pointers; at least one side is shared with another process.
//!
//! The functions take raw pointers and lengths, never slices, and check nothing: the callers in this crate check
//! bounds.

#![expect(
    clippy::arithmetic_side_effects,
    reason = "lengths of parts of a copy are not greater than that of the copy"
)]

use std::ptr;
use std::sync::atomic::{Ordering, fence};

/// A length or an offset of a guest or a message, which has 64 bits, as a number of the host.
#[inline(always)]
#[expect(
    clippy::cast_possible_truncation,
    reason = "the crate does not compile for hosts with other than 64 bits"
)]
pub(crate) const fn to_usize(n: u64) -> usize {
    n as usize
}

/// True if `p` is a multiple of `N`, which is a power of two.
#[inline(always)]
fn aligned<const N: usize>(p: *const u8) -> bool {
    (p as usize) & (N - 1) == 0
}

/// One volatile access of `size_of::<T>()` bytes from `src` to `dst`. At least the shared side
/// must be aligned; the other may not be.
///
/// # Safety
///
/// `src` must be readable, `dst` writable for `size_of::<T>()` bytes, `shared` be one of both.
#[inline(always)]
unsafe fn word<T: Copy>(dst: *mut u8, src: *const u8, shared_is_dst: bool) {
    // SAFETY: the caller guarantees both ranges; the shared side is aligned for T by the check
    // at the call site, the private one is accessed unaligned.
    unsafe {
        if shared_is_dst {
            ptr::write_volatile(dst.cast::<T>(), ptr::read_unaligned(src.cast::<T>()));
        } else {
            ptr::write_unaligned(dst.cast::<T>(), ptr::read_volatile(src.cast::<T>()));
        }
    }
}

/// The fast path for 1, 2, 4, 8 and 16 bytes whose shared side is aligned. Returns false if it
/// did nothing.
///
/// # Safety
///
/// As for [`store`] or [`load`].
#[inline(always)]
unsafe fn small(dst: *mut u8, src: *const u8, len: usize, shared_is_dst: bool) -> bool {
    let shared = if shared_is_dst { dst.cast_const() } else { src };
    // SAFETY: every arm touches exactly `len` bytes of both sides and has checked alignment.
    unsafe {
        match len {
            8 if aligned::<8>(shared) => word::<u64>(dst, src, shared_is_dst),
            4 if aligned::<4>(shared) => word::<u32>(dst, src, shared_is_dst),
            16 if aligned::<8>(shared) => {
                word::<u64>(dst, src, shared_is_dst);
                fence(Ordering::Release);
                word::<u64>(dst.add(8), src.add(8), shared_is_dst);
            }
            2 if aligned::<2>(shared) => word::<u16>(dst, src, shared_is_dst),
            1 => word::<u8>(dst, src, shared_is_dst),
            0 => {}
            _ => return false,
        }
    }
    true
}

/// Copies `len` bytes from a private buffer to shared memory; the aligned tail goes last.
///
/// # Safety
///
/// `src` must be valid for reads, `dst` for writes of `len` bytes, and `src` be private to this
/// thread for the duration of the call.
#[inline]
pub(crate) unsafe fn store(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: same contract.
    unsafe {
        if !small(dst, src, len, true) {
            shared_to_shared(dst, src, len);
        }
    }
}

/// Copies `len` bytes from shared memory to a private buffer.
///
/// # Safety
///
/// `src` must be valid for reads, `dst` for writes of `len` bytes, and `dst` be private to this
/// thread for the duration of the call.
#[inline]
pub(crate) unsafe fn load(dst: *mut u8, src: *const u8, len: usize) {
    // SAFETY: same contract; a private destination cannot overlap a shared source.
    unsafe {
        if !small(dst, src, len, false) {
            ptr::copy_nonoverlapping(src, dst, len);
        }
    }
}

/// Number of bytes, of `len` (at least one) at `dst`, that are stored before the tail. The tail begins at the last
/// multiple of 8 before the end; if that is before `dst`, the tail is the whole copy.
#[inline(always)]
fn body(dst: usize, len: usize) -> usize {
    let tail = match dst.wrapping_add(len) & 7 {
        0 => 8,
        n => n,
    };
    len.saturating_sub(tail)
}

/// Copies `len` bytes between shared ranges that may overlap; the aligned tail of the
/// destination (1 to 8 bytes) is stored after everything before it.
///
/// # Safety
///
/// `src` must be valid for reads, `dst` for writes of `len` bytes.
pub(crate) unsafe fn shared_to_shared(dst: *mut u8, src: *const u8, len: usize) {
    if len == 0 {
        return;
    }
    let body = body(dst as usize, len);
    let tail = len - body;
    let mut last = [0u8; 8];
    // SAFETY: body + tail == len, so all ranges lie within those that the caller guarantees;
    // `last` has room for the tail, which is at most 8 bytes. The tail's source is read before
    // the body is moved because the body's destination may cover it.
    unsafe {
        ptr::copy_nonoverlapping(src.add(body), last.as_mut_ptr(), tail);
        ptr::copy(src, dst, body);
        fence(Ordering::Release);
        let out = dst.add(body);
        if !small(out, last.as_ptr(), tail, true) {
            // Three, five, six or seven bytes, or an unaligned short copy: byte by byte, in order.
            for (i, byte) in last.iter().enumerate().take(tail) {
                ptr::write_volatile(out.add(i), *byte);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tail_is_the_last_aligned_word_or_less() {
        // The order of stores depends on this; the order itself cannot be observed reliably.
        for dst in 0..16 {
            for len in 1..100 {
                let body = body(dst, len);
                let tail = len - body;
                assert!((1..=8).contains(&tail), "{dst} + {len}: tail {tail}");
                assert!(
                    body == 0 || (dst + body).is_multiple_of(8),
                    "{dst} + {len}: body {body}"
                );
            }
        }
    }

    #[test]
    fn every_length_and_alignment_stores_exactly_its_bytes() {
        let src: Vec<u8> = (1..=60).collect();
        for at in 0..16 {
            for len in 0..40 {
                for from in 0..9 {
                    let mut dst = [0u64; 10];
                    let data = &src[from..from + len];
                    let base = dst.as_mut_ptr().cast::<u8>();
                    // SAFETY: at + len <= 56 of 80 bytes; `base` is the only access meanwhile.
                    unsafe { store(base.add(at), data.as_ptr(), len) };
                    let bytes: Vec<u8> = dst.iter().flat_map(|word| word.to_ne_bytes()).collect();
                    assert_eq!(&bytes[at..at + len], data);
                    assert!(
                        bytes[..at]
                            .iter()
                            .chain(&bytes[at + len..])
                            .all(|byte| *byte == 0)
                    );
                    let mut back = vec![0; len];
                    // SAFETY: as above; `back` has `len` bytes.
                    unsafe { load(back.as_mut_ptr(), bytes.as_ptr().add(at), len) };
                    assert_eq!(back, data);
                }
            }
        }
    }
}

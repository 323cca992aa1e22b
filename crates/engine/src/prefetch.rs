//! Hints to the processor: bring a cache line close before it is needed.
//!
//! The only unsafe code of the engine. A prefetch reads nothing and cannot fault, whatever the
//! address; taking a reference keeps even that address valid. In groups of sixteen it hides most
//! of the memory latency of random keys (`bench engine`, batch figure beside the single one).

/// One cache line, the one `place` begins in.
#[inline]
pub(crate) fn line<T: ?Sized>(place: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: PREFETCHT0 has no effect but on caches, for any address.
    #[allow(unsafe_code, reason = "see the module's description")]
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = place;
}

const LINE: usize = 64;

/// The lines of the first `bytes` of a slice.
#[inline]
pub(crate) fn lines(slice: &[u8], bytes: usize) {
    for at in (0..bytes.min(slice.len())).step_by(LINE) {
        if let Some(place) = slice.get(at) {
            line(place);
        }
    }
}

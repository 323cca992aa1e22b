//! Text that is ASCII because the unpacking just wrote it so: its bytes are not looked at again.
//!
//! Checking fifteen digits costs as much as unpacking them. The only unsafe code of the layout.

/// `bytes` are digits, capitals or letters of the number alphabet, all written by the caller.
#[inline]
pub(super) fn as_text(bytes: &[u8]) -> &str {
    debug_assert!(bytes.is_ascii(), "only ASCII is written");
    // SAFETY: the one caller, `Packed::unpack`, overwrites every byte of the slice with `b'0'` plus
    // a remainder below 10, `b'A'` plus one below 26, a letter of a constant ASCII alphabet, or a
    // space, whatever the packed bytes are; ASCII is UTF-8.
    #[allow(unsafe_code, reason = "see the module's description")]
    unsafe {
        std::str::from_utf8_unchecked(bytes)
    }
}

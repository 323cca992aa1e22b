//! The mapping itself: `MAP_SYNC`, the processor's flush instruction, and the fence.
//!
//! Owns the only unsafe code of the journal. A mapping is made with `MAP_SYNC`, which the kernel
//! refuses unless a store into the mapping is a store into the medium and the file's own records about
//! it are safe before the first store goes through. It is never shrunk while it is mapped (see
//! `DaxFile::set_size`). A medium that reports an uncorrectable error ends the process by a signal.

#![allow(
    unsafe_code,
    reason = "maps files and flushes cache lines; see the arguments at each block"
)]

use std::fs::File;
use std::io;
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Lines, Medium};

/// How stored lines are sent to the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushBy {
    /// Writes the line back and keeps it in the cache.
    Clwb,
    /// Writes the line back and drops it from the cache.
    ClflushOpt,
    /// The same, one line after the other.
    Clflush,
    /// Nothing: the platform writes the caches back itself when the power fails.
    Platform,
}

impl FlushBy {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Clwb => "clwb",
            Self::ClflushOpt => "clflushopt",
            Self::Clflush => "clflush",
            Self::Platform => "none, the platform flushes its caches",
        }
    }

    /// The best this processor has; `None` where none is known.
    #[cfg(target_arch = "x86_64")]
    fn of_processor() -> Option<Self> {
        use std::arch::x86_64::{__cpuid, __cpuid_count, __get_cpuid_max};
        const CLFLUSH_EDX: u32 = 1 << 19;
        const CLFLUSHOPT_EBX: u32 = 1 << 23;
        const CLWB_EBX: u32 = 1 << 24;
        let (leaves, _) = __get_cpuid_max(0);
        let extended = if leaves >= 7 { __cpuid_count(7, 0).ebx } else { 0 };
        let base = if leaves >= 1 { __cpuid(1).edx } else { 0 };
        match (extended, base) {
            (ebx, _) if ebx & CLWB_EBX != 0 => Some(Self::Clwb),
            (ebx, _) if ebx & CLFLUSHOPT_EBX != 0 => Some(Self::ClflushOpt),
            (_, edx) if edx & CLFLUSH_EDX != 0 => Some(Self::Clflush),
            _ => None,
        }
    }

    #[cfg(not(target_arch = "x86_64"))]
    fn of_processor() -> Option<Self> {
        None
    }
}

/// Files on a DAX volume of this machine.
#[derive(Clone, Copy, Debug)]
pub struct PersistentMemory {
    flush_by: FlushBy,
}

impl PersistentMemory {
    /// Chooses how lines are flushed; the reason when nothing is known for this processor.
    pub fn detect() -> io::Result<Self> {
        let unknown = "no instruction that flushes a cache line is known for this processor";
        let own = FlushBy::of_processor();
        let own = own.ok_or_else(|| io::Error::new(io::ErrorKind::Unsupported, unknown))?;
        let regions = Path::new("/sys/bus/nd/devices");
        let flush_by = if caches_are_kept(regions) { FlushBy::Platform } else { own };
        Ok(Self { flush_by })
    }

    pub fn flush_by(&self) -> FlushBy {
        self.flush_by
    }
}

/// Whether every region of persistent memory says that the caches belong to what survives.
fn caches_are_kept(devices: &Path) -> bool {
    let Ok(devices) = std::fs::read_dir(devices) else { return false };
    let mut regions = 0;
    for device in devices.flatten() {
        if !device.file_name().to_string_lossy().starts_with("region") {
            continue;
        }
        regions += 1;
        let domain = std::fs::read_to_string(device.path().join("persistence_domain"));
        if !domain.is_ok_and(|domain| domain.trim() == "cpu_cache") {
            return false;
        }
    }
    regions > 0
}

impl Medium for PersistentMemory {
    fn map(&self, path: &Path, bytes: u64) -> io::Result<Arc<dyn Lines>> {
        let length = usize::try_from(bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let file = File::options().read(true).write(true).open(path)?;
        if length == 0 || file.metadata()?.len() < bytes {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let both = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::SHARED_VALIDATE | MapFlags::SYNC;
        // SAFETY: a new mapping at an address of the kernel's choice touches no existing one.
        let start = unsafe { mmap(std::ptr::null_mut(), length, both, flags, &file, 0)? };
        let start = NonNull::new(start.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Arc::new(Mapping { start, length, flush_by: self.flush_by }))
    }
}

#[derive(Debug)]
struct Mapping {
    start: NonNull<u8>,
    length: usize,
    flush_by: FlushBy,
}

// SAFETY: the mapping is owned by this value alone and stays until it is dropped. It is only ever
// written through raw pointers, and never read or borrowed as Rust memory.
unsafe impl Send for Mapping {}
// SAFETY: as above; two stores at once into the same bytes are excluded by the one writer of a file.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// The address of `offset`, when `length` bytes from there are mapped.
    fn at(&self, offset: u64, length: usize) -> Option<*mut u8> {
        let offset = usize::try_from(offset).ok()?;
        if offset.checked_add(length)? > self.length {
            return None;
        }
        // SAFETY: within the mapping, as just checked.
        Some(unsafe { self.start.as_ptr().add(offset) })
    }
}

impl Lines for Mapping {
    fn store(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        let to = self.at(offset, bytes.len()).ok_or(io::ErrorKind::InvalidInput)?;
        // SAFETY: `to` begins `bytes.len()` mapped, writable bytes; `bytes` is memory of this process
        // that cannot overlap a mapping nobody has a reference to.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, bytes.len()) };
        Ok(())
    }

    fn flush(&self, offset: u64) {
        if let Some(line) = self.at(offset, 1) {
            flush(self.flush_by, line);
        }
    }

    fn fence(&self) -> io::Result<()> {
        fence();
        Ok(())
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and nothing points into it any more. What an unmapping could
        // fail for (a wrong range) cannot be.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}

#[cfg(target_arch = "x86_64")]
fn flush(by: FlushBy, line: *const u8) {
    use std::arch::asm;
    // SAFETY: `line` is mapped; the instruction changes no memory and no register. It was chosen by
    // what the processor says it has. Without `nomem`, so that it stays behind the stores.
    unsafe {
        match by {
            FlushBy::Clwb => asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)),
            FlushBy::ClflushOpt => {
                asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags));
            }
            FlushBy::Clflush => {
                asm!("clflush [{}]", in(reg) line, options(nostack, preserves_flags))
            }
            FlushBy::Platform => {}
        }
    }
}

#[cfg(target_arch = "x86_64")]
fn fence() {
    std::sync::atomic::compiler_fence(std::sync::atomic::Ordering::SeqCst);
    // SAFETY: orders stores and flushes; part of every x86-64 processor.
    unsafe { std::arch::x86_64::_mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn flush(_: FlushBy, _: *const u8) {}

#[cfg(not(target_arch = "x86_64"))]
fn fence() {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_without_direct_access_is_refused_and_not_mapped_as_something_else() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![0; 64 << 10]).unwrap();
        let memory = PersistentMemory::detect().unwrap();
        // EOPNOTSUPP; where the tests' folder is on a DAX volume the mapping is right
        match memory.map(&path, 64 << 10) {
            Err(error) => assert_eq!(error.raw_os_error(), Some(95), "{error}"),
            Ok(lines) => lines.store(b"x", 0).unwrap(),
        }
    }

    #[test]
    fn stores_and_flushes_stay_within_the_mapping() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        std::fs::write(&path, vec![0; 8192]).unwrap();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let both = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: as in `map`; an ordinary volume takes a shared mapping without `MAP_SYNC`.
        let start = unsafe { mmap(std::ptr::null_mut(), 8192, both, MapFlags::SHARED, &file, 0) };
        let start = NonNull::new(start.unwrap().cast::<u8>()).unwrap();
        for by in [FlushBy::of_processor().unwrap(), FlushBy::Clflush, FlushBy::Platform] {
            let mapping = Mapping { start, length: 8192, flush_by: by };
            mapping.store(by.as_str().as_bytes(), 4090).unwrap();
            (0..10_000).step_by(64).for_each(|line| mapping.flush(line));
            mapping.fence().unwrap();
            assert!(mapping.store(b"beyond", 8190).is_err());
            assert!(mapping.store(b"beyond", u64::MAX).is_err());
            std::mem::forget(mapping);
            let read = std::fs::read(&path).unwrap();
            assert_eq!(&read[4090..4090 + by.as_str().len()], by.as_str().as_bytes());
        }
        drop(Mapping { start, length: 8192, flush_by: FlushBy::Platform });
    }

    #[test]
    fn caches_belong_to_the_medium_only_where_every_region_says_so() {
        let devices = tempfile::tempdir().unwrap();
        let domain = |region: &str, says: &str| {
            let folder = devices.path().join(region);
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("persistence_domain"), says).unwrap();
        };
        assert!(!caches_are_kept(&devices.path().join("missing")));
        assert!(!caches_are_kept(devices.path()), "no region");
        domain("region0", "cpu_cache\n");
        std::fs::create_dir(devices.path().join("namespace0.0")).unwrap();
        assert!(caches_are_kept(devices.path()));
        domain("region1", "memory_controller\n");
        assert!(!caches_are_kept(devices.path()));
    }
}

//! The guest's module of persistent memory: a file with what a kernel wants to find on one, and an ext4.
//!
//! The kernel maps a namespace only where an information block says so; it is what `ndctl` would write.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};

use crate::process;

pub const BYTES: u64 = 512 << 20;
/// Where the volume begins.
const DATA_OFFSET: u64 = 2 << 20;
const BLOCK_OFFSET: u64 = 4_096;
const BLOCK_BYTES: usize = 4_096;
const PAGE_BYTES: u32 = 4_096;
const CHECKSUM_AT: usize = 4_088;

/// An empty module.
pub fn make(path: &Path) -> Result<()> {
    let shown = path.display();
    let file = File::create(path).with_context(|| format!("making {shown}"))?;
    file.set_len(BYTES).with_context(|| format!("making room for {shown}"))?;
    file.write_all_at(&information(), BLOCK_OFFSET).with_context(|| format!("writing {shown}"))?;
    let offset = format!("offset={DATA_OFFSET}");
    let size = format!("{}k", (BYTES - DATA_OFFSET) >> 10);
    let mut mkfs = process::command("mkfs.ext4", &["-q", "-b", "4096", "-E", &offset]);
    process::run(mkfs.arg(path).arg(size))
}

/// The block that makes a namespace of the whole module, with a volume that may be mapped (`fsdax`).
fn information() -> [u8; BLOCK_BYTES] {
    let mut block = [0; BLOCK_BYTES];
    let mut put = |at: usize, bytes: &[u8]| {
        if let Some(part) = block.get_mut(at..at + bytes.len()) {
            part.copy_from_slice(bytes);
        }
    };
    put(0, b"NVDIMM_PFN_INFO");
    // any identity will do
    put(16, &[0x5a; 16]);
    let pages = (BYTES - DATA_OFFSET) / u64::from(PAGE_BYTES);
    put(52, &1_u16.to_le_bytes()); // major version
    put(54, &4_u16.to_le_bytes()); // minor version
    put(56, &DATA_OFFSET.to_le_bytes());
    put(64, &pages.to_le_bytes());
    put(72, &1_u32.to_le_bytes()); // what the kernel keeps of pages is in memory
    put(84, &(DATA_OFFSET as u32).to_le_bytes()); // alignment
    put(88, &PAGE_BYTES.to_le_bytes());
    put(92, &64_u16.to_le_bytes()); // bytes of a page's record
    let sum = fletcher64(&block);
    if let Some(part) = block.get_mut(CHECKSUM_AT..) {
        part.copy_from_slice(&sum.to_le_bytes());
    }
    block
}

/// The checksum of such blocks, over 32-bit words, its own place being zero.
fn fletcher64(bytes: &[u8]) -> u64 {
    let (mut low, mut high) = (0_u32, 0_u32);
    for word in bytes.chunks_exact(4) {
        let word = word.try_into().map_or(0, u32::from_le_bytes);
        low = low.wrapping_add(word);
        high = high.wrapping_add(low);
    }
    u64::from(high) << 32 | u64::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_information_block_is_the_one_the_kernel_knows() {
        let mut block = information();
        assert_eq!(&block[..16], b"NVDIMM_PFN_INFO\0");
        let number = |at: usize| u64::from_le_bytes(block[at..at + 8].try_into().unwrap());
        assert_eq!((number(56), number(64)), (2 << 20, 510 << 8));
        let sum = number(CHECKSUM_AT);
        // computed by another program, from the same fields
        assert_eq!(sum, 0x5a3a_9da2_4d01_afd9);
        block[CHECKSUM_AT..].fill(0);
        assert_eq!(sum, fletcher64(&block));
        assert_eq!(fletcher64(&[1, 0, 0, 0, 2, 0, 0, 0]), 4 << 32 | 3);
    }
}

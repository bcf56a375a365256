//! A word for each slot, in memory that the programs and the translator share.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

/// One word for each slot, shared with the programs.
#[derive(Debug)]
pub(super) struct Words {
    words: NonNull<AtomicU64>,
    len: usize,
}

// SAFETY: the memory is a mapping of its own that lives as long as this does, and is only used as atomics.
unsafe impl Send for Words {}
// SAFETY: the same.
unsafe impl Sync for Words {}

impl Words {
    pub(super) fn map(fd: BorrowedFd<'_>, slots: u32) -> io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags, mmap};
        let len = slots as usize;
        // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours; the map behind
        // it has a word for each slot.
        let words = unsafe {
            mmap(
                std::ptr::null_mut(),
                len * size_of::<AtomicU64>(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                fd,
                0,
            )
        }?;
        let words = NonNull::new(words.cast()).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Self { words, len })
    }

    /// How many have one of these bits set.
    pub(super) fn count(&self, bits: u64) -> usize {
        let slots = 0..u32::try_from(self.len).unwrap_or(u32::MAX);
        slots
            .filter(|slot| self.of(*slot).load(Ordering::Relaxed) & bits != 0)
            .count()
    }

    pub(super) fn of(&self, slot: u32) -> &AtomicU64 {
        let slot = slot as usize;
        // Slots come from `KernelFastPath::free`, which has no others; were it otherwise, nothing would be sound.
        assert!(slot < self.len, "a slot that does not exist");
        // SAFETY: inside the mapping, aligned, and an atomic may be shared with the kernel.
        unsafe { self.words.add(slot).as_ref() }
    }
}

impl Drop for Words {
    fn drop(&mut self) {
        // SAFETY: the mapping that `map` made, which nobody refers to any more.
        let unmapped = unsafe {
            rustix::mm::munmap(
                self.words.as_ptr().cast(),
                self.len * size_of::<AtomicU64>(),
            )
        };
        debug_assert!(unmapped.is_ok(), "{unmapped:?}");
    }
}

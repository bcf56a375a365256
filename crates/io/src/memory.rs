//! Memory that was freed, and goes back to the system.

/// Gives pages that hold nothing any more back to the system: the allocator keeps them otherwise when something above
/// them is still in use. Looks at all that was freed, so it takes milliseconds, and holds up whoever allocates meanwhile;
/// not for the packet path. `false`: there was nothing, or the allocator has no such call.
#[must_use]
pub fn give_memory_back() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: no memory of ours is handed over; the allocator works on its own free lists, under its own locks.
        unsafe { libc::malloc_trim(0) == 1 }
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

#[cfg(all(test, target_env = "gnu"))]
mod tests {
    use super::*;

    fn resident() -> u64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
        line.unwrap()
            .trim()
            .trim_end_matches(" kB")
            .parse()
            .unwrap()
    }

    #[test]
    fn freed_pages_below_one_in_use_go_back() {
        let many: Vec<_> = (0..100_000).map(|_| vec![1_u8; 500]).collect();
        let mut kept = many;
        let last = kept.pop();
        let full = resident();
        drop(kept);
        let _ = give_memory_back();
        assert!(
            resident() + 30_000 < full,
            "{full} kB before, {} kB after",
            resident()
        );
        drop(last);
    }
}

//! What this process may do to the kernel: less, once it has done what takes more.

use std::io;

use rustix::thread::{
    CapabilitySet, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

/// Gives up, for the calling thread and those that it starts from here on, the capabilities that it takes to load programs
/// into the kernel: `CAP_BPF` and `CAP_PERFMON`, and `CAP_SYS_ADMIN`, which stands for both. Programs that are loaded
/// already can still be attached, and their maps be used: that takes `CAP_NET_ADMIN` or nothing.
///
/// # Errors
/// When the kernel refuses.
pub fn renounce_loading() -> io::Result<()> {
    let mut sets = capabilities(None)?;
    for set in [
        &mut sets.effective,
        &mut sets.permitted,
        &mut sets.inheritable,
    ] {
        set.remove(LOADING);
    }
    // What a program that this one executes could have. It takes CAP_SETPCAP, which root has; nobody else gets anything from
    // this set once the others lack it.
    for capability in LOADING.iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    Ok(set_capabilities(None, sets)?)
}

const LOADING: CapabilitySet = CapabilitySet::BPF
    .union(CapabilitySet::PERFMON)
    .union(CapabilitySet::SYS_ADMIN);

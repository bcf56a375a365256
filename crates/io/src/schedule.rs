//! When a thread gets to run.

use std::io;
use std::num::NonZeroU64;

/// Lets the calling thread run as soon as it is ready, before all ordinary threads (`SCHED_FIFO`,
/// lowest priority), and its timers end on time. For threads that sleep most of the time.
///
/// # Errors
/// The caller lacks `CAP_SYS_NICE`, or its control group has no real-time share.
pub fn run_promptly() -> io::Result<()> {
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let parameters = libc::sched_param { sched_priority: 1 };
    // SAFETY: the kernel reads one sched_param, which lives through the call, and writes nothing;
    // 0 is the calling thread. rustix has no scheduling policies.
    let result = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &raw const parameters) };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

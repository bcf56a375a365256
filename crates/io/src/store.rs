//! What the service manager keeps while the process is dead: the queues of the TUN device (systemd's descriptor store,
//! `sd_pid_notify_with_fds`(3)).
//!
//! With them device, route and rules outlive a crash, and packets wait, or get lost, instead of reaching ends that can
//! make nothing of them: the host itself, which would reset each subflow of a service that clients address, or the
//! server, which knows no joined subflow. A client whose subflows are all reset waits for a minute. When the unit is
//! stopped for good, systemd closes the queues, and the path is as it was without FlexCP.

use std::io;
use std::os::fd::{AsFd as _, FromRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};

use sd_notify::NotifyState;

use crate::tun::{Tun, TunError};

/// Their name in the store.
const QUEUE: &str = "queue";

/// Whether the descriptors have been taken: each has one owner.
static TAKEN: AtomicBool = AtomicBool::new(false);

/// The queues of the device `name` that the service manager has kept. Only the first call gives any, and whatever else
/// was kept is closed.
///
/// # Errors
/// When the environment of the process makes no sense, or a queue is not what it should be.
pub fn kept_queues(name: &str) -> Result<Vec<Tun>, TunError> {
    if TAKEN.swap(true, Ordering::Relaxed) {
        return Ok(Vec::new());
    }
    let kept = sd_notify::listen_fds_with_names().map_err(|source| TunError::Kept { source })?;
    let mut queues = Vec::new();
    for (fd, given) in kept {
        // SAFETY: the service manager opened it for this process, which nobody told of it but this loop: it runs once.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        if given == QUEUE {
            queues.extend(Tun::inherited(fd, name)?);
        }
    }
    Ok(queues)
}

/// Has the service manager keep these queues, and no others. Without one nothing happens.
///
/// # Errors
/// When it can't be told.
pub fn keep_queues<'a>(queues: impl Iterator<Item = &'a Tun>) -> io::Result<()> {
    let_queues_go()?;
    for queue in queues {
        let state = [NotifyState::FdStore, NotifyState::FdName(QUEUE)];
        sd_notify::notify_with_fds(&state, &[queue.as_fd()])?;
    }
    Ok(())
}

/// Has the service manager close the queues that it keeps.
///
/// # Errors
/// When it can't be told.
pub fn let_queues_go() -> io::Result<()> {
    sd_notify::notify(&[NotifyState::FdStoreRemove, NotifyState::FdName(QUEUE)])
}

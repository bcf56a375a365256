//! What a run that was killed has left behind: connections whose ends wait for a translator that knows them.

use flexcp_io::SubflowFile;
use flexcp_translator::SubflowRecord;
use tracing::{info, warn};

use crate::config::Config;
use crate::worker::Worker;

/// Subflows that can be written down for each connection that there may be: most clients have two paths.
const SUBFLOWS: usize = 2;

/// The subflows of a run that was killed.
pub(crate) fn read(config: &Config) -> Vec<SubflowRecord> {
    let directory = &config.control.state_dir.value;
    let (left, complaints) = SubflowFile::left(directory, &config.device.name.value);
    for complaint in complaints {
        warn!("{complaint}; the ends of connections that it names are told nothing");
    }
    if !left.is_empty() {
        info!(
            "an earlier run has left {} subflows behind: their ends are told that they are over",
            left.len()
        );
    }
    left
}

/// Has the workers tell those ends, and write their own subflows down from here on.
pub(crate) fn hand_over(left: Vec<SubflowRecord>, workers: &mut [Worker], config: &Config) {
    let (directory, device) = (&config.control.state_dir.value, &config.device.name.value);
    SubflowFile::remove(directory, device);
    let count = workers.len();
    let connections = usize::try_from(config.limits.connections.value).unwrap_or(usize::MAX);
    let limit = connections.saturating_mul(SUBFLOWS).div_ceil(count.max(1));
    let limit = u32::try_from(limit).unwrap_or(u32::MAX);
    for (number, worker) in workers.iter_mut().enumerate() {
        worker.adopt(left.clone(), count);
        let path = SubflowFile::path(directory, device, number);
        match SubflowFile::create(&path, limit) {
            Ok(file) => worker.write_down(Box::new(file)),
            Err(error) => warn!(
                "can't write subflows down in {}: {error}; if flexcp is killed, nobody tells their ends",
                path.display()
            ),
        }
    }
}

/// There is nothing left to be told.
pub(crate) fn forget(config: &Config) {
    SubflowFile::remove(&config.control.state_dir.value, &config.device.name.value);
}

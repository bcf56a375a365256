//! Who tells workers by which way packets leave, where accesses go by interfaces.

use flexcp_io::RoutedWays;
use flexcp_translator::Ways;
use tracing::warn;

use crate::config::{Config, access};

/// Another one for each worker; one that nobody asks for is asked nothing. `None`: the kernel can't be asked, as the log says.
pub(crate) fn open(config: &Config) -> Option<Box<dyn Ways>> {
    let names = access::interfaces(&config.accesses);
    match RoutedWays::open(&config.device.name.value, names) {
        Ok(ways) => Some(Box::new(ways)),
        Err(error) => {
            warn!("accesses by interfaces: the kernel's routes can't be asked: {error}");
            None
        }
    }
}

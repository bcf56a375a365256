//! The unit, as users install it: in a root of Debian 12 that its own systemd has booted, on Debian's kernels under emulation
//! (`lab unit-boot`).
//!
//! `root` makes the disk, `service` speaks to the guest's systemd, `item` says what is tried (in the guest).

mod item;
mod root;
mod service;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Result;
use clap::Args;

use self::item::ITEMS;
use self::root::{Disk, Root};
use super::guest::{self, Guest};
use super::item::print;
use super::package::{Flavour, Kernel};
use super::{DEBIANS, Results, Row, hear, lock};
use crate::topology::require_root;

/// On which kernels the unit is tried.
#[derive(Clone, Debug, Args)]
pub struct UnitBoot {
    /// A series of Debian's kernels, e.g. 6.1 (may be given several times)
    #[arg(long = "kernel", default_values = DEBIANS)]
    kernels: Vec<String>,
    /// Where unpacked kernels and the root are kept
    #[arg(long, default_value = "target/kernels")]
    cache: PathBuf,
    /// Where unit-boot.json and unit-boot.md go
    #[arg(long, default_value = "lab/results")]
    results: PathBuf,
}

/// The items alone, on a machine with the unit installed, which is changed by it.
#[derive(Clone, Copy, Debug, Args)]
pub struct UnitItems {}

impl UnitItems {
    /// Runs them; each is told of in a line on standard output.
    ///
    /// # Errors
    ///
    /// They can't be run at all; what an item finds is in its line.
    pub fn run(self) -> Result<()> {
        item::run_all(|word| print(&word))
    }
}

impl UnitBoot {
    /// Tries the unit on each kernel, prints a table and writes it down.
    ///
    /// # Errors
    ///
    /// A kernel or the root can't be had, or the unit did not do what it has to.
    pub fn run(&self) -> Result<()> {
        require_root()?;
        let began = Instant::now();
        let _lock = lock(&self.cache)?;
        let root = Root::provide(&self.cache)?;
        let kernels = self.kernels.iter();
        let kernels = kernels.map(|series| Kernel::provide(series, Flavour::Cloud, &self.cache));
        let kernels = kernels.collect::<Result<Vec<_>>>()?;
        let rows = kernels.iter().map(|kernel| self.row(kernel, &root));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        let results = Results::of_items(&ITEMS, rows, began.elapsed());
        results.write(&self.results, "unit-boot")?;
        println!("\n{results}");
        results.judge()
    }

    fn row(&self, kernel: &Kernel, root: &Root) -> Result<Row> {
        let began = Instant::now();
        let disk = Disk::build(&self.cache.join("unit-boot"), kernel, root)?;
        let guest = Guest {
            kernel,
            root: guest::Root::Disk(disk.file()),
            console: disk.console(),
            processors: 2,
            limit: LIMIT,
        };
        let mut row = Row::new(&kernel.release, true);
        let ended = guest.run(|word| hear(&mut row, word));
        row.failed = ended.err().map(|error| format!("{error:#}"));
        row.alarms = guest.alarms()?;
        row.seconds = began.elapsed().as_secs_f64();
        Ok(row)
    }
}

/// The files that a package of FlexCP would install, by their places in the repository.
fn shipped(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../flexcp/dist")
        .join(name)
}

/// Of one guest. A quiet machine needs a third of it.
const LIMIT: Duration = Duration::from_secs(400);

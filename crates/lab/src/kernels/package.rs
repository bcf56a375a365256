//! Debian's kernel packages: found in the machine's own package sources, unpacked below a directory, never installed.
//!
//! apt works with state and lists of its own here, so that neither root nor the machine's package state is needed. Where
//! the machine's sources do not have a kernel, its mirror is asked for the suites of Debian 12 that do.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::sources;
use crate::process::{output, text};

/// Which of the kernels that Debian builds of a series.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavour {
    /// For PCs, with drivers of all kinds as modules, those of its disks included.
    Pc,
    /// The smallest: drivers of virtual machines alone, the disk's built in.
    Cloud,
}

impl Flavour {
    /// As it stands at the end of a package's name.
    const fn name(self) -> &'static str {
        match self {
            Self::Pc => "amd64",
            Self::Cloud => "cloud-amd64",
        }
    }

    /// The directory for the one of a series.
    fn directory(self, series: &str) -> String {
        match self {
            Self::Pc => format!("{series}-pc"),
            Self::Cloud => series.to_owned(),
        }
    }
}

/// An unpacked kernel.
#[derive(Clone, Debug)]
pub(super) struct Kernel {
    /// Its name under `/lib/modules`, e.g. `6.1.0-56-cloud-amd64`.
    pub(super) release: String,
    /// The directory in which `boot` and `lib/modules` are.
    pub(super) root: PathBuf,
}

impl Kernel {
    /// What `modprobe` would load for a module.
    ///
    /// # Errors
    ///
    /// The kernel has no such module.
    pub(super) fn depends(&self, module: &str) -> Result<String> {
        let mut modprobe = Command::new("modprobe");
        modprobe.arg("-d").arg(&self.root);
        text(modprobe.args(["-S", &self.release, "--show-depends", module]))
    }

    /// The newest of a series, e.g. `6.1`: from `cache` if it is there, else from the package sources.
    ///
    /// # Errors
    ///
    /// There is none to be had; the error says what to do.
    pub(super) fn provide(series: &str, flavour: Flavour, cache: &Path) -> Result<Self> {
        let directory = flavour.directory(series);
        if let Ok(kernel) = Self::open(&cache.join(&directory)) {
            return Ok(kernel);
        }
        let unpacked = Self::fetch((series, flavour), cache, &directory);
        unpacked.with_context(|| {
            format!(
                "no kernel {series}: it comes from Debian's packages, once, and is kept in {}; \
                 this needs the network and a Debian mirror in /etc/apt",
                cache.display()
            )
        })
    }

    pub(super) fn image(&self) -> PathBuf {
        self.root
            .join("boot")
            .join(format!("vmlinuz-{}", self.release))
    }

    fn open(root: &Path) -> Result<Self> {
        let boot = root.join("boot");
        for entry in fs::read_dir(&boot).with_context(|| format!("reading {boot:?}"))? {
            let name = entry?.file_name().into_string().unwrap_or_default();
            if let Some(release) = name.strip_prefix("vmlinuz-") {
                return Ok(Self {
                    release: release.to_owned(),
                    root: fs::canonicalize(root)?,
                });
            }
        }
        bail!("there is no kernel in {boot:?}")
    }

    fn fetch(which: (&str, Flavour), cache: &Path, directory: &str) -> Result<Self> {
        let machine = text(Command::new("dpkg").arg("--print-architecture"))?;
        ensure!(
            machine.trim() == "amd64",
            "kernels are tried on amd64 alone, this machine is {machine}"
        );
        let apt = Apt::new(cache.join("apt"))?;
        let (package, list) = apt.newest(which)?;
        // All or nothing under the final name.
        let (root, new) = (
            cache.join(directory),
            cache.join(format!("{directory}.new")),
        );
        let _ = fs::remove_dir_all(&new);
        fs::create_dir_all(&new)?;
        apt.unpack(&package, list.as_deref(), &new)?;
        let kernel = Self::open(&new)?;
        index_modules(&new, &kernel.release)?;
        let _ = fs::remove_dir_all(&root);
        fs::rename(&new, &root)?;
        Self::open(&root)
    }
}

/// Makes `modprobe -d` work on an unpacked package.
fn index_modules(root: &Path, release: &str) -> Result<()> {
    if !root.join("lib").exists() {
        std::os::unix::fs::symlink("usr/lib", root.join("lib"))?;
    }
    output(Command::new("depmod").arg("-b").arg(root).arg(release))?;
    Ok(())
}

/// apt with state of its own.
struct Apt {
    dir: PathBuf,
}

impl Apt {
    fn new(dir: PathBuf) -> Result<Self> {
        for part in ["state/lists/partial", "cache/archives/partial", "sources"] {
            fs::create_dir_all(dir.join(part))?;
        }
        Ok(Self { dir })
    }

    /// The package of the newest kernel of a series, and the list of sources that has it, if not the machine's own.
    fn newest(&self, which: (&str, Flavour)) -> Result<(String, Option<PathBuf>)> {
        let complaints = self.update(None)?;
        if let Some(package) = self.search(which, None)? {
            return Ok((package, None));
        }
        let list = self.dir.join("sources/debian-12.list");
        fs::write(&list, sources::debian_12(&sources::of_this_machine())?)?;
        let complaints = format!("{complaints}\n{}", self.update(Some(&list))?);
        let found = self.search(which, Some(&list))?;
        let found =
            found.with_context(|| format!("no package source has one; apt says: {complaints}"));
        Ok((found?, Some(list)))
    }

    /// Fetches the lists; what apt complains of, which may be of sources that do not matter.
    fn update(&self, list: Option<&Path>) -> Result<String> {
        let mut command = self.command("apt-get", list);
        let output = command.args(["update", "-q"]).output();
        let output = output.context("starting apt-get")?;
        Ok(String::from_utf8_lossy(&output.stderr).trim().to_owned())
    }

    fn search(
        &self,
        (series, flavour): (&str, Flavour),
        list: Option<&Path>,
    ) -> Result<Option<String>> {
        let (version, end) = (series.replace('.', "\\."), flavour.name());
        let pattern = format!("^linux-image-{version}\\.[^ ]*-{end}$");
        let mut command = self.command("apt-cache", list);
        let names = text(command.args(["search", "--names-only", &pattern]))?;
        let names = names
            .lines()
            .filter_map(|line| line.split_whitespace().next());
        Ok(newest((series, flavour), names).map(str::to_owned))
    }

    fn unpack(&self, package: &str, list: Option<&Path>, into: &Path) -> Result<()> {
        let archives = self.dir.join("cache/archives");
        let mut command = self.command("apt-get", list);
        output(
            command
                .current_dir(&archives)
                .args(["download", "-q", package]),
        )?;
        let file = fs::read_dir(&archives)?.flatten().map(|entry| entry.path());
        let file = file.filter(|path| path.extension().is_some_and(|end| end == "deb"));
        let mut file = file.filter(|path| {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            name.starts_with(&format!("{package}_"))
        });
        let file = file
            .next()
            .with_context(|| format!("apt-get download left no {package}"))?;
        output(Command::new("dpkg-deb").arg("-x").arg(&file).arg(into))?;
        Ok(fs::remove_file(file)?)
    }

    /// With `list`, that file instead of the machine's sources.
    fn command(&self, program: &str, list: Option<&Path>) -> Command {
        let mut command = Command::new(program);
        let mut option = |name: &str, value: &Path| {
            command.arg("-o").arg(format!("{name}={}", value.display()));
        };
        // Absolute, as apt takes other names for parts of its own directories.
        let dir = std::path::absolute(&self.dir).unwrap_or_else(|_| self.dir.clone());
        option("Dir::State", &dir.join("state"));
        option("Dir::State::status", Path::new("/var/lib/dpkg/status"));
        option("Dir::Cache", &dir.join("cache"));
        option("APT::Sandbox::User", Path::new("root"));
        if let Some(list) = list {
            let list = std::path::absolute(list).unwrap_or_else(|_| list.to_owned());
            option("Dir::Etc::sourcelist", &list);
            option("Dir::Etc::sourceparts", Path::new("/dev/null"));
        }
        command
    }
}

/// The package of the highest version among those of a series: `linux-image-<version>-<flavour>`.
fn newest<'a>(
    (series, flavour): (&str, Flavour),
    names: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    let version = |name: &&str| {
        let version = name.strip_prefix("linux-image-")?;
        let version = version.strip_suffix(flavour.name())?.strip_suffix('-')?;
        let after = version.strip_prefix(series)?;
        // Behind a dash in a version stands a number: `6.1.0-57`. Anything else is a part of another flavour's name.
        let mut parts = version.split('-').skip(1);
        let is_it = parts.all(|part| part.bytes().all(|byte| byte.is_ascii_digit()));
        (after.starts_with('.') && is_it).then(|| numbers(version))
    };
    let known = names.filter_map(|name| Some((version(&name)?, name)));
    known.max().map(|(_, name)| name)
}

/// The numbers of a version, in their order: `6.12.9+deb12` is 6, 12, 9, 12.
fn numbers(version: &str) -> Vec<u64> {
    let digits = version.split(|c: char| !c.is_ascii_digit());
    digits.filter_map(|run| run.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest_of(series: &str, names: &[&str]) -> Option<String> {
        of_flavour(series, Flavour::Cloud, names)
    }

    fn of_flavour(series: &str, flavour: Flavour, names: &[&str]) -> Option<String> {
        newest((series, flavour), names.iter().copied()).map(str::to_owned)
    }

    #[test]
    fn newest_goes_by_numbers_not_letters() {
        let names = [
            "linux-image-6.1.0-9-cloud-amd64",
            "linux-image-6.1.0-47-cloud-amd64",
            "linux-image-6.1.0-10-cloud-amd64",
        ];
        assert_eq!(newest_of("6.1", &names).as_deref(), Some(names[1]));
        let names = [
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.12.100+deb12-cloud-amd64",
        ];
        assert_eq!(newest_of("6.12", &names).as_deref(), Some(names[1]));
    }

    #[test]
    fn other_series_and_flavours_are_not_taken() {
        let names = [
            "linux-image-6.12.9+deb12-cloud-amd64",
            "linux-image-6.1.0-9-amd64",
            "linux-image-6.1.0-9-cloud-amd64-dbg",
            "linux-image-6.1.0-9-cloud-amd64-unsigned",
            "linux-image-6.1-cloud-amd64",
        ];
        assert_eq!(newest_of("6.1", &names), None);
        assert_eq!(newest_of("6.12", &names).as_deref(), Some(names[0]));
        let of_pcs = |series| of_flavour(series, Flavour::Pc, &names);
        assert_eq!(of_pcs("6.12"), None);
        assert_eq!(of_pcs("6.1").as_deref(), Some(names[1]));
    }

    #[test]
    fn cache_without_a_kernel_is_not_taken_for_one() {
        let empty = Path::new("/nonexistent/kernels/6.1");
        assert!(Kernel::open(empty).is_err());
    }
}

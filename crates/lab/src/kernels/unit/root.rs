//! A root of Debian 12, made by debootstrap once, and the disk that a guest boots from: that root with a kernel's modules, and
//! FlexCP installed as its package would.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::super::image::HOME;
use super::super::package::Kernel;
use super::super::sources;
use super::item::DESTINATIONS;
use super::shipped;
use crate::daemon;
use crate::process::output;

/// What debootstrap has made.
#[derive(Clone, Debug)]
pub(super) struct Root(PathBuf);

impl Root {
    /// From `cache` if it is there, else from the machine's Debian mirror.
    ///
    /// # Errors
    ///
    /// There is none to be had; the error says what to do.
    pub(super) fn provide(cache: &Path) -> Result<Self> {
        let (root, made_of) = (cache.join("debian-12"), cache.join("debian-12.packages"));
        if root.is_dir() && fs::read_to_string(&made_of).is_ok_and(|known| known == PACKAGES) {
            return Ok(Self(root));
        }
        // All or nothing under the final name.
        let new = cache.join("debian-12.new");
        for old in [&new, &root] {
            let _ = fs::remove_dir_all(old);
        }
        let made = debootstrap(&new).with_context(|| {
            format!(
                "no root of Debian 12: debootstrap makes it, once, and it is kept in {}; \
                 this needs the network and a Debian mirror in /etc/apt",
                cache.display()
            )
        });
        made?;
        for unneeded in UNNEEDED {
            let _ = fs::remove_dir_all(new.join(unneeded));
        }
        fs::rename(&new, &root)?;
        fs::write(&made_of, PACKAGES)?;
        Ok(Self(root))
    }
}

fn debootstrap(into: &Path) -> Result<()> {
    let sources = sources::of_this_machine();
    let (mirror, keyring) = sources::mirror(&sources)?;
    let mut command = Command::new("debootstrap");
    command.args(["--variant=minbase", &format!("--include={PACKAGES}")]);
    if let Some(keyring) = keyring {
        command.arg(format!("--keyring={keyring}"));
    }
    output(command.arg("bookworm").arg(into).arg(mirror))?;
    Ok(())
}

/// The disk, in a directory that goes with this value.
#[derive(Debug)]
pub(super) struct Disk {
    dir: PathBuf,
}

impl Disk {
    /// Makes the disk for a kernel.
    pub(super) fn build(dir: &Path, kernel: &Kernel, root: &Root) -> Result<Self> {
        let _ = fs::remove_dir_all(dir);
        fs::create_dir_all(dir).with_context(|| format!("creating {dir:?}"))?;
        let disk = Self {
            dir: dir.to_owned(),
        };
        let tree = Tree(dir.join("root"));
        // Links, not copies: what is there is only read.
        let link = |from: &Path, to: &Path| output(Command::new("cp").arg("-al").args([from, to]));
        link(&root.0, &tree.0)?;
        fs::create_dir_all(tree.0.join("usr/lib/modules"))?;
        let modules = Path::new("lib/modules").join(&kernel.release);
        let own = tree.0.join("usr").join(&modules);
        link(&kernel.root.join(&modules), &own)?;
        tree.install()?;
        let make = ["-q", "-t", "ext4", "-m", "0", "-O", "^has_journal", "-d"];
        let mut command = Command::new("mke2fs");
        command.args(make).arg(&tree.0).arg(disk.file()).arg(SIZE);
        output(&mut command)?;
        fs::remove_dir_all(&tree.0)?;
        Ok(disk)
    }

    pub(super) fn file(&self) -> PathBuf {
        self.dir.join("disk")
    }

    /// Where the guest's console goes.
    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console")
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A root whose files may be links to those of others: new ones are added, none is changed.
struct Tree(PathBuf);

impl Tree {
    /// FlexCP, and what tries it.
    fn install(&self) -> Result<()> {
        self.add_program("usr/bin/flexcp", &daemon::binary()?)?;
        let unit = fs::read(shipped("flexcp.service"))?;
        self.add("usr/lib/systemd/system/flexcp.service", &unit)?;
        let user = fs::read(shipped("flexcp.sysusers"))?;
        self.add("usr/lib/sysusers.d/flexcp.conf", &user)?;
        let example = fs::read_to_string(shipped("flexcp.toml"))?;
        let configuration = for_the_lab(&example)?;
        self.add("etc/flexcp/flexcp.toml", configuration.as_bytes())?;

        self.add_program(&format!("{HOME}/lab")[1..], &std::env::current_exe()?)?;
        self.add(
            "etc/systemd/system/unit-boot.service",
            include_bytes!("unit-boot.service"),
        )?;
        self.link(
            "etc/systemd/system/multi-user.target.wants/unit-boot.service",
            "/etc/systemd/system/unit-boot.service",
        )?;
        // Nobody logs in, and the console is for what goes wrong.
        for unit in ["serial-getty@ttyS0.service", "getty@tty1.service"] {
            self.link(&format!("etc/systemd/system/{unit}"), "/dev/null")?;
        }
        Ok(())
    }

    fn add_program(&self, path: &str, file: &Path) -> Result<()> {
        self.add(path, b"")?;
        let to = self.0.join(path);
        // Debugging information would be most of it.
        let mut strip = Command::new("strip");
        output(strip.arg("--strip-debug").arg("-o").args([&to, file]))?;
        Ok(fs::set_permissions(&to, fs::Permissions::from_mode(0o755))?)
    }

    fn add(&self, path: &str, content: &[u8]) -> Result<()> {
        let to = self.place(path)?;
        let file = File::create_new(&to);
        let mut file = file.with_context(|| format!("creating {to:?}"))?;
        file.write_all(content)?;
        Ok(())
    }

    fn link(&self, path: &str, target: &str) -> Result<()> {
        let to = self.place(path)?;
        symlink(target, &to).with_context(|| format!("linking {to:?}"))
    }

    fn place(&self, path: &str) -> Result<PathBuf> {
        let to = self.0.join(path);
        fs::create_dir_all(to.parent().context("a file without a directory")?)?;
        Ok(to)
    }
}

/// The example configuration, with the lab's servers in place of the example's.
fn for_the_lab(example: &str) -> Result<String> {
    const EXAMPLE: &str = r#"destinations = ["198.51.100.0/24", "2001:db8:100::/48"]"#;
    ensure!(
        example.matches(EXAMPLE).count() == 1,
        "the example configuration has no {EXAMPLE}"
    );
    Ok(example.replace(EXAMPLE, DESTINATIONS))
}

/// What the root has beside the least that Debian is: what a host of FlexCP's has, and what the lab calls.
const PACKAGES: &str = "systemd,systemd-sysv,udev,kmod,iproute2,procps";

/// Nobody reads it in a guest, and it is half of the root.
const UNNEEDED: [&str; 5] = [
    "var/cache/apt",
    "var/lib/apt/lists",
    "usr/share/doc",
    "usr/share/locale",
    "usr/share/man",
];

/// Of the disk; what is not used takes no room.
const SIZE: &str = "1G";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn configuration_is_the_example_with_the_labs_servers() {
        let example = fs::read_to_string(shipped("flexcp.toml")).unwrap();
        let ours = for_the_lab(&example).unwrap();
        let other: Vec<_> = ours
            .lines()
            .zip(example.lines())
            .filter(|(ours, example)| ours != example)
            .collect();
        assert_eq!(other.len(), 1, "{other:?}");
        assert_eq!(other[0].0, DESTINATIONS);
        assert!(for_the_lab("").is_err());
    }

    #[test]
    fn file_that_is_there_is_not_written_to() {
        let dir = std::env::temp_dir().join(format!("flexcp-tree-{}", std::process::id()));
        let _ = fs::remove_dir_all(&dir);
        let tree = Tree(dir.clone());
        tree.add("etc/a", b"kept").unwrap();
        assert!(tree.add("etc/a", b"other").is_err());
        assert_eq!(fs::read(dir.join("etc/a")).unwrap(), b"kept");
        fs::remove_dir_all(dir).unwrap();
    }
}

//! The guest's root, an initramfs: programs with their libraries, the kernel's modules, and the script that is init.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::package::Kernel;
use crate::process::{output, text};

/// A program of the project, to stand in [`HOME`] under a name.
#[derive(Clone, Debug)]
pub(super) struct Own {
    pub(super) name: &'static str,
    pub(super) file: PathBuf,
}

/// The directory in which a guest's root is put together; it goes with this value.
#[derive(Debug)]
pub(super) struct Image {
    dir: PathBuf,
}

impl Image {
    /// Makes the root for a kernel. `arguments` go to the guest's `lab`.
    pub(super) fn build(dir: &Path, kernel: &Kernel, own: &[Own], arguments: &str) -> Result<Self> {
        let _ = fs::remove_dir_all(dir);
        let image = Self {
            dir: dir.to_owned(),
        };
        let tree = Tree::new(dir.join("root"))?;
        for name in PROGRAMS {
            let program = find(name)?;
            tree.add_with_libraries(&program)?;
        }
        tree.add_preloaded()?;
        tree.add_plugin()?;
        for path in [
            "/etc/iproute2",
            "/usr/share/iproute2",
            "/etc/passwd",
            "/etc/group",
            // Names of protocols in what `ip rule` prints.
            "/etc/protocols",
        ] {
            tree.add_all(Path::new(path))?;
        }
        tree.write(
            "etc/nsswitch.conf",
            "passwd: files\ngroup: files\nhosts: files\n",
        )?;
        tree.write("etc/hosts", "127.0.0.1 localhost\n")?;
        for Own { name, file } in own {
            let to = tree.place(Path::new(HOME).join(name).as_path())?;
            // Debugging information would be most of the image.
            output(
                Command::new("strip")
                    .arg("--strip-debug")
                    .arg("-o")
                    .args([&to, file]),
            )?;
            tree.add_libraries(file)?;
        }
        let modules = tree.add_modules(kernel)?;
        let modules: String = modules.iter().map(|name| format!("{name}\n")).collect();
        tree.write("etc/modules", &modules)?;
        tree.write("etc/flexcp-items", arguments)?;
        tree.write("init", INIT)?;
        fs::set_permissions(tree.0.join("init"), fs::Permissions::from_mode(0o755))?;
        tree.pack(&image.initramfs())?;
        fs::remove_dir_all(&tree.0)?;
        Ok(image)
    }

    pub(super) fn initramfs(&self) -> PathBuf {
        self.dir.join("initramfs")
    }

    /// Where the guest's console goes.
    pub(super) fn console(&self) -> PathBuf {
        self.dir.join("console")
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// A directory that will be a root.
struct Tree(PathBuf);

impl Tree {
    /// With the directories that init mounts on, and `/bin` and its like as links into `/usr`.
    fn new(root: PathBuf) -> Result<Self> {
        for dir in [
            "proc",
            "sys",
            "dev",
            "run",
            "tmp",
            "etc",
            "var/log/nginx",
            "var/lib/nginx",
        ] {
            fs::create_dir_all(root.join(dir)).with_context(|| format!("creating {root:?}"))?;
        }
        for dir in ["bin", "sbin", "lib", "lib64"] {
            fs::create_dir_all(root.join("usr").join(dir))?;
            symlink(format!("usr/{dir}"), root.join(dir))?;
        }
        Ok(Self(root))
    }

    /// Where a file of this machine stands in the tree; its directories are made.
    fn place(&self, path: &Path) -> Result<PathBuf> {
        let to = self.0.join(path.strip_prefix("/").unwrap_or(path));
        let parent = to.parent().context("a file without a directory")?;
        fs::create_dir_all(parent)?;
        Ok(to)
    }

    fn add(&self, path: &Path) -> Result<()> {
        let to = self.place(path)?;
        if !to.exists() {
            fs::copy(path, &to).with_context(|| format!("copying {path:?}"))?;
        }
        Ok(())
    }

    fn add_with_libraries(&self, program: &Path) -> Result<()> {
        self.add(program)?;
        self.add_libraries(program)
    }

    fn add_libraries(&self, program: &Path) -> Result<()> {
        // A program without an interpreter makes ldd fail, and has no libraries.
        let Ok(listing) = text(Command::new("ldd").arg(program)) else {
            return Ok(());
        };
        for library in libraries(&listing).with_context(|| format!("{program:?}"))? {
            self.add(&library)?;
        }
        Ok(())
    }

    /// What mptcpize has the loader load into other programs.
    fn add_preloaded(&self) -> Result<()> {
        for entry in fs::read_dir("/usr/lib")?.flatten() {
            self.add_all(&entry.path().join("mptcpize"))?;
        }
        Ok(())
    }

    /// What pppd loads for PPP over Ethernet.
    fn add_plugin(&self) -> Result<()> {
        for entry in fs::read_dir("/usr/lib/pppd")?.flatten() {
            self.add_with_libraries(&entry.path().join("pppoe.so"))?;
        }
        Ok(())
    }

    /// A file, or all of a directory; nothing if there is none.
    fn add_all(&self, path: &Path) -> Result<()> {
        if path.is_file() {
            return self.add(path);
        }
        for entry in fs::read_dir(path).into_iter().flatten().flatten() {
            self.add_all(&entry.path())?;
        }
        Ok(())
    }

    /// [`MODULES`], those of [`OF_SOME`] that the kernel has, and what they depend on. Gives the names of the
    /// modules to load.
    fn add_modules(&self, kernel: &Kernel) -> Result<Vec<&'static str>> {
        let mut files = BTreeSet::new();
        let mut names = MODULES.to_vec();
        for module in MODULES {
            files.extend(module_files(&kernel.depends(module)?));
        }
        for &module in OF_SOME {
            if let Ok(listing) = kernel.depends(module) {
                files.extend(module_files(&listing));
                names.push(module);
            }
        }
        let base = Path::new("lib/modules").join(&kernel.release);
        for index in [
            "modules.order",
            "modules.builtin",
            "modules.builtin.modinfo",
        ] {
            files.insert(kernel.root.join(&base).join(index));
        }
        for file in files {
            let within = file.strip_prefix(&kernel.root);
            let within = within.with_context(|| format!("{file:?} is not of the kernel"))?;
            let to = self.place(within)?;
            fs::copy(&file, &to).with_context(|| format!("copying {file:?}"))?;
        }
        output(
            Command::new("depmod")
                .arg("-b")
                .arg(&self.0)
                .arg(&kernel.release),
        )?;
        Ok(names)
    }

    fn write(&self, path: &str, text: &str) -> Result<()> {
        let to = self.place(Path::new(path))?;
        fs::write(&to, text).with_context(|| format!("writing {to:?}"))
    }

    fn pack(&self, into: &Path) -> Result<()> {
        let script =
            "find . -print0 | cpio --null --create --format=newc --quiet --owner=0:0 > \"$1\"";
        let into = std::path::absolute(into)?;
        let mut shell = Command::new("/bin/sh");
        shell.args(["-ec", script, "pack"]).arg(into);
        output(shell.current_dir(&self.0))?;
        Ok(())
    }
}

/// A program in the PATH or where those of root are.
fn find(name: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/sbin", "/usr/bin"].map(PathBuf::from);
    let places = usual.into_iter().chain(std::env::split_paths(&path));
    let mut files = places.map(|dir| dir.join(name));
    let found = files.find(|file| file.is_file());
    found.with_context(|| format!("no program {name}: scripts/setup installs what is needed"))
}

/// The files that `ldd` names: `libc.so.6 => /lib/libc.so.6 (0x...)`, `/lib64/ld-linux-x86-64.so.2 (0x...)`.
fn libraries(listing: &str) -> Result<Vec<PathBuf>> {
    let mut files = vec![];
    for line in listing.lines() {
        let (name, file) = line.split_once("=>").unwrap_or((line, line));
        let file = file.split_whitespace().next().unwrap_or_default();
        if file == "not" {
            bail!("the library {} is not found", name.trim());
        }
        // What has no file is in the kernel (linux-vdso.so.1), or there is none (statically linked).
        if file.starts_with('/') {
            files.push(PathBuf::from(file));
        }
    }
    ensure!(!listing.is_empty(), "ldd says nothing");
    Ok(files)
}

/// The files that `modprobe --show-depends` names: `insmod FILE OPTIONS`; what is built in has none.
fn module_files(listing: &str) -> impl Iterator<Item = PathBuf> {
    let lines = listing
        .lines()
        .filter_map(|line| line.strip_prefix("insmod "));
    lines.filter_map(|rest| rest.split_whitespace().next().map(PathBuf::from))
}

/// Where the project's own programs are in a guest.
pub(super) const HOME: &str = "/flexcp";

const INIT: &str = include_str!("init.sh");

/// The lab's programs, and those of init.
const PROGRAMS: &[&str] = &[
    "bash", "busybox", "curl", "dash", "dmesg", "ethtool", "ip", "iperf3", "kill", "kmod",
    "modprobe", "mptcpize", "nft", "nginx", "nsenter", "nstat", "ping", "pppd", "setpriv", "sleep",
    "ss", "sysctl", "tc", "tcpdump", "unshare", "wg",
];

/// What the lab's links, faults and sockets are made of and Debian's kernels do not have built in.
const MODULES: &[&str] = &[
    "8021q",
    "act_gact",
    "act_mirred",
    "bonding",
    "bridge",
    "cls_bpf",
    "cls_u32",
    // ESP with AES-GCM, and what makes that.
    "ctr",
    "drbg",
    "esp4",
    "esp6",
    "gcm",
    "ghash-generic",
    "sha512_generic",
    "inet_diag",
    "mptcp_diag",
    "nf_conntrack",
    "nf_conntrack_ftp",
    "nf_conntrack_netlink",
    "nf_tables",
    "nft_chain_nat",
    "nft_connlimit",
    "nft_ct",
    "nft_dup_netdev",
    "nft_fwd_netdev",
    "nft_limit",
    "nft_masq",
    "nft_nat",
    "nft_numgen",
    "nft_quota",
    "nft_reject_inet",
    "sch_fq",
    "sch_fq_codel",
    "sch_ingress",
    "sch_tbf",
    "seqiv",
    "tcp_bbr",
    "tcp_diag",
    "tun",
    "udp_diag",
    "veth",
    "vrf",
    "wireguard",
    "xfrm_interface",
    "xfrm_user",
];

/// Modules of some kernels, which others have not, or as a part of another module.
const OF_SOME: &[&str] = &["nft_objref", "pppoe"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_are_those_with_a_file() {
        let listing = "\tlinux-vdso.so.1 (0x00007ffd)\n\
                       \tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f01)\n\
                       \t/lib64/ld-linux-x86-64.so.2 (0x00007f02)\n";
        let files = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ];
        assert_eq!(libraries(listing).unwrap(), files.map(PathBuf::from));
        assert_eq!(
            libraries("\tstatically linked\n").unwrap(),
            Vec::<PathBuf>::new()
        );
    }

    #[test]
    fn library_that_is_missing_is_an_error() {
        let error = libraries("\tlibx.so.1 => not found\n").unwrap_err();
        assert_eq!(error.to_string(), "the library libx.so.1 is not found");
    }

    #[test]
    fn modules_come_with_what_they_depend_on() {
        let listing = "builtin ipv6\ninsmod /k/lib/modules/6.1/libcrc32c.ko.xz \ninsmod /k/nf_tables.ko a=1\n";
        let files: Vec<_> = module_files(listing).collect();
        assert_eq!(
            files,
            ["/k/lib/modules/6.1/libcrc32c.ko.xz", "/k/nf_tables.ko"].map(PathBuf::from)
        );
    }
}

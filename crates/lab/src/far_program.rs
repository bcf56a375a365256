//! Programs at the far end of a box's uplinks that take MPTCP by mptcpize: proxies that end it, and a server.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};

use crate::process::Background;
use crate::topology::Lab;
use crate::transfer::Payload;

/// One of them, running in the namespace of the lab's client.
#[derive(Debug)]
pub struct FarProgram {
    _program: Background,
    file: Option<Vec<u8>>,
}

/// What danted is told: it listens at `at`, connects from this device, and lets everybody.
pub(crate) fn danted_config(at: SocketAddr, device: &str) -> String {
    let (ip, port) = (at.ip(), at.port());
    format!(
        "logoutput: stderr\nerrorlog: stderr\ninternal: {ip} port = {port}\nexternal: {device}\nclientmethod: none\n\
         socksmethod: none\nuser.privileged: root\nuser.unprivileged: nobody\n\
         client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\nsocks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n"
    )
}

impl FarProgram {
    /// haproxy that listens at `at` and connects with `to`.
    pub fn haproxy(lab: &Lab, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let config = format!(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
             listen far\n  bind {at}\n  server s {to}\n"
        );
        Self::start(lab, ("haproxy", &["-db", "-f"]), &config, at)
    }

    /// danted, a SOCKS5 server that listens at `at` and connects from this device.
    pub fn danted(lab: &Lab, at: SocketAddr, device: &str) -> Result<Self> {
        Self::start(lab, ("danted", &["-f"]), &danted_config(at, device), at)
    }

    /// nginx that serves `/file` of so many bytes.
    pub fn nginx(lab: &Lab, at: SocketAddr, bytes: u64) -> Result<Self> {
        let root = lab.dir().join("far-www");
        fs::create_dir_all(&root)?;
        let mut file = vec![0; usize::try_from(bytes)?];
        Payload::new(7).fill(0, &mut file);
        fs::write(root.join("file"), &file)?;
        let (dir, www) = (lab.dir().display(), root.display());
        let config = format!(
            "daemon off;\nuser root;\npid {dir}/far-nginx.pid;\nerror_log {dir}/far-nginx.log;\n\
             events {{ }}\nhttp {{\n  access_log off;\n  sendfile on;\n  \
             client_body_temp_path {dir}/far-body;\n  server {{ listen {at}; root {www}; }}\n}}\n"
        );
        let server = Self::start(lab, ("nginx", &["-c"]), &config, at)?;
        Ok(Self {
            file: Some(file),
            ..server
        })
    }

    /// What it serves, if that is a file.
    #[must_use]
    pub const fn file(&self) -> Option<&Vec<u8>> {
        self.file.as_ref()
    }

    fn start(
        lab: &Lab,
        (program, arguments): (&str, &[&str]),
        config: &str,
        at: SocketAddr,
    ) -> Result<Self> {
        let file = lab.dir().join(format!("far-{program}.conf"));
        fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
        let mut command = lab.client().command("mptcpize");
        command.args(["run", program]).args(arguments).arg(&file);
        let mut running = Background::spawn(command, lab.dir(), &format!("far-{program}"))?;
        let ready = running.wait_for_listener(lab.client(), at);
        ready.with_context(|| format!("{program} does not start: {}", running.stderr()))?;
        Ok(Self {
            _program: running,
            file: None,
        })
    }
}

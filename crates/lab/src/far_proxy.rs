//! Proxies at the far end of a box's uplinks that take MPTCP by mptcpize and terminate it.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result};

use crate::process::Background;
use crate::topology::Lab;

/// One of them, running in the namespace of the lab's client.
#[derive(Debug)]
pub struct FarProxy {
    _program: Background,
}

impl FarProxy {
    /// haproxy that listens at `at` and connects with `to`.
    pub fn haproxy(lab: &Lab, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let config = format!(
            "defaults\n  mode tcp\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n\
             listen far\n  bind {at}\n  server s {to}\n"
        );
        Self::start(lab, ("haproxy", &["-db", "-f"]), &config, at)
    }

    /// nginx that does.
    pub fn nginx(lab: &Lab, at: SocketAddr, to: SocketAddr) -> Result<Self> {
        let dir = lab.dir().display();
        let config = format!(
            "load_module /usr/lib/nginx/modules/ngx_stream_module.so;\ndaemon off;\nuser root;\n\
             pid {dir}/far-nginx.pid;\nerror_log {dir}/far-nginx.log;\nevents {{ }}\n\
             stream {{\n  proxy_timeout 1h;\n  server {{ listen {at}; proxy_pass {to}; }}\n}}\n"
        );
        Self::start(lab, ("nginx", &["-c"]), &config, at)
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
        Ok(Self { _program: running })
    }
}

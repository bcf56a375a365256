//! nginx with files of known content, as the unmodified server.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{BufWriter, Read, Write as _};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rustix::process::Signal;
use sha2::{Digest as _, Sha256};

use crate::process::Background;
use crate::topology::Lab;
use crate::transfer::{Payload, Proto};

/// A running nginx on port 80 of one server; on port [`TOLD`], too, where it wants to be told of its clients.
#[derive(Debug)]
pub struct Nginx {
    process: Background,
    /// SHA-256 by file name.
    hashes: BTreeMap<String, String>,
    root: PathBuf,
}

impl Nginx {
    /// Starts it on server `number` with files of these names and sizes.
    ///
    /// With [`Proto::Mptcp`] it runs under `mptcpize`. A PUT to `/put/NAME` ends
    /// up in [`Nginx::uploaded`].
    pub fn start(lab: &Lab, number: u8, files: &[(&str, u64)], proto: Proto) -> Result<Self> {
        let dir = lab.dir().join(format!("nginx{number}"));
        let root = dir.join("www");
        fs::create_dir_all(&root).with_context(|| format!("creating {root:?}"))?;
        let mut hashes = BTreeMap::new();
        for (seed, (name, bytes)) in (100..).zip(files) {
            hashes.insert(
                (*name).to_owned(),
                write_file(&root.join(name), seed, *bytes)?,
            );
        }
        let config = dir.join("nginx.conf");
        fs::write(&config, configuration(&dir))?;

        let namespace = lab.server(number);
        let mut command = match proto {
            Proto::Tcp => namespace.command("nginx"),
            Proto::Mptcp => {
                let mut command = namespace.command("mptcpize");
                command.args(["run", "nginx"]);
                command
            }
        };
        command
            .arg("-e")
            .arg(dir.join("error.log"))
            .arg("-c")
            .arg(&config);
        let process = Background::spawn(command, lab.dir(), &format!("nginx{number}"))?;
        let mut nginx = Self {
            process,
            hashes,
            root,
        };
        let at = SocketAddr::from(([127, 0, 0, 1], 80));
        let ready = nginx.process.wait_for_listener(namespace, at);
        ready.context("nginx does not start")?;
        Ok(nginx)
    }

    /// SHA-256 of one of its files, in hex.
    pub fn sha256(&self, name: &str) -> Result<&str> {
        self.hashes
            .get(name)
            .map(String::as_str)
            .with_context(|| format!("no file {name}"))
    }

    /// The file of that name on its disk, to send or to compare.
    pub fn file(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// Where a PUT to `/put/<name>` was stored.
    pub fn uploaded(&self, name: &str) -> PathBuf {
        self.root.join("put").join(name)
    }

    /// Leaves it running when this value is dropped.
    pub(crate) fn detach(mut self) {
        self.process.detach();
    }
}

/// SHA-256 of a file, in hex.
pub fn sha256_of(path: &Path) -> Result<String> {
    let mut file = File::open(path).with_context(|| format!("opening {path:?}"))?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex(&hash.finalize())),
            len => hash.update(&buffer[..len]),
        }
    }
}

/// Writes a file of seeded content; its SHA-256.
fn write_file(path: &PathBuf, seed: u64, bytes: u64) -> Result<String> {
    let mut file = BufWriter::new(File::create(path).with_context(|| format!("{path:?}"))?);
    let mut hash = Sha256::new();
    let mut buffer = vec![0; CHUNK];
    let mut offset = 0;
    while offset < bytes {
        let len = usize::try_from(bytes - offset).map_or(CHUNK, |left| left.min(CHUNK));
        Payload::new(seed).fill(offset, &mut buffer[..len]);
        hash.update(&buffer[..len]);
        file.write_all(&buffer[..len])?;
        offset += len as u64;
    }
    file.flush()?;
    Ok(hex(&hash.finalize()))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn configuration(dir: &Path) -> String {
    let dir = dir.display();
    format!(
        "daemon off; user root; worker_processes 1; pid {dir}/pid; error_log {dir}/error.log;\n\
         worker_rlimit_nofile 65536; events {{ worker_connections 16384; }}\n\
         http {{\n\
           access_log off; sendfile on; tcp_nodelay on; keepalive_requests 1000000;\n\
           client_max_body_size 0; client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;\n\
           fastcgi_temp_path {dir}/fcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;\n\
           server {{\n\
             listen 80 backlog=4096; listen [::]:80 backlog=4096; root {dir}/www;\n\
             location /put/ {{ dav_methods PUT; create_full_put_path on; }}\n\
           }}\n\
           server {{\n\
             listen {TOLD} proxy_protocol; listen [::]:{TOLD} proxy_protocol; root {dir}/www;\n\
             location /who {{\n\
               return 200 \"$proxy_protocol_addr $proxy_protocol_port $proxy_protocol_server_addr \
                 $proxy_protocol_server_port\";\n\
             }}\n\
           }}\n\
         }}\n"
    )
}

impl Drop for Nginx {
    fn drop(&mut self) {
        // The master takes its workers along; what it leaves, the lab removes.
        let _ = self.process.signal(Signal::TERM);
        let _ = self.process.wait(Duration::from_millis(500));
    }
}

/// Port on which nginx takes no connection without a header of the PROXY protocol. `/who` says what that tells.
pub const TOLD: u16 = 81;
const CHUNK: usize = 1 << 20;

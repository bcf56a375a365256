//! The programs of the benchmark: nginx as web server, nginx and haproxy as proxies.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, Result};
use flexcp_lab::transfer::{Payload, Proto};
use flexcp_lab::{Background, Lab, Namespace};
use rustix::process::{Resource, Signal, getrlimit};

/// A program that listens; it ends with SIGTERM when this is dropped.
#[derive(Debug)]
pub(crate) struct Program(Background);

impl Program {
    /// Starts `words` in a namespace, with MPTCP sockets by `mptcpize` if asked for, and waits until
    /// the port takes connections.
    pub(crate) fn start(
        (lab, namespace): (&Lab, &Namespace),
        name: &str,
        words: &[&str],
        proto: Proto,
        ready: SocketAddr,
    ) -> Result<Self> {
        let mut command = match proto {
            Proto::Tcp => namespace.command(words[0]),
            Proto::Mptcp => {
                let mut command = namespace.command("mptcpize");
                command.args(["run", words[0]]);
                command
            }
        };
        command.args(&words[1..]);
        let mut process = Background::spawn(command, lab.dir(), name)?;
        let listens = process.wait_for_listener(namespace, ready);
        listens.with_context(|| format!("{name} does not start"))?;
        Ok(Self(process))
    }

    /// Process id of the program, or of the master of its workers.
    pub(crate) fn pid(&self) -> u32 {
        self.0.pid()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.signal(Signal::TERM);
        let _ = self.0.wait(Duration::from_secs(2));
    }
}

/// nginx with an object of each size, named by its number of bytes.
pub(crate) fn web(lab: &Lab, proto: Proto, sizes: &[u64]) -> Result<Program> {
    let dir = lab.dir().join("web");
    let root = dir.join("www");
    fs::create_dir_all(&root)?;
    for bytes in sizes {
        write_object(&root.join(bytes.to_string()), *bytes)?;
    }
    let config = format!(
        "{head}\
         http {{\n\
           access_log off; sendfile on; tcp_nodelay on;\n\
           keepalive_requests 1000000000; keepalive_timeout 1h; open_file_cache max=64;\n\
           client_body_temp_path {dir}/body; proxy_temp_path {dir}/proxy;\n\
           fastcgi_temp_path {dir}/fcgi; uwsgi_temp_path {dir}/uwsgi; scgi_temp_path {dir}/scgi;\n\
           server {{ listen {WEB} backlog=16384; root {dir}/www; }}\n\
         }}\n",
        head = nginx_head(&dir, ""),
        dir = dir.display(),
    );
    nginx((lab, lab.server(1)), &dir, &config, proto, WEB)
}

/// nginx as a proxy of these ports, MPTCP towards the client.
pub(crate) fn nginx_proxy(lab: &Lab, ports: &[u16]) -> Result<Program> {
    let dir = lab.dir().join(format!("nginx-proxy-{}", ports[0]));
    fs::create_dir_all(&dir)?;
    let mut config = nginx_head(&dir, "load_module modules/ngx_stream_module.so;\n");
    config.push_str("stream {\n  tcp_nodelay on; proxy_timeout 1h;\n");
    for port in ports {
        let to = server(lab, *port);
        let _ = writeln!(
            config,
            "  server {{ listen {port} backlog=16384; proxy_pass {to}; }}"
        );
    }
    config.push_str("}\n");
    nginx((lab, lab.proxy()), &dir, &config, Proto::Mptcp, ports[0])
}

/// haproxy as a proxy of these ports with `splice()`, MPTCP towards the client.
pub(crate) fn haproxy(lab: &Lab, ports: &[u16]) -> Result<Program> {
    let mut config = format!(
        "global\n  maxconn {maxconn}\n  nbthread {}\n\
         defaults\n  mode tcp\n  option splice-auto\n  option splice-request\n  \
         option splice-response\n  timeout connect 10s\n  timeout client 1h\n  timeout server 1h\n  \
         backlog 16384\n  maxconn {maxconn}\n",
        cpus(),
        // Two sockets each, and pipes for splice() for every fourth.
        maxconn = open_files() * 2 / 5 - 200,
    );
    for port in ports {
        let to = server(lab, *port);
        let _ = writeln!(config, "listen p{port}\n  bind *:{port}\n  server s {to}");
    }
    let name = format!("haproxy-{}", ports[0]);
    let file = lab.dir().join(&name);
    fs::write(&file, config)?;
    let ready = SocketAddr::from(([127, 0, 0, 1], ports[0]));
    let words = ["haproxy", "-db", "-f", path(&file)?];
    Program::start((lab, lab.proxy()), &name, &words, Proto::Mptcp, ready)
}

fn nginx(
    place: (&Lab, &Namespace),
    dir: &Path,
    config: &str,
    proto: Proto,
    port: u16,
) -> Result<Program> {
    let file = dir.join("nginx.conf");
    fs::write(&file, config).with_context(|| format!("writing {file:?}"))?;
    let log = dir.join("error.log");
    let words = ["nginx", "-e", path(&log)?, "-c", path(&file)?];
    let name = dir.file_name().and_then(|name| name.to_str());
    let ready = SocketAddr::from(([127, 0, 0, 1], port));
    Program::start(place, name.unwrap_or("nginx"), &words, proto, ready)
}

/// What web server and proxy have in common: a worker for each CPU.
fn nginx_head(dir: &Path, modules: &str) -> String {
    let dir = dir.display();
    format!(
        "{modules}daemon off; user root; worker_processes {cpus}; pid {dir}/pid;\n\
         error_log {dir}/error.log; worker_rlimit_nofile {files};\n\
         events {{ worker_connections {files}; }}\n",
        cpus = cpus(),
        files = open_files(),
    )
}

/// Where a proxy finds the server of a port.
fn server(lab: &Lab, port: u16) -> SocketAddr {
    lab.server_socket(1, flexcp_lab::Family::V4, port)
}

fn path(path: &Path) -> Result<&str> {
    path.to_str().context("a path that is not UTF-8")
}

/// What a process may have open at most, unless it has `CAP_SYS_RESOURCE`.
pub(crate) fn open_files() -> u64 {
    getrlimit(Resource::Nofile).maximum.unwrap_or(1 << 20)
}

fn cpus() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// What the object of that many bytes holds.
pub(crate) fn object(bytes: u64) -> Vec<u8> {
    let mut object = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
    Payload::new(bytes).fill(0, &mut object);
    object
}

fn write_object(path: &PathBuf, bytes: u64) -> io::Result<()> {
    fs::write(path, object(bytes))
}

/// Port of the web server.
pub(crate) const WEB: u16 = 80;

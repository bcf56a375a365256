//! Programs that people use, by the modes in which clients name their server: curl and ssh, on Linux's own stack.

use std::fs::{self, File};
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Client, Job, Payload, Proto, ServeOptions};
use flexcp_lab::wirecheck::{Taken, packets};
use flexcp_lab::{
    Background, End, Expect, Families, Family, Lab, Nginx, daemon, output, sha256_of, text,
};
use libtest_mimic::Trial;

use crate::rig::{PORT, Rig, ensure_named, serve_names, short, until, with};

crate::cases!("clients":
    curl_by_socks5,
    curl_by_socks5_over_ipv6,
    curl_that_gives_a_password,
    ssh_by_flexcp_connect,
    ssh_by_flexcp_connect_over_ipv6,
    server_hears_of_a_convert_client_before_its_second_packet,
    server_hears_of_a_convert_client_before_its_second_packet_over_ipv6,
    curl_under_libconvert,
);

/// Those for which there is what they need.
pub(crate) fn cases_that_apply() -> Vec<Trial> {
    let mut cases = cases();
    let library = std::env::var_os("FLEXCP_LIBCONVERT");
    cases.retain(|case| library.is_some() || !case.name().contains("libconvert"));
    cases
}

const LISTEN: u16 = 1080;
const FILE: (&str, u64) = ("file", 2_000_000);
const ALLOW: &[&str] = &["10.9.0.0/16", "fd09::/16"];
/// A name that the lab's server of names knows.
const NAME: &str = "server.test";

fn lab(family: Family) -> Result<Lab> {
    let families = match family {
        Family::V4 => Families::V4,
        Family::V6 => Families::V6,
    };
    let lab = Lab::builder().families(families);
    let lab = lab.rate_mbit(1, 200).rate_mbit(2, 200);
    // As Convert in the SYN takes it.
    lab.client_sysctl("net.ipv4.tcp_fastopen", "5")
        .client_sysctl("net.ipv4.tcp_fastopen_blackhole_timeout_sec", "0")
        .build()
}

fn proxy(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

fn serve(
    lab: Lab,
    family: Family,
    (mode, more): (&str, &str),
    case: impl FnOnce(&Rig) -> Result<Expect>,
) -> Result<()> {
    let listen = [proxy(&lab, family).to_string()];
    let service = daemon::explicit(mode, &listen, ALLOW) + more;
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

/// An address as it stands in a URL.
fn in_url(addr: IpAddr) -> String {
    SocketAddr::new(addr, 80).to_string()
}

fn curl(rig: &Rig) -> (Command, PathBuf) {
    let copy = rig.lab.dir().join("copy");
    let mut curl = rig.lab.client().command("mptcpize");
    curl.args(["run", "curl"]);
    curl.args(["-sS", "--fail", "--max-time", "10", "-o"]);
    curl.arg(&copy);
    (curl, copy)
}

/// Fetches the file, which has to be right.
fn fetch(rig: &Rig, nginx: &Nginx, words: &[&str], host: &str) -> Result<()> {
    let (mut curl, copy) = curl(rig);
    output(curl.args(words).arg(format!("http://{host}/file")))?;
    ensure!(
        sha256_of(&copy)? == nginx.sha256("file")?,
        "{words:?}: not the file"
    );
    fs::remove_file(copy)?;
    Ok(())
}

fn curl_by_socks5() -> Result<()> {
    curl_by_address_and_name(Family::V4)
}

fn curl_by_socks5_over_ipv6() -> Result<()> {
    curl_by_address_and_name(Family::V6)
}

fn curl_by_address_and_name(family: Family) -> Result<()> {
    let lab = lab(family)?;
    let nginx = Nginx::start(&lab, 1, &[FILE], Proto::Tcp)?;
    let dnsmasq = serve_names(&lab, &[(NAME, lab.server_addr(1, family))])?;
    serve(lab, family, ("socks5", ""), |rig| {
        let to = proxy(&rig.lab, family).to_string();
        let addr = in_url(rig.lab.server_addr(1, family));
        fetch(rig, &nginx, &["--socks5", &to], &addr)?;
        fetch(rig, &nginx, &["--socks5-hostname", &to], NAME)?;
        let asked = dnsmasq.stderr();
        ensure!(asked.contains(NAME), "dnsmasq was not asked: {asked}");
        ensure_named(rig, 2)?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 2))
    })
}

fn curl_that_gives_a_password() -> Result<()> {
    [Family::V4, Family::V6]
        .into_iter()
        .try_for_each(curl_with_password)
}

fn curl_with_password(family: Family) -> Result<()> {
    let lab = lab(family)?;
    let nginx = Nginx::start(&lab, 1, &[FILE], Proto::Tcp)?;
    let users = "users = [\"joe:secret\"]\n";
    serve(lab, family, ("socks5", users), |rig| {
        let to = proxy(&rig.lab, family).to_string();
        let addr = in_url(rig.lab.server_addr(1, family));
        let right = ["--socks5", &to, "--proxy-user", "joe:secret"];
        fetch(rig, &nginx, &right, &addr)?;
        ensure_named(rig, 1)?;
        for (words, told) in [
            (&["--proxy-user", "joe:public"][..], "rejected"),
            (&[][..], "method"),
        ] {
            let (mut curl, _) = curl(rig);
            curl.args(["--socks5", &to]).args(words);
            let refused = curl.arg(format!("http://{addr}/file")).output()?;
            let said = String::from_utf8_lossy(&refused.stderr);
            ensure!(
                refused.status.code() == Some(97) && said.contains(told),
                "{words:?}: {said}"
            );
        }
        let refused = rig.counter("preambles_refused")?;
        ensure!(refused == 2, "{refused} refused");
        // A client that is told so at once resets the subflow that it has yet to join.
        Ok(Expect::clean()
            .at_least(End::Client, "MPJoinSynAckRx", 1)
            .between(End::Client, "MPRstTx", 0..=2)
            .own("not_authenticated", UNPROVED)
            .own("mp_rst_tx", UNPROVED)
            .own("no_subflow", UNPROVED))
    })
}

/// Why FlexCP may refuse a join of a client that was refused itself: seen once in 391 cases, without a capture, so that the reason is
/// inferred.
const UNPROVED: &str =
    "a client that closes may answer a join without its HMAC, and have no subflow then";

/// A server of SSH on server 1, and how to log in there.
struct Sshd {
    _process: Background,
    login: Vec<String>,
}

impl Sshd {
    fn start(lab: &Lab, family: Family) -> Result<Self> {
        let dir = lab.dir();
        for key in ["host", "client"] {
            let mut make = Command::new("ssh-keygen");
            output(
                make.args(["-q", "-t", "ed25519", "-N", "", "-f"])
                    .arg(dir.join(key)),
            )?;
        }
        let at = |name: &str| dir.join(name).display().to_string();
        let config = format!(
            "HostKey {}\nAuthorizedKeysFile {}\nPidFile none\nStrictModes no\nUsePAM yes\n\
             PermitRootLogin prohibit-password\nPasswordAuthentication no\nPrintMotd no\nUseDNS no\n",
            at("host"),
            at("client.pub"),
        );
        fs::write(dir.join("sshd_config"), config)?;
        let addr = lab.server_addr(1, family);
        let known = format!("{addr} {}", fs::read_to_string(dir.join("host.pub"))?);
        fs::write(dir.join("known_hosts"), known)?;

        // What it wants in /run does not stay on this host.
        const OWN_RUN: &str = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd && exec /usr/sbin/sshd -D -e -f \"$0\"";
        let mut command = lab.server(1).command("unshare");
        command.args(["--mount", "sh", "-c", OWN_RUN]);
        command.arg(at("sshd_config"));
        let process = Background::spawn(command, dir, "sshd")?;
        until("sshd listens", || {
            Ok(process.stderr().contains("Server listening on ::"))
        })?;
        let login = [
            "-F".to_owned(),
            "/dev/null".to_owned(),
            "-oBatchMode=yes".to_owned(),
            "-oIdentitiesOnly=yes".to_owned(),
            format!("-oIdentityFile={}", at("client")),
            format!("-oUserKnownHostsFile={}", at("known_hosts")),
            format!("root@{addr}"),
        ];
        Ok(Self {
            _process: process,
            login: login.into(),
        })
    }
}

fn ssh_by_flexcp_connect() -> Result<()> {
    ssh_over(Family::V4)
}

fn ssh_by_flexcp_connect_over_ipv6() -> Result<()> {
    ssh_over(Family::V6)
}

/// A command, a file down and a file up. The server speaks first.
fn ssh_over(family: Family) -> Result<()> {
    let lab = lab(family)?;
    let sshd = Sshd::start(&lab, family)?;
    let file = lab.dir().join("file");
    let mut bytes = vec![0; 3_000_000];
    Payload::new(7).fill(0, &mut bytes);
    fs::write(&file, bytes)?;
    serve(lab, family, ("convert", ""), |rig| {
        let by = proxy(&rig.lab, family);
        let flexcp = daemon::binary()?;
        let ssh = || {
            let mut ssh = rig.lab.client().command("ssh");
            let connect = format!("{} connect --by {by} --stdio %h %p", flexcp.display());
            ssh.arg(format!("-oProxyCommand={connect}"))
                .args(&sshd.login);
            ssh
        };
        let said = text(ssh().arg("echo $((6 * 7)) $SSH_CONNECTION"))?;
        ensure!(said.starts_with("42 "), "{said}");

        let (down, up) = (rig.lab.dir().join("down"), rig.lab.dir().join("up"));
        let mut get = ssh();
        get.arg(format!("cat {}", file.display()))
            .stdin(Stdio::null());
        let status = get.stdout(File::create(&down)?).status()?;
        ensure!(
            status.success() && sha256_of(&down)? == sha256_of(&file)?,
            "down: {status}"
        );
        let mut put = ssh();
        put.arg(format!("cat >{}", up.display()))
            .stdin(File::open(&file)?);
        let status = put.status()?;
        ensure!(
            status.success() && sha256_of(&up)? == sha256_of(&file)?,
            "up: {status}"
        );
        ensure_named(rig, 3)?;
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 3))
    })
}

/// Under Tessares' libconvert, which takes the place of the system calls of a program without MPTCP or Convert, and with it
/// under mptcpize. The library is not Debian's: `make libconvert` builds it and says where it is.
fn curl_under_libconvert() -> Result<()> {
    /// Beside what mptcpize has the program load.
    const BESIDE: &str =
        "LD_LIBRARY_PATH=\"$0\" LD_PRELOAD=\"$LD_PRELOAD:$0/libconvert_client.so\" exec \"$@\"";
    let library = std::env::var("FLEXCP_LIBCONVERT").context("FLEXCP_LIBCONVERT")?;
    for family in [Family::V4, Family::V6] {
        let lab = lab(family)?;
        let nginx = Nginx::start(&lab, 1, &[FILE], Proto::Tcp)?;
        serve(lab, family, ("convert", ""), |rig| {
            let by = proxy(&rig.lab, family);
            let addr = in_url(rig.lab.server_addr(1, family));
            let copy = rig.lab.dir().join("copy");
            for words in [&["mptcpize", "run"][..], &[]] {
                let mut curl = rig.lab.client().command("env");
                curl.args(words).args(["sh", "-c", BESIDE, &library]);
                curl.env("CONVERT_ADDR", by.ip().to_string());
                curl.env("CONVERT_PORT", by.port().to_string());
                curl.args(["curl", "-sS", "--fail", "--max-time", "10", "-o"]);
                output(curl.arg(&copy).arg(format!("http://{addr}/file")))?;
                ensure!(sha256_of(&copy)? == nginx.sha256("file")?, "not the file");
            }
            ensure_named(rig, 2)?;
            Ok(Expect::clean()
                .exactly(End::Client, "MPJoinSynAckRx", 1)
                .own("plain_syn", "a client does without MPTCP"))
        })?;
    }
    Ok(())
}

fn server_hears_of_a_convert_client_before_its_second_packet() -> Result<()> {
    server_hears_first(Family::V4)
}

fn server_hears_of_a_convert_client_before_its_second_packet_over_ipv6() -> Result<()> {
    server_hears_first(Family::V6)
}

/// What makes Convert in the SYN cost no round trip, on the wire at FlexCP.
fn server_hears_first(family: Family) -> Result<()> {
    serve(lab(family)?, family, ("convert", ""), |rig| {
        let capture = rig.lab.capture("first")?;
        let server = rig.lab.server_socket(1, family, PORT);
        let converter = proxy(&rig.lab, family);
        let client = Client::mptcp(converter).convert(server);
        rig.run_client(&client, &Job::both(100_000))?;
        let files = capture.stop_whole()?;
        let [access, .., towards] = &files[..] else {
            unreachable!("two access links and a server");
        };
        let access = packets(access)?;
        let mut said = access.iter().filter(|packet| packet.to == converter);
        let syn = said.next().context("no packet of the client")?;
        ensure!(
            syn.is_syn() && syn.payload > 0,
            "no data in the SYN: {syn:?}"
        );
        let second = said.next().context("no second packet of the client")?;
        let towards = packets(towards)?;
        let call = towards.iter().find(|packet: &&Taken| packet.to == server);
        let call = call.context("no packet to the server")?;
        ensure!(
            call.is_syn() && syn.time <= call.time && call.time < second.time,
            "{call:?} {second:?}"
        );
        ensure_named(rig, 1)?;
        Ok(short())
    })
}

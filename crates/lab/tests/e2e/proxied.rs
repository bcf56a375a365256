//! Back ends that are told of their clients by the PROXY protocol: nginx and haproxy, which take no connection without its header.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::{Proto, ServeOptions};
use flexcp_lab::{
    Background, End, Expect, Families, Family, Lab, Nginx, TOLD, daemon, output, sha256_of, text,
};

use crate::offload::carried;
use crate::rig::{PORT, Rig, short, with};

crate::cases!("proxied":
    nginx_knows_its_clients,
    nginx_knows_its_clients_over_ipv6,
    haproxy_knows_its_clients,
    client_of_one_family_and_back_end_of_the_other,
    bytes_behind_the_header,
    headers_and_packets_that_get_lost,
);

const LISTEN: u16 = 8080;
const FILE: (&str, u64) = ("file", 40_000_000);

fn listen(lab: &Lab, family: Family) -> SocketAddr {
    SocketAddr::new(lab.proxy_addr(1, family), LISTEN)
}

/// A service with one back end that wants a header.
pub(crate) fn service(lab: &Lab, family: Family, backend: SocketAddr) -> String {
    let listen = [listen(lab, family).to_string()];
    let service = daemon::reverse("shop", &listen, &[backend.to_string()], &[]);
    service + "proxy_protocol = \"v2\"\n"
}

fn told(lab: Lab, service: &str, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    with(lab, service, ServeOptions::tcp(PORT), case)
}

/// Whom the back end takes its client for is who has connected, and to where it has.
pub(crate) fn ask(rig: &Rig, family: Family, program: &[&str]) -> Result<()> {
    let to = listen(&rig.lab, family);
    let mut curl = rig.lab.client().command(program[0]);
    curl.args(&program[1..]);
    curl.args([
        "-sS",
        "-g",
        "--fail",
        "--max-time",
        "10",
        "-w",
        " by %{local_port}",
    ]);
    let said = text(curl.arg(format!("http://{to}/who")))?;
    let (who, port) = said.split_once(" by ").context("no port")?;
    let from = rig.lab.client_addr(1, family);
    let expected = format!("{from} {port} {} {}", to.ip(), to.port());
    ensure!(who == expected, "{who}, not {expected}");
    Ok(())
}

fn plain_too(expect: Expect) -> Expect {
    expect.own("plain_syn", "a client does without MPTCP")
}

pub(crate) const MPTCP: &[&str] = &["mptcpize", "run", "curl"];
pub(crate) const PLAIN: &[&str] = &["curl"];

/// A few clients, with MPTCP and without.
fn ask_often(rig: &Rig, family: Family) -> Result<()> {
    for program in [MPTCP, PLAIN, MPTCP, PLAIN] {
        ask(rig, family, program)?;
    }
    let headers = rig.counter("proxy_headers")?;
    ensure!(headers == 4, "{headers} headers");
    let again = rig.counter("front_repeated")?;
    ensure!(again == 0, "{again} headers went again");
    Ok(())
}

fn nginx_knows_its_clients() -> Result<()> {
    by_nginx(Family::V4, Family::V4)
}

fn nginx_knows_its_clients_over_ipv6() -> Result<()> {
    by_nginx(Family::V6, Family::V6)
}

fn client_of_one_family_and_back_end_of_the_other() -> Result<()> {
    by_nginx(Family::V6, Family::V4)
}

fn by_nginx(client: Family, server: Family) -> Result<()> {
    let lab = Lab::builder().families(Families::Both).build()?;
    let _nginx = Nginx::start(&lab, 1, &[], Proto::Tcp)?;
    let service = service(&lab, client, lab.server_socket(1, server, TOLD));
    told(lab, &service, |rig| {
        ask_often(rig, client)?;
        Ok(plain_too(short()))
    })
}

/// haproxy closes what begins with anything else, and says so by no answer at all.
fn haproxy_knows_its_clients() -> Result<()> {
    let lab = Lab::builder().build()?;
    let config = lab.dir().join("haproxy.cfg");
    fs::write(
        &config,
        "defaults\n  mode http\n  timeout connect 5s\n  timeout client 5s\n  timeout server 5s\n\
         frontend told\n  bind :82 accept-proxy\n  \
         http-request return status 200 content-type text/plain lf-string \"%[src] %[src_port] %[dst] %[dst_port]\"\n",
    )?;
    let mut command = lab.server(1).command("haproxy");
    command.args(["-db", "-f"]).arg(&config);
    let mut haproxy = Background::spawn(command, lab.dir(), "haproxy")?;
    let at = SocketAddr::from(([127, 0, 0, 1], 82));
    haproxy.wait_for_listener(lab.server(1), at)?;
    let service = service(&lab, Family::V4, lab.server_socket(1, Family::V4, 82));
    told(lab, &service, |rig| {
        ask_often(rig, Family::V4)?;
        Ok(plain_too(short()))
    })
}

/// A file comes over two links as it is, and the kernel carries it as it does without a header.
fn bytes_behind_the_header() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    let nginx = Nginx::start(&lab, 1, &[FILE], Proto::Tcp)?;
    let service = service(&lab, Family::V4, lab.server_socket(1, Family::V4, TOLD));
    told(lab, &service, |rig| {
        carried(rig, |rig| fetch(rig, &nginx, MPTCP))?;
        fetch(rig, &nginx, PLAIN)?;
        Ok(plain_too(Expect::clean()).exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn fetch(rig: &Rig, nginx: &Nginx, program: &[&str]) -> Result<()> {
    let copy = rig.lab.dir().join("copy");
    let mut curl = rig.lab.client().command(program[0]);
    curl.args(&program[1..]);
    curl.args(["-sS", "--fail", "--max-time", "60", "-o"]);
    let from = listen(&rig.lab, Family::V4);
    output(curl.arg(&copy).arg(format!("http://{from}/file")))?;
    ensure!(sha256_of(&copy)? == nginx.sha256("file")?, "not the file");
    fs::remove_file(copy)?;
    Ok(())
}

/// Each second header gets lost on its way: it goes again, and is read once.
fn headers_and_packets_that_get_lost() -> Result<()> {
    let lab = Lab::builder().build()?;
    let _nginx = Nginx::start(&lab, 1, &[], Proto::Tcp)?;
    lab.server(1).nft(&format!(
        "table inet losses {{\n\
         \x20 chain input {{\n  type filter hook input priority 0\n\
         \x20 tcp dport {TOLD} tcp flags & psh == psh meta length < 120 numgen inc mod 2 == 0 drop\n }}\n}}\n"
    ))?;
    let service = service(&lab, Family::V4, lab.server_socket(1, Family::V4, TOLD));
    told(lab, &service, |rig| {
        for program in [MPTCP, PLAIN, MPTCP, PLAIN] {
            ask(rig, Family::V4, program)?;
        }
        let again = rig.counter("front_repeated")?;
        ensure!(again > 0, "no header was lost");
        Ok(plain_too(short()).disturbed("the server loses packets"))
    })
}

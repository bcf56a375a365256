//! Real programs through FlexCP: curl, nginx, wrk, iperf3.

use std::process::Command;

use anyhow::{Result, ensure};
use flexcp_lab::transfer::{Proto, ServeOptions};
use flexcp_lab::{
    End, Expect, Families, Family, Lab, Nginx, SERVER_RESET, daemon, output, sha256_of, text,
};

use crate::rig::{PORT, Rig, short, with};

crate::cases!("program":
    curl_downloads_from_nginx,
    curl_uploads_to_nginx,
    curl_over_ipv6,
    curl_fetches_many_files_on_one_connection,
    wrk_makes_many_requests,
    iperf3_both_ways,
);

fn proxied(lab: Lab, case: impl FnOnce(&Rig) -> Result<Expect>) -> Result<()> {
    let service = daemon::transparent(&lab, &[]);
    with(lab, &service, ServeOptions::tcp(PORT), case)
}

fn mptcpize(rig: &Rig, program: &str) -> Command {
    let mut command = rig.lab.client().command("mptcpize");
    command.args(["run", program]);
    command
}

fn curl_downloads_from_nginx() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 20_000_000)], Proto::Tcp)?;
    proxied(lab, |rig| {
        let copy = rig.lab.dir().join("copy");
        let mut curl = mptcpize(rig, "curl");
        output(
            curl.args(["-sS", "--fail", "-o"])
                .arg(&copy)
                .arg("http://10.9.1.2/file"),
        )?;
        ensure!(
            sha256_of(&copy)? == nginx.sha256("file")?,
            "the SHA-256 differs"
        );
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn curl_uploads_to_nginx() -> Result<()> {
    let lab = Lab::builder().rate_mbit(1, 400).rate_mbit(2, 400).build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 20_000_000)], Proto::Tcp)?;
    proxied(lab, |rig| {
        let mut curl = mptcpize(rig, "curl");
        curl.args(["-sS", "--fail", "-T"]).arg(nginx.file("file"));
        output(curl.arg("http://10.9.1.2/put/copy"))?;
        ensure!(sha256_of(&nginx.uploaded("copy"))? == nginx.sha256("file")?);
        Ok(Expect::clean().exactly(End::Client, "MPJoinSynAckRx", 1))
    })
}

fn curl_over_ipv6() -> Result<()> {
    let lab = Lab::builder().families(Families::Both).build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 20_000_000)], Proto::Tcp)?;
    proxied(lab, |rig| {
        let copy = rig.lab.dir().join("copy");
        let url = format!("http://[{}]/file", rig.lab.server_addr(1, Family::V6));
        output(
            mptcpize(rig, "curl")
                .args(["-sS", "-g", "--fail", "-o"])
                .arg(&copy)
                .arg(url),
        )?;
        ensure!(
            sha256_of(&copy)? == nginx.sha256("file")?,
            "the SHA-256 differs"
        );
        Ok(short())
    })
}

fn curl_fetches_many_files_on_one_connection() -> Result<()> {
    let lab = Lab::builder().build()?;
    let nginx = Nginx::start(&lab, 1, &[("file", 300_000)], Proto::Tcp)?;
    proxied(lab, |rig| {
        let copy = rig.lab.dir().join("copy#1");
        let mut curl = mptcpize(rig, "curl");
        output(
            curl.args(["-sS", "--fail", "-o"])
                .arg(&copy)
                .arg("http://10.9.1.2/file?[1-50]"),
        )?;
        for number in 1..=50 {
            let copy = rig.lab.dir().join(format!("copy{number}"));
            ensure!(
                sha256_of(&copy)? == nginx.sha256("file")?,
                "the SHA-256 of {number} differs"
            );
        }
        Ok(short().exactly(End::Client, "MPCapableSYNACKRX", 1))
    })
}

fn wrk_makes_many_requests() -> Result<()> {
    let lab = Lab::builder().build()?;
    let _nginx = Nginx::start(&lab, 1, &[("file", 10_000)], Proto::Tcp)?;
    proxied(lab, |rig| {
        let mut wrk = mptcpize(rig, "wrk");
        let said = text(wrk.args(["-t1", "-c64", "-d2", "http://10.9.1.2/file"]))?;
        ensure!(said.contains("Requests/sec"), "{said}");
        ensure!(
            !said.contains("Socket errors") && !said.contains("Non-2xx"),
            "{said}"
        );
        // wrk aborts its connections at the end.
        Ok(short()
            .own(SERVER_RESET, "wrk aborts")
            .own("no_connection", "what was on its way when wrk aborted")
            .own("blind_reset", "what was on its way when wrk aborted")
            .allow("MPFastcloseTx"))
    })
}

fn iperf3_both_ways() -> Result<()> {
    let lab = Lab::builder().build()?;
    let mut server = lab.server(1).command("iperf3");
    let server = server
        .args(["-s", "-p", "5201"])
        .stdout(std::process::Stdio::null())
        .spawn()?;
    let _server = Killed(server);
    std::thread::sleep(std::time::Duration::from_millis(300));
    proxied(lab, |rig| {
        for way in [&[][..], &["-R"], &["-P", "8"]] {
            let mut iperf = mptcpize(rig, "iperf3");
            text(
                iperf
                    .args(["-c", "10.9.1.2", "-p", "5201", "-t", "1"])
                    .args(way),
            )?;
        }
        const ABORTS: &str = "iperf3 closes with data unread, at either end";
        Ok(short()
            .own(SERVER_RESET, ABORTS)
            .own("mp_fastclose_tx", ABORTS)
            .own("no_connection", ABORTS)
            .own("blind_reset", ABORTS)
            .allow("MPFastcloseTx")
            .allow("MPFastcloseRx"))
    })
}

/// A process that does not outlive its case.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

//! Who is connected with whom: a table of what clients of Convert and SOCKS5 ask for, of both families, each row with what its
//! protocol answers on the wire and the one cause that FlexCP counts for it.

mod rows;

use std::io::{ErrorKind, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use flexcp_lab::transfer::{ServeOptions, Server};
use flexcp_lab::{Families, Family, FlexCp, Lab, daemon};
use flexcp_wire::{ConvertError, ConvertMessage, ConvertTlv};

use self::rows::{
    At, Convert, FAMILIES, Row, Socks5, Told, asks, by_names, connect, names, port, proofs,
    services, targets, words,
};
use crate::rig::{PORT, serve_names};

crate::cases!("access": every_row_of_the_table, clients_beyond_their_limit);

/// Asks, and reads what comes.
fn ask(lab: &Lab, row: &Row) -> Result<(TcpStream, Told)> {
    let to = SocketAddr::new(lab.proxy_addr(1, row.client), port(row.at, row.speaks));
    let mut stream = lab.client().run(|| Ok(TcpStream::connect(to)?))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&row.says)?;
    let told = match row.speaks {
        Convert => hear_convert(&mut stream),
        Socks5 => hear_socks(&mut stream),
    };
    match told {
        Ok(told) => Ok((stream, told)),
        Err(error) if error.kind() == ErrorKind::ConnectionReset => Ok((stream, Told::Reset)),
        Err(error) => Err(error.into()),
    }
}

fn message(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut message = vec![0; 4];
    stream.read_exact(&mut message)?;
    message.resize(usize::from(message[1]).max(1) * 4, 0);
    stream.read_exact(&mut message[4..])?;
    Ok(message)
}

fn hear_convert(stream: &mut TcpStream) -> std::io::Result<Told> {
    let message = message(stream)?;
    let (message, _) = ConvertMessage::parse(&message)
        .map_err(|fault| std::io::Error::other(format!("{fault:?}")))?;
    Ok(match message.tlvs().next() {
        None => Told::Granted,
        Some(ConvertTlv::Error(error)) => Told::Code(error.code()),
        Some(_) => Told::Info,
    })
}

fn hear_socks(stream: &mut TcpStream) -> std::io::Result<Told> {
    let mut method = [0; 2];
    stream.read_exact(&mut method)?;
    match method[1] {
        0 => {}
        2 => {
            let mut outcome = [0; 2];
            stream.read_exact(&mut outcome)?;
            if outcome[1] != 0 {
                return Ok(Told::Password(outcome[1]));
            }
        }
        other => return Ok(Told::Method(other)),
    }
    let mut answer = [0; 4];
    stream.read_exact(&mut answer)?;
    let mut from = vec![0; if answer[3] == 4 { 18 } else { 6 }];
    stream.read_exact(&mut from)?;
    Ok(match answer[1] {
        0 => Told::Granted,
        code => Told::Code(code),
    })
}

/// FlexCP, and whether it splits the connections, so that all causes have one count.
struct Scene {
    flexcp: FlexCp,
    split: bool,
}

/// What the relay counts instead of a cause.
const OF_RELAY: &str = "refused_preamble";

impl Scene {
    fn start(lab: &Lab, limits: &str, split: bool) -> Result<Self> {
        let carrier = if split { "carrier = \"split\"\n" } else { "" };
        let config = daemon::config(lab, &(limits.to_owned() + &services(lab, carrier)));
        let flexcp = FlexCp::start(lab, &config)?;
        Ok(Self { flexcp, split })
    }

    /// The causes that have moved.
    fn causes(&self) -> Result<Vec<(String, u64)>> {
        let stats = self.flexcp.show_stats()?;
        let group = if self.split {
            "split"
        } else {
            "causes.preamble_refused"
        };
        let all = stats.group(group)?.into_iter();
        let counted = all.filter(|(name, _)| !self.split || *name == OF_RELAY);
        Ok(counted
            .map(|(name, count)| (name.to_owned(), count))
            .collect())
    }
}

/// Asks what the row asks; its answer and its cause have to be right. `counted`: the causes before, and afterwards.
fn check(lab: &Lab, scene: &Scene, row: &Row, counted: &mut Vec<(String, u64)>) -> Result<()> {
    let (_stream, told) = ask(lab, row)?;
    let after = scene.causes()?;
    let both = counted.iter().zip(&after);
    let moved: Vec<_> = both
        .filter(|(was, is)| was != is)
        .map(|(was, is)| (is.0.clone(), is.1 - was.1))
        .collect();
    *counted = after;
    let expected: Vec<_> = row
        .cause
        .iter()
        .map(|cause| (if scene.split { OF_RELAY } else { cause }.to_owned(), 1))
        .collect();
    ensure!(told == row.told, "told {told:?}, counted {moved:?}");
    ensure!(moved == expected, "counted {moved:?}");
    Ok(())
}

/// The cookie that a client of this family is handed out.
fn cookie(lab: &Lab, client: Family) -> Result<Vec<u8>> {
    let to = SocketAddr::new(lab.proxy_addr(1, client), port(At::Proved, Convert));
    let mut stream = lab.client().run(|| Ok(TcpStream::connect(to)?))?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(&connect(lab.server_addr(1, client), PORT, None))?;
    let message = message(&mut stream)?;
    let (message, _) = ConvertMessage::parse(&message).ok().context("no message")?;
    match message.tlvs().next() {
        Some(ConvertTlv::Error(ConvertError::MissingCookie(cookie))) => Ok(cookie.to_vec()),
        other => bail!("{other:?}"),
    }
}

fn every_row_of_the_table() -> Result<()> {
    table(false)
}

fn clients_beyond_their_limit() -> Result<()> {
    beyond_their_limit(false)
}

pub(crate) fn table(split: bool) -> Result<()> {
    let lab = Lab::builder().families(Families::Both).build()?;
    let names = names(&lab);
    let records = names.iter();
    let records = records.flat_map(|(name, addrs, ..)| addrs.iter().map(|addr| (*name, *addr)));
    let _dnsmasq = serve_names(&lab, &records.collect::<Vec<_>>())?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let scene = Scene::start(&lab, "", split)?;
    let [v4, v6] = [cookie(&lab, Family::V4)?, cookie(&lab, Family::V6)?];
    let mut rows = targets(&lab);
    rows.extend(words(&lab));
    rows.extend(proofs(&lab, [&v4, &v6]));
    rows.extend(by_names(&lab));
    ensure!(rows.len() > 150, "{} rows", rows.len());
    let (mut wrong, mut counted) = (vec![], scene.causes()?);
    for row in &rows {
        if let Err(error) = check(&lab, &scene, row, &mut counted) {
            let Row {
                at,
                speaks,
                client,
                what,
                ..
            } = row;
            wrong.push(format!(
                "{speaks:?} {at:?}, client {client:?}, {what}: {error:#}, not {:?} {:?}",
                row.told, row.cause
            ));
        }
    }
    let all = rows.len();
    ensure!(
        wrong.is_empty(),
        "{} of {all}:\n{}\n{}",
        wrong.len(),
        wrong.join("\n"),
        scene.flexcp.log()
    );
    let log = scene.flexcp.log();
    ensure!(
        log.contains("is refused") && log.contains("not_allowed"),
        "{log}"
    );
    scene.flexcp.stop()
}

/// One that has as many connections as it may have is told so, and another is not.
pub(crate) fn beyond_their_limit(split: bool) -> Result<()> {
    let lab = Lab::builder().families(Families::Both).build()?;
    let _server = Server::start(lab.server(1), ServeOptions::tcp(PORT))?;
    let scene = Scene::start(&lab, "[limits]\nclient_connections = 2\n\n", split)?;
    for client in FAMILIES {
        let row = |speaks, (told, cause)| Row {
            at: At::Lab,
            speaks,
            client,
            what: "beyond a limit".into(),
            says: asks(speaks, lab.server_addr(1, client), PORT),
            told,
            cause,
        };
        let mut held = vec![];
        for speaks in [Convert, Socks5] {
            let (stream, told) = ask(&lab, &row(speaks, (Told::Granted, None)))?;
            ensure!(told == Told::Granted, "{speaks:?}: {told:?}");
            held.push(stream);
        }
        for (speaks, code) in [(Convert, 64), (Socks5, 2)] {
            let row = row(speaks, (Told::Code(code), Some("client_limit")));
            let mut counted = scene.causes()?;
            check(&lab, &scene, &row, &mut counted).with_context(|| format!("{row:?}"))?;
        }
    }
    scene.flexcp.stop()
}

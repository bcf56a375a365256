//! One object each way, compared by SHA-256.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use flexcp_lab::transfer::Proto;
use sha2::{Digest as _, Sha256};
use socket2::{Domain, Socket, Type};

use crate::http::Head;
use crate::programs::object;
use crate::sink::hex;

/// Fetches the object of that many bytes from `get` and sends it to `put`, from the calling thread's
/// namespace.
///
/// # Errors
/// When a single byte is not as it should be.
pub(crate) fn both_ways(proto: Proto, get: SocketAddr, put: SocketAddr, bytes: u64) -> Result<()> {
    let object = object(bytes);
    let request = format!("GET /{bytes} HTTP/1.1\r\nHost: bench\r\n\r\n");
    let fetched = exchange(proto, get, request.as_bytes()).context("download")?;
    let expected = hex(&Sha256::digest(&object));
    ensure!(
        hex(&Sha256::digest(&fetched)) == expected,
        "download: another SHA-256"
    );

    let mut request =
        format!("PUT /sha HTTP/1.1\r\nHost: bench\r\nContent-Length: {bytes}\r\n\r\n").into_bytes();
    request.extend(object);
    let said = exchange(proto, put, &request).context("upload")?;
    let said = String::from_utf8_lossy(&said);
    ensure!(
        said == expected,
        "upload: SHA-256 {said} instead of {expected}"
    );
    Ok(())
}

/// The body of the answer.
fn exchange(proto: Proto, to: SocketAddr, request: &[u8]) -> Result<Vec<u8>> {
    let protocol = match proto {
        Proto::Tcp => socket2::Protocol::TCP,
        Proto::Mptcp => socket2::Protocol::MPTCP,
    };
    let socket = Socket::new(Domain::for_address(to), Type::STREAM, Some(protocol))?;
    socket.set_read_timeout(Some(PATIENCE))?;
    socket.set_write_timeout(Some(PATIENCE))?;
    socket.connect(&to.into())?;
    let mut stream = TcpStream::from(socket);
    stream.write_all(request)?;
    let mut answer = vec![];
    let mut buffer = vec![0; 64 << 10];
    loop {
        if let Some(head) = Head::read(&answer[..answer.len().min(2048)])? {
            head.expect_ok()?;
            let end = head.len + usize::try_from(head.body)?;
            ensure!(answer.len() <= end, "more bytes than were announced");
            if answer.len() == end {
                return Ok(answer.split_off(head.len));
            }
        }
        let len = stream.read(&mut buffer)?;
        ensure!(len > 0, "closed before the answer was complete");
        answer.extend_from_slice(&buffer[..len]);
    }
}

const PATIENCE: Duration = Duration::from_secs(10);

//! Carries bytes from one socket to another: through a pipe, without a copy of the relay's own, where the kernel lets a socket be
//! spliced; else through a buffer. MPTCP sockets can be spliced into, not from.
//!
//! Nothing is read before what was read is written: the receiver's window is the sender's, and what is between them is a pipe or a
//! buffer at most. Both go back to a pool when they are empty, so that a connection without data in hand has neither.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::io::Errno;
use rustix::net::{SendFlags, Shutdown};
use rustix::pipe::{PipeFlags, SpliceFlags};
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// Bytes that a pipe has room for, if the kernel lets it grow.
const PIPE: usize = 1 << 18;
/// Bytes of a buffer.
const BUFFER: usize = 1 << 17;
/// Pipes and buffers that are kept while nobody uses them.
const SPARE: usize = 64;

/// What is used by turns.
#[derive(Default, Debug)]
pub(super) struct Pool {
    pipes: RefCell<Vec<Pipe>>,
    buffers: RefCell<Vec<Box<[u8]>>>,
}

#[derive(Debug)]
struct Pipe {
    out: OwnedFd,
    into: OwnedFd,
}

impl Pool {
    fn pipe(&self) -> io::Result<Pipe> {
        if let Some(pipe) = self.pipes.borrow_mut().pop() {
            return Ok(pipe);
        }
        let (out, into) = rustix::pipe::pipe_with(PipeFlags::NONBLOCK | PipeFlags::CLOEXEC)?;
        // A user's pipes may take so much together and no more: a smaller one does, too.
        let _ = rustix::pipe::fcntl_setpipe_size(&into, PIPE);
        Ok(Pipe { out, into })
    }

    /// Takes back one that is empty.
    fn keep_pipe(&self, pipe: Pipe) {
        let mut pipes = self.pipes.borrow_mut();
        if pipes.len() < SPARE {
            pipes.push(pipe);
        }
    }

    fn buffer(&self) -> Box<[u8]> {
        let spare = self.buffers.borrow_mut().pop();
        spare.unwrap_or_else(|| vec![0; BUFFER].into_boxed_slice())
    }

    fn keep_buffer(&self, buffer: Box<[u8]>) {
        let mut buffers = self.buffers.borrow_mut();
        if buffers.len() < SPARE {
            buffers.push(buffer);
        }
    }
}

/// Where what is carried is counted.
pub(super) struct Counted<'a> {
    pub(super) bytes: [&'a AtomicU64; 2],
    /// When something was.
    pub(super) last: &'a Cell<Instant>,
}

impl Counted<'_> {
    fn add(&self, bytes: usize) {
        let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
        self.last.set(Instant::now());
        for counter in self.bytes {
            counter.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

/// Carries everything that `from` brings to `to`, until it has said its last; then `to` is told so, and its other direction goes
/// on.
pub(super) async fn carry(
    from: &TcpStream,
    to: &TcpStream,
    pool: &Pool,
    counted: Counted<'_>,
) -> io::Result<()> {
    let mut spliced = true;
    loop {
        from.readable().await?;
        let moved = if spliced {
            splice_some(from, to, pool, &counted).await
        } else {
            copy_some(from, to, pool, &counted).await
        };
        match moved {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) if spliced && is_no_splice(&error) => spliced = false,
            Err(error) => return Err(error),
        }
    }
    match rustix::net::shutdown(to, Shutdown::Write) {
        // It has gone already, and what it was has been carried.
        Ok(()) | Err(Errno::NOTCONN) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// The kernel can't splice from this socket.
fn is_no_splice(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::INVAL, Errno::OPNOTSUPP, Errno::NOSYS].contains(&errno))
}

/// What is there goes through a pipe. 0: no more will come.
async fn splice_some(
    from: &TcpStream,
    to: &TcpStream,
    pool: &Pool,
    counted: &Counted<'_>,
) -> io::Result<usize> {
    let pipe = pool.pipe()?;
    let flags = SpliceFlags::MOVE | SpliceFlags::NONBLOCK;
    let take = || splice(from, &pipe.into, PIPE, flags);
    let taken = match from.try_io(Interest::READABLE, take) {
        Ok(taken @ 1..) => taken,
        nothing => {
            pool.keep_pipe(pipe);
            return nothing;
        }
    };
    // A pipe with something in it that fails is dropped.
    write_all(to, taken, counted, |done| {
        splice(&pipe.out, to, taken - done, flags)
    })
    .await?;
    pool.keep_pipe(pipe);
    Ok(taken)
}

fn splice(from: impl AsFd, to: impl AsFd, most: usize, flags: SpliceFlags) -> io::Result<usize> {
    Ok(rustix::pipe::splice(from, None, to, None, most, flags)?)
}

/// What is there goes through a buffer. 0: no more will come.
async fn copy_some(
    from: &TcpStream,
    to: &TcpStream,
    pool: &Pool,
    counted: &Counted<'_>,
) -> io::Result<usize> {
    let mut buffer = pool.buffer();
    let copied = match from.try_read(&mut buffer) {
        Ok(read @ 1..) => {
            let send = |done: usize| {
                let sent = rustix::net::send(to, &buffer[done..read], SendFlags::NOSIGNAL);
                sent.map_err(io::Error::from)
            };
            write_all(to, read, counted, send).await.map(|()| read)
        }
        nothing => nothing,
    };
    pool.keep_buffer(buffer);
    copied
}

/// Says this first.
pub(super) async fn say(to: &TcpStream, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        to.writable().await?;
        match to.try_write(bytes) {
            Ok(said) => bytes = &bytes[said..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Has `write` write until `all` bytes are gone; it is told how many are.
async fn write_all(
    to: &TcpStream,
    all: usize,
    counted: &Counted<'_>,
    write: impl Fn(usize) -> io::Result<usize>,
) -> io::Result<()> {
    let mut done = 0;
    while done < all {
        match to.try_io(Interest::WRITABLE, || write(done)) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => {
                counted.add(written);
                done += written;
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => to.writable().await?,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Carries both ways until both have come to their end, or one fails.
pub(super) async fn both(
    up: impl Future<Output = io::Result<()>>,
    down: impl Future<Output = io::Result<()>>,
) -> io::Result<()> {
    tokio::try_join!(up, down).map(drop)
}

/// Its peer gets a RST (TCP) or an `MP_FASTCLOSE` (MPTCP), whatever is still to be sent.
pub(super) fn reset(socket: &TcpStream) {
    // One that has gone needs none.
    let _ = rustix::net::connect_unspec(socket);
}

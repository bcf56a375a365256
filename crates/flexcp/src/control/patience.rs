//! How long a client may take to read what it is sent.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

/// What a client is sent now: the connection's socket obeys it, the answer sets it.
#[derive(Default, Debug)]
pub(super) struct Patience(AtomicU8);

/// How it may dawdle.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Dawdling {
    /// It takes all of a short answer in [`ANSWER`].
    Answer = 0,
    /// It takes something of a long one in each [`PIECE`].
    Piece = 1,
    /// It may take as long as it likes: what it does not read is lost to it.
    Endless = 2,
}

impl Patience {
    pub(super) fn set(&self, dawdling: Dawdling) {
        self.0.store(dawdling as u8, Ordering::Relaxed);
    }

    fn now(&self) -> Dawdling {
        match self.0.load(Ordering::Relaxed) {
            0 => Dawdling::Answer,
            1 => Dawdling::Piece,
            _ => Dawdling::Endless,
        }
    }
}

/// A client's socket, on which writing fails when the client takes too long.
pub(super) struct Patient<S> {
    socket: S,
    patience: Arc<Patience>,
    late: Pin<Box<Sleep>>,
    /// It waits for the client, and `late` says until when.
    waits: bool,
}

impl<S> Patient<S> {
    pub(super) fn new(socket: S, patience: Arc<Patience>) -> Self {
        Self {
            socket,
            patience,
            late: Box::pin(tokio::time::sleep(Duration::ZERO)),
            waits: false,
        }
    }

    /// The client took nothing just now.
    fn wait(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<usize>> {
        let limit = match self.patience.now() {
            Dawdling::Answer => ANSWER,
            Dawdling::Piece => PIECE,
            Dawdling::Endless => {
                self.waits = false;
                return Poll::Pending;
            }
        };
        if !self.waits {
            self.waits = true;
            self.late.as_mut().reset(Instant::now() + limit);
        }
        ready!(self.late.as_mut().poll(cx));
        Poll::Ready(Err(io::ErrorKind::TimedOut.into()))
    }

    /// It took something. Of a short answer it has to take all in time: that begins to count anew when nothing waits.
    fn took(&mut self) {
        if self.patience.now() == Dawdling::Piece {
            self.waits = false;
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Patient<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Patient<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.socket).poll_write(cx, bytes) else {
            return self.wait(cx);
        };
        self.took();
        Poll::Ready(written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        pieces: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let Poll::Ready(written) = Pin::new(&mut self.socket).poll_write_vectored(cx, pieces)
        else {
            return self.wait(cx);
        };
        self.took();
        Poll::Ready(written)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    /// Is asked for when everything has been written.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.waits = false;
        Pin::new(&mut self.socket).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(cx)
    }
}

/// For a short answer.
const ANSWER: Duration = Duration::from_secs(2);

/// For each piece of a long one.
const PIECE: Duration = Duration::from_secs(20);

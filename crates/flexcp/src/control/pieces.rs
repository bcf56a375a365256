//! An answer that is written while it is sent.

use std::convert::Infallible;
use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::Body;
use bytes::Bytes;
use http_body::Frame;
use tokio::sync::mpsc::{self, Receiver, Sender};

/// Where its pieces go. One waits for the client at most; sending fails when the client is gone.
pub(super) type Out = Sender<Bytes>;

/// A body, and where its pieces go.
pub(super) fn body() -> (Out, Body) {
    let (out, pieces) = mpsc::channel(1);
    (out, Body::new(Pieces(pieces)))
}

struct Pieces(Receiver<Bytes>);

impl http_body::Body for Pieces {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let piece = self.0.poll_recv(cx);
        piece.map(|piece| piece.map(|piece| Ok(Frame::data(piece))))
    }
}

//! The connections of all workers, told as they come: one page of one worker at a time, so that a million of them take no
//! more memory than a few, and a slow reader keeps nobody waiting but itself.

use std::sync::Arc;

use flexcp_translator::{Cursor, Filter};
use tokio::sync::OwnedSemaphorePermit;

use super::VERSION;
use super::fault::Fault;
use super::pieces::Out;
use super::routes::Daemon;
use super::server::Names;
use super::view::Connection;
use crate::worker::Page;

/// What is told, and how far it is.
pub(super) struct Listing {
    pub(super) names: Names,
    pub(super) filter: Arc<Filter>,
    /// What is not sent yet.
    line: Vec<u8>,
    first: bool,
    /// The memory of the last page.
    page: Page,
}

/// The client is gone.
struct Unread;

impl Listing {
    pub(super) fn new(names: Names, filter: Filter) -> Self {
        Self {
            names,
            filter: Arc::new(filter),
            line: format!("{{\"version\":{VERSION},\"connections\":[").into_bytes(),
            first: true,
            page: Page::default(),
        }
    }

    /// Sends the connections as one line to a client that may take as long as it likes to read it, but for some seconds
    /// at each piece. When a worker is gone, the line ends with an `error`.
    pub(super) async fn tell(self, daemon: Arc<Daemon>, out: Out, place: OwnedSemaphorePermit) {
        // Whoever does not read any more is told nothing.
        let _ = self.workers(&daemon, &out).await;
        drop(place);
    }

    async fn workers(mut self, daemon: &Daemon, out: &Out) -> Result<(), Unread> {
        for worker in 0..daemon.workers() {
            self.page.next = Some(Cursor::default());
            while let Some(from) = self.page.next {
                self = match daemon
                    .ask(move |asked| self.page(asked, worker, from))
                    .await
                {
                    Ok((listing, None)) => listing,
                    Ok((listing, Some(error))) => return listing.end(Some(&error), out).await,
                    Err(_) => return Err(Unread),
                };
                if self.line.len() >= PIECE {
                    self.send(out).await?;
                }
            }
        }
        self = match daemon.ask(move |asked| self.split(asked)).await {
            Ok(listing) => listing,
            Err(_) => return Err(Unread),
        };
        self.end(None, out).await
    }

    /// The connections that the relay has.
    fn split(mut self, asked: &super::server::Asked) -> Self {
        for view in super::split::wanted(asked, &self.filter) {
            let connection = Connection::of_split(&view, &self.names);
            self.add(&connection);
        }
        self
    }

    fn add(&mut self, connection: &Connection) {
        if !self.first {
            self.line.push(b',');
        }
        self.first = false;
        // It goes to memory, and all of it has a form in JSON.
        let _ = serde_json::to_writer(&mut self.line, connection);
    }

    /// A page more of a worker's connections, or why there are no more.
    fn page(
        mut self,
        asked: &super::server::Asked,
        worker: usize,
        from: Cursor,
    ) -> (Self, Option<Fault>) {
        let page = std::mem::take(&mut self.page);
        let Some(Ok(mut page)) = asked
            .workers
            .get(worker)
            .map(|worker| worker.page(from, &self.filter, page))
        else {
            return (self, Some(gone()));
        };
        for view in page.views.drain(..) {
            self.add(&Connection::new(view, &self.names));
        }
        self.page = page;
        (self, None)
    }

    async fn end(mut self, error: Option<&Fault>, out: &Out) -> Result<(), Unread> {
        self.line.push(b']');
        if let Some(error) = error {
            self.line.extend_from_slice(b",\"error\":");
            let _ = serde_json::to_writer(&mut self.line, error);
        }
        self.line.extend_from_slice(b"}\n");
        self.send(out).await
    }

    async fn send(&mut self, out: &Out) -> Result<(), Unread> {
        let piece = std::mem::take(&mut self.line);
        out.send(piece.into()).await.map_err(|_| Unread)
    }
}

fn gone() -> Fault {
    Fault::new(
        "the list",
        "the worker does not answer; ask again, and if it stays so, look into the log",
    )
}

/// What is sent at a time at least, in bytes, but for the end.
const PIECE: usize = 16 << 10;

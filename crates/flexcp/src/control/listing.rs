//! The connections of all workers, told as they come: one page of one worker at a time, so that a million of them take no
//! more memory than a few, and a slow reader keeps nobody waiting but itself.

use std::io;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::Duration;

use flexcp_translator::{Cursor, Filter};

use super::action::VERSION;
use super::exchange;
use super::server::{Asked, Names};
use super::view::Connection;
use crate::worker::{Page, WorkerHandle};

/// Writes the connections that `filter` fits as one line, which the client may take as long as it likes to read, but for
/// [`PATIENCE`] at each piece. When a worker is gone, the line ends with an `error`.
pub(super) fn tell(
    asked: &Asked,
    names: &Names,
    filter: Filter,
    client: &UnixStream,
) -> io::Result<()> {
    let mut told = Told {
        names,
        client,
        filter: Arc::new(filter),
        line: format!("{{\"version\":{VERSION},\"connections\":[").into_bytes(),
        first: true,
    };
    let mut page = Page::default();
    for worker in &asked.workers {
        match told.worker(worker, page)? {
            Ok(used) => page = used,
            Err(error) => return told.end(Some(&error)),
        }
    }
    told.end(None)
}

struct Told<'a> {
    names: &'a Names,
    client: &'a UnixStream,
    filter: Arc<Filter>,
    /// What is not written yet.
    line: Vec<u8>,
    first: bool,
}

impl Told<'_> {
    /// All connections of one worker. Gives the memory of the last page, or why there are no more.
    fn worker(
        &mut self,
        worker: &WorkerHandle,
        mut page: Page,
    ) -> io::Result<Result<Page, String>> {
        page.next = Some(Cursor::default());
        while let Some(from) = page.next {
            page = match worker.page(from, &self.filter, page) {
                Ok(page) => page,
                Err(gone) => return Ok(Err(gone.to_string())),
            };
            for view in page.views.drain(..) {
                if !self.first {
                    self.line.push(b',');
                }
                self.first = false;
                let connection = Connection::new(view, self.names);
                serde_json::to_writer(&mut self.line, &connection)?;
            }
            if self.line.len() >= PIECE {
                self.write()?;
            }
        }
        Ok(Ok(page))
    }

    fn end(mut self, error: Option<&str>) -> io::Result<()> {
        self.line.push(b']');
        if let Some(error) = error {
            self.line.extend_from_slice(b",\"error\":");
            serde_json::to_writer(&mut self.line, error)?;
        }
        self.line.extend_from_slice(b"}\n");
        self.write()
    }

    fn write(&mut self) -> io::Result<()> {
        exchange::send(self.client, &self.line, PATIENCE)?;
        self.line.clear();
        Ok(())
    }
}

/// What is written at a time at least, in bytes, but for the end.
const PIECE: usize = 16 << 10;

/// How long a client may take to take a piece.
const PATIENCE: Duration = Duration::from_secs(20);

//! Pages of a worker's connections: whoever asks brings the memory and comes again for the next, so that nothing of a
//! listing is held here between two pages, however slowly it is read.

use std::sync::Arc;
use std::sync::mpsc::SyncSender;

use flexcp_translator::{ConnectionView, Cursor, Filter, Instant, Translator};

use super::{Gone, Request, WorkerHandle};

/// Some of a worker's connections.
#[derive(Default, Debug)]
pub struct Page {
    /// As they were when the page was made; a bounded number.
    pub views: Vec<ConnectionView>,
    /// Where the next page begins; `None`: there is none.
    pub next: Option<Cursor>,
}

/// A page that is asked for.
#[derive(Debug)]
pub(crate) struct PageWanted {
    from: Cursor,
    filter: Arc<Filter>,
    /// Memory for it.
    page: Page,
    answer: SyncSender<Page>,
}

impl PageWanted {
    pub(super) fn new(
        from: Cursor,
        filter: &Arc<Filter>,
        page: Page,
        answer: SyncSender<Page>,
    ) -> Self {
        Self {
            from,
            filter: Arc::clone(filter),
            page,
            answer,
        }
    }

    /// Fills the page, and gives it to whoever asked, who may have given up since.
    pub(super) fn fill(mut self, now: Instant, translator: &Translator) {
        self.page.next = translator.list(now, self.from, &self.filter, &mut self.page.views);
        let _ = self.answer.try_send(self.page);
    }

    #[cfg(test)]
    pub(crate) fn filter(&self) -> &Filter {
        &self.filter
    }

    /// As if these were all the connections that a worker has.
    #[cfg(test)]
    pub(crate) fn play(self, all: &[ConnectionView], len: usize) {
        let from = self.from.0;
        let end = all.len().min(from + len);
        let page = Page {
            views: all[from.min(end)..end].to_vec(),
            next: (end < all.len()).then_some(Cursor(end)),
        };
        let _ = self.answer.try_send(page);
    }
}

impl WorkerHandle {
    /// The worker's connections from a place on that `filter` fits, a page of them. `page` is an earlier one, whose memory
    /// is used again.
    ///
    /// # Errors
    /// When the worker has ended or does not answer.
    pub fn page(&self, from: Cursor, filter: &Arc<Filter>, mut page: Page) -> Result<Page, Gone> {
        page.views.clear();
        self.ask(|answer| Request::Page(PageWanted::new(from, filter, page, answer)))
    }
}

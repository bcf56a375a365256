//! Packets that wait for the translator, and what it installs meanwhile.

use flexcp_translator::{Frame, Install, Step, Verdict};
use flexcp_wire::Offload;

use super::read::{Headers, headers};
use super::twin::finish;
use super::{Outcome, Scenario, Shelf, causes};

impl Scenario {
    /// Gives the translator a fast path that gives back nothing but what it got.
    pub(crate) fn fast_path(&mut self, shelf: &Shelf) {
        self.translator.set_fast_path(Box::new(shelf.clone()));
        flexcp_translator::internals::install_soon(&mut self.translator);
    }

    /// From now on others wait behind each packet, or no longer.
    pub(crate) const fn backlog(&mut self, waits: bool) {
        self.backlog = waits;
    }

    /// The last packet has been sent.
    pub(crate) fn sent(&mut self) {
        assert!(self.installs_when_sent());
        self.translator.sent(self.now);
        self.install = Install::No;
    }

    /// The last packet asked for that.
    pub(crate) fn installs_when_sent(&self) -> bool {
        self.install == Install::WhenSent
    }

    /// From here on it does and knows what its twins do not: the test has made it so.
    pub(crate) const fn uncompared(&mut self) {
        self.compares = false;
    }

    /// The translator may fill holes that are none, which its twin with the programs does not know of.
    pub(crate) const fn may_part(&mut self) {
        self.twins[1].may_part = true;
    }

    /// Whether it has.
    pub(crate) const fn parted(&self) -> bool {
        self.twins[1].parted
    }

    /// The translator alone handles a packet, unseen by anybody; what goes out.
    pub(crate) fn alone(&mut self, bytes: &[u8], offload: Offload) -> Headers {
        let mut buf = vec![0; self.headroom + bytes.len()];
        buf[self.headroom..].copy_from_slice(bytes);
        let range = self.headroom..buf.len();
        let mut frame = Frame::new(&mut buf, range, offload);
        let Step { verdict, install } = self.translator.handle_packet(self.now, &mut frame);
        self.install = install;
        let done = finish(&mut self.translator, verdict, Some(&frame));
        let [out] = &done.out[..] else {
            panic!("{done:?}");
        };
        headers(&out.bytes).expect("a segment")
    }

    /// What a translator that installs at every opportunity has installed by now.
    pub(crate) fn installed(&self) -> Vec<flexcp_translator::FlowEntry> {
        self.twins[0].installed()
    }

    /// Packets that a fast path would have translated.
    pub(crate) const fn taken(&self) -> u64 {
        self.twins[1].taken
    }

    /// Installs what is due, and what is sent then.
    pub(crate) fn sent_with(&mut self) -> Outcome {
        self.sent();
        self.released()
    }

    /// What waits to be sent, after other calls than those of a packet or a timeout.
    pub(crate) fn released(&mut self) -> Outcome {
        let mut outcome = Outcome {
            what: format!("released at {} ms", self.now.0 / 1000),
            lines: Vec::new(),
            checksums: Vec::new(),
            new_ack: false,
        };
        self.checker.observe_timeout();
        let before = *self.translator.counters();
        let done = finish(&mut self.translator, Verdict::Consume, None);
        causes::judge(&before, self.translator.counters(), &done.out);
        self.emit_all(&mut outcome, &done, None, true);
        outcome
    }

    /// So many packets of others have been handled, and more wait.
    pub(crate) fn others(&mut self, count: u32) {
        flexcp_translator::internals::count_turns(&mut self.translator, count);
        self.translator.busy(self.now);
    }
}

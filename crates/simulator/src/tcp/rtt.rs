//! Round-trip time and retransmission timeout (RFC 6298).

/// Times in microseconds.
#[derive(Clone, Debug)]
pub(crate) struct Rtt {
    smoothed: Option<u64>,
    variance: u64,
    min: u64,
    max: u64,
    backoff: u32,
}

impl Rtt {
    /// The timeout stays within these bounds.
    #[must_use]
    pub(crate) const fn new(min: u64, max: u64) -> Self {
        Self {
            smoothed: None,
            variance: 0,
            min,
            max,
            backoff: 0,
        }
    }

    /// Takes a sample of something that was sent once.
    pub(crate) fn sample(&mut self, rtt: u64) {
        let rtt = rtt.max(1);
        match &mut self.smoothed {
            None => {
                self.smoothed = Some(rtt);
                self.variance = rtt / 2;
            }
            Some(smoothed) => {
                self.variance = (self.variance * 3 + smoothed.abs_diff(rtt)) / 4;
                *smoothed = (*smoothed * 7 + rtt) / 8;
            }
        }
    }

    /// The timeout expired.
    pub(crate) fn back_off(&mut self) {
        self.backoff = (self.backoff + 1).min(12);
    }

    /// Something new was acknowledged.
    pub(crate) const fn calm(&mut self) {
        self.backoff = 0;
    }

    /// Expiries in a row.
    #[must_use]
    pub(crate) const fn backoffs(&self) -> u32 {
        self.backoff
    }

    /// The smoothed round-trip time.
    #[must_use]
    pub(crate) const fn smoothed(&self) -> Option<u64> {
        self.smoothed
    }

    /// The retransmission timeout.
    #[must_use]
    pub(crate) fn timeout(&self) -> u64 {
        // The least is waited beyond the round trip, as Linux does: else it races with delayed ACKs.
        let base = self.smoothed.map_or(1_000_000, |smoothed| {
            smoothed + (4 * self.variance).max(self.min)
        });
        (base.max(self.min) << self.backoff).min(self.max)
    }
}

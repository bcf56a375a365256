//! What the connections of each rule carry over each access of late.
//!
//! A mode that shares connections out goes by bytes, not by connections: few of them carry the most. Each rule of such a mode
//! has an account for each access. Both ways of handling packets pay in; old bytes count ever less, in steps of [`STEP`].

use alloc::vec::Vec;
use core::num::NonZeroU16;
use core::ops::Range;
use core::time::Duration;

use crate::access::{AccessId, MAX_ACCESSES};
use crate::time::Instant;

/// A step of the ledger's time is 2^17 microseconds.
const STEP: u32 = 17;
/// After so many steps nothing counts any more.
const FORGOTTEN: u32 = 512;
/// Less than that carried tells nothing of losses.
const LEAST_FOR_LOSS: u64 = 64 << 10;
/// Paths of an access that are measured in a step at most: 244 in a second.
const MEASURED: u8 = 32;
/// What is known of connections' rates counts for so long at most: an installed one is looked at that often.
const MOST_TOLD: Duration = Duration::from_secs(2);

/// An account of the ledger.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Account(NonZeroU16);

impl Account {
    /// The `place`th one. `None`: there are not so many.
    pub(crate) fn new(place: usize) -> Option<Self> {
        let number = u16::try_from(place + 1).ok()?;
        NonZeroU16::new(number).map(Self)
    }

    const fn place(self) -> usize {
        self.0.get() as usize - 1
    }

    /// As a flow entry has it, where 0 is none.
    pub(crate) fn export(this: Option<Self>) -> u32 {
        this.map_or(0, |account| account.0.get().into())
    }

    fn import(number: u32) -> Option<Self> {
        let number = u16::try_from(number).ok()?;
        NonZeroU16::new(number).map(Self)
    }
}

/// What the connections of a rule carry over an access.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Load {
    /// Bytes of the last seconds: after eight a third of them counts.
    pub carried: u64,
    /// Bytes per second, of the last one.
    pub rate: u64,
    /// Of what was carried, the part that was sent again, in ten thousandths; `None`: too little was.
    pub loss: Option<u16>,
    /// Bytes per second of the connection that a byte is of, on the average; 0: not known.
    pub flow_rate: u64,
    /// Bytes per second that connections which have just come will add to [`rate`](Self::rate), less those that left.
    pub coming: i64,
    /// Connections that have just come, less those that left, in sixteenths.
    pub arrivals: i64,
    /// Connections that began there, in parts of 2^12; they count for as long as [`carried`](Self::carried) does.
    pub begun: u64,
}

impl Load {
    /// Bytes per second that are to be expected.
    #[must_use]
    pub fn expected(&self) -> u64 {
        self.rate.saturating_add_signed(self.coming)
    }

    /// So many connections of one rate would carry as much, in sixteenths. Those that have just come count.
    #[must_use]
    pub fn flows(&self) -> u64 {
        let carrying = (self.rate * 16).checked_div(self.flow_rate).unwrap_or(0);
        carrying.saturating_add_signed(self.arrivals)
    }
}

/// What a connection whose rate is not known yet will carry in a second, of the next two, by what others of the rule carried:
/// as much as one of them did in all, or as the fast ones do.
pub(crate) fn expected_of_another(loads: impl Iterator<Item = Load>) -> u64 {
    let (mut carried, mut begun, mut fast) = (0_u64, 0, u64::MAX);
    for load in loads {
        carried = carried.saturating_add(load.carried);
        begun += load.begun;
        if load.flow_rate > 0 {
            fast = load.flow_rate.max(if fast == u64::MAX { 0 } else { fast });
        }
    }
    let each = carried.saturating_mul(BEGUN.into()).checked_div(begun);
    let each = each.unwrap_or(0);
    (each / 2).min(fast).max(LEAST_EXPECTED)
}

/// Where nothing is known connections count alike.
const LEAST_EXPECTED: u64 = 1024;

/// A connection that began, so that a part of it can be forgotten with each step.
const BEGUN: u32 = 1 << 12;

/// One in so many of an access's connections has left it: it has become bad for all.
const MANY_LEFT: u64 = 8;

/// So many connections that carry alike are several, in sixteenths.
const OTHERS: u64 = 4 * 16;

/// One account, as it stood at a time.
#[derive(Clone, Copy, Default, Debug)]
struct Book {
    /// In steps.
    at: u32,
    carried: u64,
    again: u64,
    recent: u64,
    /// Bytes whose connections have told their rate, and those times that rate in kilobytes per second.
    told: u64,
    weighted: u64,
    coming: i64,
    arrivals: i64,
    /// Connections that began there, in parts of 2^12.
    begun: u32,
    /// Connections that left it of late because it had become bad, in sixteenths.
    left: u32,
    /// When that were many.
    congested: Option<Instant>,
}

impl Book {
    fn catch_up(&mut self, now: u32) {
        let steps = now.wrapping_sub(self.at);
        if steps == 0 {
            return;
        }
        if steps >= FORGOTTEN {
            *self = Self::default();
        }
        self.at = now;
        for _ in 0..steps.min(FORGOTTEN) {
            let idle = self.coming == 0 && self.arrivals == 0 && self.begun == 0;
            if self.carried == 0 && self.told == 0 && idle {
                break;
            }
            self.carried -= self.carried.div_ceil(64);
            self.again -= self.again.div_ceil(64);
            self.recent -= self.recent.div_ceil(8);
            self.told -= self.told.div_ceil(32);
            self.weighted -= self.weighted.div_ceil(32);
            self.coming -= self.coming / 16;
            self.arrivals -= self.arrivals / 16;
            self.left -= self.left.div_ceil(16);
            self.begun -= self.begun.div_ceil(64);
        }
    }

    fn load(&self) -> Load {
        let known = self.carried >= LEAST_FOR_LOSS;
        let loss = (self.again * 10_000).checked_div(self.carried).unwrap_or(0);
        Load {
            carried: self.carried,
            // Eight steps are 1.05 s.
            rate: self.recent - self.recent / 21,
            loss: known.then(|| u16::try_from(loss).unwrap_or(u16::MAX)),
            flow_rate: self.weighted.checked_div(self.told).unwrap_or(0) << 10,
            coming: self.coming,
            arrivals: self.arrivals,
            begun: self.begun.into(),
        }
    }
}

/// All accounts, and how many paths may be measured.
#[derive(Debug)]
pub(crate) struct Ledger {
    books: Vec<Book>,
    /// The turn of each account's rule, where the account is its first.
    turns: Vec<u8>,
    /// Paths that were measured in this step, by their access; those of none come last.
    measured: [u8; MAX_ACCESSES + 1],
    measured_at: u32,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            books: Vec::new(),
            turns: Vec::new(),
            measured: [0; MAX_ACCESSES + 1],
            measured_at: 0,
        }
    }
}

const fn step(now: Instant) -> u32 {
    #[allow(
        clippy::cast_possible_truncation,
        reason = "differences are taken, and wrap after 17 years"
    )]
    {
        (now.0 >> STEP) as u32
    }
}

impl Ledger {
    /// There are `count` accounts; those in `anew` begin with nothing.
    pub(crate) fn open(&mut self, count: usize, anew: impl Iterator<Item = Range<usize>>) {
        self.books.resize(count, Book::default());
        self.turns.resize(count, 0);
        for range in anew {
            self.books[range.clone()].fill(Book::default());
            self.turns[range].fill(0);
        }
    }

    pub(crate) const fn is_empty(&self) -> bool {
        self.books.is_empty()
    }

    fn book(&mut self, now: Instant, account: Account) -> Option<&mut Book> {
        let book = self.books.get_mut(account.place())?;
        book.catch_up(step(now));
        Some(book)
    }

    /// Bytes have gone down, `again` of them not for the first time.
    pub(crate) fn carry(&mut self, now: Instant, account: Account, bytes: u64, again: u64) {
        if let Some(book) = self.book(now, account) {
            book.carried += bytes;
            book.recent += bytes;
            book.again += again;
        }
    }

    /// Bytes that the fast path has sent, of the account with this number in its flow entries.
    pub(crate) fn carry_installed(&mut self, now: Instant, number: u32, bytes: u64) {
        if let Some(account) = Account::import(number) {
            self.carry(now, account, bytes, 0);
        }
    }

    /// A connection tells its rate in bytes per second, which it has had for so long.
    pub(crate) fn tell(&mut self, now: Instant, account: Account, rate: u64, took: Duration) {
        if let Some(book) = self.book(now, account) {
            let millis = u64::try_from(took.min(MOST_TOLD).as_millis()).unwrap_or(0);
            let bytes = rate * millis / 1000;
            book.told += bytes;
            book.weighted += bytes * (rate >> 10);
        }
    }

    /// A connection that carries `rate` bytes per second has left one account for the other.
    pub(crate) fn transfer(
        &mut self,
        now: Instant,
        from: Option<Account>,
        to: Option<Account>,
        rate: u64,
    ) {
        let rate = i64::try_from(rate).unwrap_or(i64::MAX);
        let ways = [(from, -1), (to, 1)];
        for (account, sign) in ways {
            if let Some(book) = account.and_then(|account| self.book(now, account)) {
                book.coming = book.coming.saturating_add(rate * sign);
                book.arrivals += 16 * sign;
            }
        }
    }

    /// A connection has a choice from here on, and begins here; it will carry `rate` bytes per second.
    pub(crate) fn begin(&mut self, now: Instant, account: Account, rate: u64) {
        if let Some(book) = self.book(now, account) {
            book.begun = book.begun.saturating_add(BEGUN);
            let rate = i64::try_from(rate).unwrap_or(i64::MAX);
            book.coming = book.coming.saturating_add(rate);
        }
    }

    /// A connection leaves the account's access, as it has become bad.
    pub(crate) fn note_congested(&mut self, now: Instant, account: Account) {
        if let Some(book) = self.book(now, account) {
            book.left = book.left.saturating_add(16);
            if u64::from(book.left) * MANY_LEFT >= book.load().flows() {
                book.congested = Some(now);
            }
        }
    }

    /// When one left it last for that, and with it an eighth of all within two seconds; `None`: not of late.
    pub(crate) fn congested(&self, account: Account) -> Option<Instant> {
        self.books.get(account.place())?.congested
    }

    /// Whether several connections carry over the account's access what they carried of late, or not much less.
    pub(crate) fn delivers(&self, now: Instant, account: Account) -> bool {
        let Some(mut book) = self.books.get(account.place()).copied() else {
            return false;
        };
        book.catch_up(step(now));
        // As much in each of the last 8 steps as in each of the last 64.
        book.load().flows() >= OTHERS
            && book.recent.saturating_mul(8 * 4) >= book.carried.saturating_mul(3)
    }

    /// Whether one more path of the access may be measured now; counts it if so. What packets that ask for an answer take of an
    /// access is bounded, however many connections it has.
    pub(crate) fn may_measure(&mut self, now: Instant, access: Option<AccessId>) -> bool {
        if self.measured_at != step(now) {
            self.measured_at = step(now);
            self.measured = [0; MAX_ACCESSES + 1];
        }
        let place = access.map_or(MAX_ACCESSES, |access| usize::from(access.0));
        let Some(count) = self.measured.get_mut(place) else {
            return false;
        };
        let may = *count < MEASURED;
        *count += u8::from(may);
        may
    }

    /// The number of the next connection of a rule whose first account this is; from 1 on, and round.
    pub(crate) fn next_turn(&mut self, first: Account) -> u8 {
        let Some(turn) = self.turns.get_mut(first.place()) else {
            return 1;
        };
        *turn = turn.checked_add(1).unwrap_or(1);
        *turn
    }

    pub(crate) fn load(&self, now: Instant, account: Account) -> Load {
        let Some(book) = self.books.get(account.place()) else {
            return Load::default();
        };
        let mut book = *book;
        book.catch_up(step(now));
        book.load()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000;

    fn ledger() -> (Ledger, [Account; 2]) {
        let mut ledger = Ledger::default();
        ledger.open(2, core::iter::empty());
        (ledger, [0, 1].map(|place| Account::new(place).unwrap()))
    }

    /// A megabyte a second in packets of a thousand bytes, every hundredth twice.
    fn busy(ledger: &mut Ledger, account: Account, until: u64) {
        for ms in 0..until * 1000 {
            let again = if ms % 100 == 0 { 1000 } else { 0 };
            ledger.carry(Instant(ms * 1000), account, 1000, again);
        }
    }

    #[test]
    fn rate_and_loss_are_those_of_the_last_seconds() {
        let (mut ledger, [one, two]) = ledger();
        busy(&mut ledger, one, 30);
        let load = ledger.load(Instant(30 * SECOND), one);
        assert!((930_000..1_070_000).contains(&load.rate), "{load:?}");
        assert!((98..=102).contains(&load.loss.unwrap()), "{load:?}");
        assert!((7_900_000..8_500_000).contains(&load.carried), "{load:?}");
        assert_eq!(ledger.load(Instant(30 * SECOND), two), Load::default());
    }

    #[test]
    fn bytes_count_ever_less() {
        let (mut ledger, [one, _]) = ledger();
        busy(&mut ledger, one, 30);
        let then = ledger.load(Instant(30 * SECOND), one);
        let later = ledger.load(Instant(32 * SECOND), one);
        assert!(later.rate < then.rate / 6, "{later:?}");
        assert!(later.carried > then.carried * 3 / 4, "{later:?}");
        let later = ledger.load(Instant(38 * SECOND + SECOND / 2), one);
        assert!((34..40).contains(&(later.carried * 100 / then.carried)));
        assert_eq!(
            ledger.load(Instant(100 * SECOND), one).loss,
            None,
            "too little"
        );
        assert_eq!(ledger.load(Instant(110 * SECOND), one), Load::default());
    }

    #[test]
    fn connections_that_move_are_expected_where_they_went() {
        let (mut ledger, [one, two]) = ledger();
        busy(&mut ledger, one, 10);
        let now = Instant(10 * SECOND);
        ledger.tell(now, one, 100_000, Duration::from_secs(10));
        let before = ledger.load(now, one);
        assert_eq!(before.flow_rate, 100_000 >> 10 << 10);
        assert!((140..180).contains(&before.flows()), "{}", before.flows());
        ledger.transfer(now, Some(one), Some(two), 100_000);
        let [left, come] = [one, two].map(|account| ledger.load(now, account));
        assert_eq!(left.expected(), before.expected() - 100_000);
        assert_eq!(left.flows(), before.flows() - 16);
        assert_eq!((come.expected(), come.flows()), (100_000, 16));
        let later = ledger.load(Instant(14 * SECOND), two);
        assert!(later.expected() < 15_000 && later.flows() < 16, "{later:?}");
    }

    #[test]
    fn connections_that_begin_are_expected_to_carry_what_others_did() {
        let (mut ledger, [one, two]) = ledger();
        let now = Instant(10 * SECOND);
        let expected = |ledger: &Ledger| {
            expected_of_another(
                [one, two]
                    .into_iter()
                    .map(|account| ledger.load(now, account)),
            )
        };
        assert_eq!(expected(&ledger), LEAST_EXPECTED);
        for _ in 0..4 {
            ledger.begin(now, one, 1000);
        }
        assert_eq!(ledger.load(now, one).expected(), 4000);
        // Half a megabyte each, on both accesses.
        ledger.carry(now, one, 1_500_000, 0);
        ledger.carry(now, two, 500_000, 0);
        assert_eq!(expected(&ledger), 250_000);
        ledger.tell(now, two, 200 << 10, Duration::from_secs(1));
        assert_eq!(expected(&ledger), 200 << 10);
        let later = ledger.load(Instant(14 * SECOND), one);
        assert!(
            later.coming < 600 && (9_700..10_300).contains(&later.begun),
            "{later:?}"
        );
        assert_eq!(ledger.load(Instant(100 * SECOND), one), Load::default());
    }

    #[test]
    fn rates_are_weighted_by_the_bytes_that_had_them() {
        let (mut ledger, [one, _]) = ledger();
        let now = Instant(SECOND);
        for _ in 0..9 {
            ledger.tell(now, one, 10 << 10, Duration::from_secs(1));
        }
        ledger.tell(now, one, 1000 << 10, Duration::from_secs(1));
        let load = ledger.load(now, one);
        assert_eq!(load.flow_rate >> 10, (9 * 100 + 1_000_000) / 1090);
    }

    #[test]
    fn rate_of_a_connection_counts_for_two_seconds_at_most() {
        let (mut ledger, [one, _]) = ledger();
        ledger.tell(Instant(0), one, 1 << 20, Duration::from_secs(1000));
        ledger.tell(Instant(0), one, 2 << 20, Duration::from_secs(1));
        assert_eq!(ledger.load(Instant(0), one).flow_rate >> 10, 1536);
    }

    #[test]
    fn turns_go_round() {
        let (mut ledger, [one, two]) = ledger();
        let turns: Vec<u8> = (0..256).map(|_| ledger.next_turn(one)).collect();
        assert_eq!((turns[0], turns[254], turns[255]), (1, 255, 1));
        assert_eq!(ledger.next_turn(two), 1);
    }

    #[test]
    fn few_paths_of_an_access_are_measured_at_a_time() {
        let (mut ledger, _) = ledger();
        let mut measured = |ms: u64, access: Option<u8>| {
            let tries = 0..100;
            let may = |_: &i32| ledger.may_measure(Instant(ms * 1000), access.map(AccessId));
            tries.filter(may).count()
        };
        assert_eq!(measured(1000, Some(1)), 32);
        assert_eq!((measured(1010, Some(1)), measured(1010, Some(2))), (0, 32));
        assert_eq!((measured(1010, None), measured(1010, Some(65))), (32, 0));
        assert_eq!(measured(1200, Some(1)), 32);
    }

    #[test]
    fn accounts_that_are_opened_anew_are_empty_and_others_stay() {
        let (mut ledger, [one, two]) = ledger();
        busy(&mut ledger, one, 1);
        busy(&mut ledger, two, 1);
        let _ = (ledger.next_turn(one), ledger.next_turn(two));
        ledger.open(3, core::iter::once(1..3));
        assert!(ledger.load(Instant(SECOND), one).carried > 0);
        assert_eq!(ledger.load(Instant(SECOND), two), Load::default());
        assert_eq!((ledger.next_turn(one), ledger.next_turn(two)), (2, 1));
    }

    #[test]
    fn access_delivers_until_less_comes_than_before() {
        let (mut ledger, [one, two]) = ledger();
        busy(&mut ledger, one, 8);
        let end = Instant(8 * SECOND);
        let second = Duration::from_secs(1);
        for _ in 0..8 {
            ledger.tell(end, one, 100_000, second);
        }
        assert!(ledger.delivers(end, one));
        assert!(!ledger.delivers(end, two));
        assert!(ledger.delivers(Instant(end.0 + 200_000), one));
        assert!(!ledger.delivers(Instant(end.0 + 800_000), one));
        assert!(!ledger.delivers(end, Account::new(9).unwrap()));
        busy(&mut ledger, two, 8);
        ledger.tell(end, two, 1_000_000, second);
        assert!(!ledger.delivers(end, two), "it is one connection");
    }

    #[test]
    fn account_that_there_is_not_is_nothing() {
        let (mut ledger, _) = ledger();
        let far = Account::new(9).unwrap();
        ledger.carry(Instant(0), far, 1, 1);
        assert_eq!(ledger.load(Instant(0), far), Load::default());
        ledger.carry_installed(Instant(0), 0, 1);
        ledger.carry_installed(Instant(0), 70_000, 1);
        ledger.carry_installed(Instant(0), 2, 1);
        assert_eq!(ledger.load(Instant(0), Account::new(1).unwrap()).carried, 1);
        assert_eq!(Account::export(Account::new(1)), 2);
        assert_eq!(Account::export(None), 0);
        assert_eq!(Account::new(65_535), None);
    }

    #[test]
    fn access_is_congested_when_an_eighth_of_its_connections_have_left_for_that() {
        let (mut ledger, [one, two]) = ledger();
        busy(&mut ledger, one, 10);
        let now = Instant(10 * SECOND);
        ledger.tell(now, one, 100_000, Duration::from_secs(10));
        // Ten, of which one has left, and two seconds later the next.
        ledger.note_congested(now, one);
        assert_eq!(ledger.congested(one), None);
        let mut later = ledger;
        let soon = Instant(now.0 + SECOND / 4);
        busy(&mut later, one, 11);
        later.tell(soon, one, 100_000, Duration::from_secs(10));
        later.note_congested(soon, one);
        assert_eq!(later.congested(one), Some(soon));
        assert_eq!(later.congested(two), None);
        // Where nobody else is, one is enough.
        later.note_congested(soon, two);
        assert_eq!(later.congested(two), Some(soon));
    }
}

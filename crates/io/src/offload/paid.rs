//! What has gone down by each slot, and on which account.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::words::Words;

/// What the programs have carried by a share of the slots, and how much of it has been told.
pub(super) struct Paid {
    carried: Arc<Words>,
    first: u32,
    slots: Vec<Slot>,
    /// Of slots that have another account since, or none: account and bytes.
    left: Vec<(u32, u64)>,
}

/// A slot, as it was told last.
#[derive(Clone, Copy, Default)]
struct Slot {
    /// 0: none.
    account: u32,
    bytes: u64,
}

impl Paid {
    pub(super) fn new(carried: Arc<Words>, slots: Range<u32>) -> Self {
        let bytes = |slot| carried.of(slot).load(Ordering::Relaxed);
        let told = slots.clone().map(|slot| Slot {
            account: 0,
            bytes: bytes(slot),
        });
        Self {
            slots: told.collect(),
            first: slots.start,
            carried,
            left: Vec::new(),
        }
    }

    /// What goes down by the slot is on this account from here on. 0: on none.
    pub(super) fn set_account(&mut self, slot: u32, account: u32) {
        let Some(told) = self.slots.get_mut((slot - self.first) as usize) else {
            return;
        };
        if told.account == account {
            return;
        }
        let bytes = self.carried.of(slot).load(Ordering::Relaxed);
        let more = bytes.wrapping_sub(told.bytes);
        if told.account != 0 && more > 0 {
            self.left.push((told.account, more));
        }
        *told = Slot { account, bytes };
    }

    /// Calls `each` with accounts and the bytes that have gone down since the last call.
    pub(super) fn pay_in(&mut self, each: &mut dyn FnMut(u32, u64)) {
        for (account, bytes) in self.left.drain(..) {
            each(account, bytes);
        }
        for (slot, told) in (self.first..).zip(&mut self.slots) {
            if told.account == 0 {
                continue;
            }
            let bytes = self.carried.of(slot).load(Ordering::Relaxed);
            let more = bytes.wrapping_sub(told.bytes);
            if more > 0 {
                told.bytes = bytes;
                each(told.account, more);
            }
        }
    }
}

//! The translator allocates nothing for a packet of an open connection.
//!
//! It stands in this crate because counting allocations takes `unsafe`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use flexcp_simulator::Conversation;

/// The system's allocator, with a counter for each thread.
struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

fn count() {
    // A thread that ends has no counter any more, and nobody asks for it.
    let _ = COUNT.try_with(|count| count.set(count.get() + 1));
}

// SAFETY: every call goes to the system's allocator as it is; counting touches nothing of it and does not allocate.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count();
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `pointer` came from `alloc` or `realloc`, which is to say from `System`.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count();
        // SAFETY: as in `dealloc`; the size is the caller's to answer for.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Allocations while `work` runs.
fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

/// Bursts of packets in both directions; the first fill what the connection keeps.
fn exchange(conversation: &mut Conversation, rounds: usize) {
    for _ in 0..rounds {
        for _ in 0..16 {
            conversation.data_down();
        }
        conversation.ack_up();
        for _ in 0..16 {
            conversation.data_up();
        }
        conversation.ack_down();
    }
}

#[test]
fn counter_counts() {
    assert!(allocations(|| drop(std::hint::black_box(vec![1_u8; 100]))) >= 1);
}

#[test]
fn open_connection_allocates_nothing() {
    let mut conversation = Conversation::open();
    exchange(&mut conversation, 4);
    let count = allocations(|| exchange(&mut conversation, 1_000));
    assert_eq!(count, 0, "allocations for 34,000 packets");
    // Nor does a listener change that.
    conversation.listen();
    let count = allocations(|| exchange(&mut conversation, 1_000));
    assert_eq!(count, 0, "allocations for 34,000 packets with a listener");
}

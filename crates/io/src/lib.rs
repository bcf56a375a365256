//! How packets come to the translator and go from it: the TUN carrier, the kernel's tables that
//! divert packets to it, and what a worker needs of the system beside (waiting, time, randomness,
//! signals).
//!
//! Everything here acts on the network namespace of the calling thread.
//!
//! This is the only crate of FlexCP with `unsafe`: three ioctls in [`Tun`], the signal mask in
//! [`Signals`], the queues of [`kept_queues`], binding and options of [`PacketSocket`], the policy of [`run_promptly`], the option
//! that [`syn_data_taken`] reads, in [`Offload`] the gates' memory and the layout of what it shares with the kernel's programs, the
//! same layout and an ioctl in [`PlacementProgram`], and a call to the allocator in [`give_memory_back`].
#![cfg_attr(not(test), warn(clippy::too_many_lines))]
#![deny(
    clippy::undocumented_unsafe_blocks,
    reason = "each unsafe block tells why it is sound"
)]

mod batch;
mod event;
mod kernel;
mod memory;
mod offload;
mod packet;
mod placement;
mod rights;
mod schedule;
mod signal;
mod stamped;
mod store;
mod subflows;
mod tcp_info;
mod tun;

pub use batch::SendBatch;
pub use event::{
    Ready, Waker, monotonic_micros, random_bytes, wait, wait_for_any, wait_for_openings,
};
pub use kernel::{
    Changes, ClientLeg, Conntrack, Copies, Diversion, Family, FoundWays, Interface, InterfaceRule,
    IpsecDirection, IpsecPolicy, JournalError, KernelError, KernelTables, LinkHeader, Look, Mended,
    NetfilterError, NetlinkError, PROTOCOL, Plan, Protocol, RoutedWays, UplinkWay, Watch, Zones,
    conntrack_is_active, diverting_device, interface_exists, interfaces, ipsec_policies,
    local_addresses, marks_may_be_set, route_source, rules_by_interface, rules_by_mark, switch,
    tcp_listener_on, uplink_ways,
};
pub use memory::give_memory_back;
pub use offload::{
    Hook, KernelFastPath, LeftOut, Offload, OffloadError, OwnEnds, Reasons, Refusal, Tried,
};
pub use packet::{PacketSocket, ReceivedFrame};
pub use placement::{ClaimedFlows, PlacedBackEnds, PlacementError, PlacementProgram, Target};
pub use rights::renounce_loading;
pub use schedule::run_promptly;
pub use signal::{Signal, Signals};
pub use stamped::{Stamped, StampedSocket};
pub use store::{keep_queues, kept_queues, let_queues_go};
pub use subflows::SubflowFile;
pub use tcp_info::{client_is_proved, syn_data_taken, take_syn_data};
pub use tun::{PacketBuffer, Tun, TunError};

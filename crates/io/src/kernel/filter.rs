//! Filters at the ingress of devices (`tc filter`, kind `bpf`), which bring packets to a program where the kernel has no
//! tcx. A filter stands under a qdisc `clsact`, which others may use too: it is made where there is none, and goes again
//! only when it was ours and nothing else hangs on it.
//!
//! A filter outlives the process that made it, and so does the program behind it; the journal names each, so that the
//! next start takes it back. Ours are known by [`PRIORITY`], [`HANDLE`] and [`NAME`] together.

use std::os::fd::{AsRawFd, BorrowedFd};

use netlink_packet_core::{NLM_F_CREATE, NLM_F_EXCL};
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::tc::{
    TcAttribute, TcBpfFlags, TcFilterBpf, TcFilterBpfOption, TcHandle, TcMessage, TcOption,
};
use serde::{Deserialize, Serialize};

use super::address::is_interface_name;
use super::netlink::{Netlink, NetlinkError};
use super::{KernelError, PROTOCOL};

/// One filter.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Filter {
    /// The device, as it was called then.
    pub(crate) interface: String,
    /// Its index, which a new name does not change.
    pub(crate) index: u32,
    /// Whether the qdisc is ours, too.
    pub(crate) made_qdisc: bool,
}

impl Filter {
    /// Whether FlexCP can have noted it.
    pub(crate) fn is_plausible(&self) -> bool {
        is_interface_name(&self.interface) && i32::try_from(self.index).is_ok_and(|index| index > 0)
    }

    /// Makes the qdisc, if there is none. Whether it was made.
    pub(crate) fn make_qdisc(&self) -> Result<bool, KernelError> {
        let mut message = self.message(TcHandle::CLSACT);
        message.header.handle = CLSACT;
        message
            .attributes
            .push(TcAttribute::Kind("clsact".to_owned()));
        let made = Netlink::open()?.change(
            RouteNetlinkMessage::NewQueueDiscipline(message),
            NLM_F_CREATE | NLM_F_EXCL,
        );
        match made {
            Ok(()) => Ok(true),
            Err(error) if error.refusal() == Some(libc::EEXIST) => Ok(false),
            Err(error) => Err(self.error("make the qdisc clsact for", error)),
        }
    }

    /// Attaches `program`. One of ours that is there already is taken back first: nobody else uses it.
    pub(crate) fn attach(&self, program: BorrowedFd<'_>) -> Result<(), KernelError> {
        let fd = u32::try_from(program.as_raw_fd()).unwrap_or(u32::MAX);
        let options = [
            TcFilterBpfOption::ProgFd(fd),
            TcFilterBpfOption::ProgName(NAME.to_owned()),
            TcFilterBpfOption::Flags(TcBpfFlags::DirectAction),
        ];
        let mut message = self.filter();
        message.attributes = vec![
            TcAttribute::Kind(TcFilterBpf::KIND.to_owned()),
            TcAttribute::Options(options.into_iter().map(TcOption::Bpf).collect()),
        ];
        self.detach()?;
        Netlink::open()?
            .change(
                RouteNetlinkMessage::NewTrafficFilter(message),
                NLM_F_CREATE | NLM_F_EXCL,
            )
            .map_err(|error| self.error("attach a filter to", error))
    }

    /// Whether it is not there any more, as far as the kernel tells.
    pub(crate) fn is_lost(&self) -> bool {
        let found = Netlink::open().and_then(|mut netlink| {
            netlink.get(RouteNetlinkMessage::GetTrafficFilter(self.filter()))
        });
        match found {
            Ok(found) => !found.iter().any(is_ours),
            Err(error) => is_missing(&error),
        }
    }

    /// Takes back the filter, and the qdisc if that is ours and not used; what is gone already is no error.
    pub(crate) fn remove(&self, report: &mut dyn FnMut(&str)) -> Result<(), KernelError> {
        if self.detach()? {
            report(&format!("filter: {} removed", self.interface));
        }
        if self.made_qdisc && self.is_unused() {
            let mut message = self.message(TcHandle::CLSACT);
            message.header.handle = CLSACT;
            let gone = Netlink::open()?.change(RouteNetlinkMessage::DelQueueDiscipline(message), 0);
            match gone {
                Ok(()) => report(&format!("qdisc: clsact of {} removed", self.interface)),
                Err(error) if is_missing(&error) => {}
                Err(error) => return Err(self.error("remove the qdisc clsact of", error)),
            }
        }
        Ok(())
    }

    /// Removes the filter, if it is there and ours. Whether it was.
    fn detach(&self) -> Result<bool, KernelError> {
        // Another program's may say what we do not understand.
        let found = Netlink::open()?.get(RouteNetlinkMessage::GetTrafficFilter(self.filter()));
        if !found.is_ok_and(|found| found.iter().any(is_ours)) {
            return Ok(false);
        }
        match Netlink::open()?.change(RouteNetlinkMessage::DelTrafficFilter(self.filter()), 0) {
            Ok(()) => Ok(true),
            Err(error) if is_missing(&error) => Ok(false),
            Err(error) => Err(self.error("remove the filter from", error)),
        }
    }

    /// Whether no filter hangs on the qdisc, as far as the kernel tells in words that we understand.
    fn is_unused(&self) -> bool {
        [TcHandle::MIN_INGRESS, TcHandle::MIN_EGRESS]
            .into_iter()
            .all(|side| {
                let message = self.message(under_clsact(side));
                let dump = Netlink::open().and_then(|mut netlink| {
                    netlink.dump(RouteNetlinkMessage::GetTrafficFilter(message))
                });
                dump.is_ok_and(|filters| filters.is_empty())
            })
    }

    /// A message about our filter.
    fn filter(&self) -> TcMessage {
        const ETH_P_ALL: u16 = 3;
        let mut message = self.message(under_clsact(TcHandle::MIN_INGRESS));
        message.header.handle = TcHandle::from(HANDLE);
        message.header.info = u32::from(PRIORITY) << 16 | u32::from(ETH_P_ALL.to_be());
        message
    }

    fn message(&self, parent: TcHandle) -> TcMessage {
        let mut message = TcMessage::with_index(self.index.cast_signed());
        message.header.parent = parent;
        message
    }

    fn error(&self, action: &'static str, source: NetlinkError) -> KernelError {
        KernelError::Filter {
            action,
            interface: self.interface.clone(),
            source,
        }
    }
}

fn is_ours(answer: &RouteNetlinkMessage) -> bool {
    let RouteNetlinkMessage::NewTrafficFilter(message) = answer else {
        return false;
    };
    message.attributes.iter().any(|attribute| {
        let TcAttribute::Options(options) = attribute else {
            return false;
        };
        let ours = |option: &TcOption| matches!(option, TcOption::Bpf(TcFilterBpfOption::ProgName(name)) if name == NAME);
        options.iter().any(ours)
    })
}

/// The device is gone, or what hung on it.
fn is_missing(error: &NetlinkError) -> bool {
    matches!(
        error.refusal(),
        Some(libc::ENODEV | libc::ENOENT | libc::EINVAL)
    )
}

/// What to do about a refusal.
pub(crate) fn advice(error: &NetlinkError) -> String {
    match error.refusal() {
        Some(libc::ENOENT | libc::EOPNOTSUPP) => {
            "; it takes the kernel's modules sch_ingress and cls_bpf".to_owned()
        }
        Some(libc::EEXIST | libc::EINVAL) => {
            format!("; a filter of another program may stand at priority {PRIORITY}")
        }
        _ => String::new(),
    }
}

const fn under_clsact(minor: u16) -> TcHandle {
    TcHandle {
        major: TcHandle::CLSACT.major,
        minor,
    }
}

/// The qdisc's own handle.
const CLSACT: TcHandle = TcHandle {
    major: TcHandle::CLSACT.major,
    minor: 0,
};
/// Ours come behind what others have there: a filter that drops or redirects a packet goes on doing so. Above all
/// that the kernel gives by itself.
pub(crate) const PRIORITY: u16 = 65_000 + PROTOCOL as u16;
pub(crate) const HANDLE: u32 = PROTOCOL as u32;
/// As `tc filter show` names it.
pub(crate) const NAME: &str = "flexcp_offload";

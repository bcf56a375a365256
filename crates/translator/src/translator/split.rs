//! Connections that the kernel carries: its MPTCP has the client's end, and a relay of the same process brings bytes to the server.
//! The translator decides at the SYN, and has nothing more to do with them.

use flexcp_wire::Ends;

use super::Translator;
use crate::ServiceId;
use crate::carrier::Carrier;
use crate::segment::Segment;
use crate::way::Way;

impl Translator {
    /// Whether the connection that this SYN opens is to be split, and can be.
    pub(super) fn splits(&mut self, service: ServiceId, syn: &Segment) -> bool {
        let Some(of_service) = self.services.carrier(service) else {
            return false;
        };
        let of_rule = self.config.rules.carrier(service, syn.source().ip());
        let carrier = match of_rule.unwrap_or(of_service) {
            Carrier::Auto => self.choose_carrier(syn),
            told => told,
        };
        if carrier == Carrier::Splitless {
            return false;
        }
        let takes = syn.payload.is_empty() || self.services.relay_takes_syn_data(service);
        let can = takes && self.leaves_to_socket(syn);
        self.counters.split += u64::from(can);
        self.counters.split_refused += u64::from(!can);
        can
    }

    /// As the access that the SYN comes over has been of late.
    fn choose_carrier(&mut self, syn: &Segment) -> Carrier {
        let (client, local) = (syn.source().ip(), syn.destination().ip());
        // Nobody has proved to be there, so that the kernel is not asked for the way.
        let access = self.config.accesses.of(client, local, Way::OTHER);
        self.accounts.arrivals.history(access).choose()
    }

    /// Whether a join whose token no connection has is a split connection's for all that is known here.
    pub(super) fn splits_join(&mut self, syn: &Segment) -> bool {
        let splits = self.services.is_relayed(syn.destination()) && self.leaves_to_socket(syn);
        self.counters.split_joins += u64::from(splits);
        splits
    }

    fn leaves_to_socket(&mut self, syn: &Segment) -> bool {
        let ends = Ends {
            from: syn.source(),
            to: syn.destination(),
        };
        let installer = self.installer.as_mut();
        installer.is_some_and(|installer| installer.leaves_to_socket(ends))
    }
}

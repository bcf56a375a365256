//! Inputs that once failed, each with what was wrong. `FUZZ_TRACE=1` shows what happens in one.

use std::collections::BTreeSet;
use std::fs;

use flexcp_fuzz::corpus::directory;
use flexcp_fuzz::{TARGETS, find};

macro_rules! regressions {
    ($($(#[doc = $doc:literal])* $target:ident / $file:literal $name:ident;)*) => {
        $($(#[doc = $doc])*
        #[test]
        fn $name() {
            let target = find(stringify!($target)).expect("a target");
            let path = directory("regressions", target.name).join($file);
            (target.run)(&fs::read(path).expect("the input"));
        })*

        #[test]
        fn every_input_has_its_test() {
            let tested: BTreeSet<String> =
                [$(format!("{}/{}", stringify!($target), $file)),*].into_iter().collect();
            let files = TARGETS.iter().flat_map(|target| {
                let entries = fs::read_dir(directory("regressions", target.name));
                entries.into_iter().flatten().flatten().map(|entry| {
                    format!("{}/{}", target.name, entry.file_name().to_string_lossy())
                })
            });
            assert_eq!(files.collect::<BTreeSet<_>>(), tested);
        }
    };
}

regressions! {
    /// The server sends 100 segments of one byte, then all of them again in one packet: it became 100
    /// packets, and with 60,000 bytes it would have become 60,000.
    legs / "one-packet-over-many-mappings" repeated_packet_over_many_mappings_is_cut;
    /// A joined flow came back in the place of another one; a third took the place that it had before, and
    /// with it the flow's entry in the table.
    stream / "place-of-a-flow-that-came-back" flow_that_came_back_keeps_its_entry;
    /// IPv6 clients had addresses of the diverted prefix, so the server's SYN was a client's.
    legs / "syn-of-the-servers" server_opens_a_connection_of_its_own;
    legs / "syn-of-the-servers-behind-a-plain-one" server_opens_a_connection_beside_a_plain_one;
    /// The checker went by a window that came with an ACK of what was not sent; the translator did not.
    legs / "window-of-a-server-that-lies" window_of_a_server_that_lies_moves_nothing;
    /// The checker took a flow whose SYN was dropped for a connection, and the answer to a join for its own.
    stream / "join-behind-a-syn-with-fin" join_behind_a_syn_with_fin;
    /// The checker held a mapping for declared that the translator drops, and the numbers for different.
    icmp / "mapping-far-beyond-the-window" fallback_after_a_mapping_far_beyond_the_window;
    /// The checker took MP_JOIN on the initial subflow for a join, after which there is no fallback.
    icmp / "mp-join-on-the-initial-subflow" fallback_after_mp_join_on_the_initial_subflow;
    /// The server repeated its SYN/ACK behind data of a joined subflow, and its echo of that passed as it was.
    stream / "syn-ack-again-beside-another-subflow" syn_ack_again_beside_another_subflow;
    /// Behind the client's FIN, which was ACKed, came data: the SACK block for it began at the ACK.
    legs / "sack-behind-a-fin" sack_behind_a_fin;
    /// The checker went by the window of a packet far beyond the client's, which the translator had dropped.
    stream / "window-of-a-server-from-elsewhere" window_of_a_server_from_elsewhere;
    /// The checker took a mapping from a packet that the translator had dropped.
    icmp / "mapping-of-a-client-from-elsewhere" mapping_of_a_client_from_elsewhere;
    /// The checker took a mapping from a client that had left MPTCP at its third packet.
    stream / "mapping-of-a-client-that-is-plain" mapping_of_a_client_that_is_plain;
    /// The checker held two TSvals against each other between which the server's clock had leapt half round.
    legs / "clock-that-leaps-round" clock_that_leaps_round;
    /// The checker did not notice that a SYN came again for another version of MPTCP, which is relayed.
    icmp / "syn-again-with-another-version" syn_again_with_another_version;
    /// The checker took a SYN with RST for a new connection.
    icmp / "syn-with-rst" syn_with_rst;
    /// The checker held it against the client that data which overran the window came again.
    legs / "overrun-again" overrun_again;
    /// The checker held it against the client that it answered a SYN/ACK which FlexCP had forgotten.
    legs / "join-that-was-forgotten" join_that_was_forgotten;
    /// The checker took a join for complete that FlexCP had reset before its third packet.
    legs / "join-that-was-reset" join_that_was_reset;
    /// The checker took a join for complete that FlexCP had given up for its age when the third packet came.
    legs / "join-given-up-for-age" join_given_up_for_age;
    /// Server packets without a place for their data moved the ACK of a flow, and the client was not told: what it sent
    /// next was let go as if it had come again once more.
    legs / "ack-in-a-packet-without-a-place" ack_in_a_packet_without_a_place;
    /// The client's FIN was ACKed, then came again in another place: the ACK went back, and a SACK block lay before it.
    legs / "fin-again-in-another-place" fin_again_in_another_place;
    /// A packet that FlexCP kept for itself moved the server's clock, and the next packet's TSval was an older one.
    icmp / "clock-moved-by-a-packet-that-stays" clock_moved_by_a_packet_that_stays;
    /// The checker waited for MPTCP behind a SYN for version 0, which is relayed, and held its clock for FlexCP's.
    icmp / "syn-for-another-version-again" syn_for_another_version_again;
    /// The checker took an ACK without MPTCP for a data ACK, beside a joined flow.
    stream / "ack-without-mptcp-beside-a-join" ack_without_mptcp_beside_a_join;
    /// The checker took a join for complete that its client had reset.
    stream / "join-that-its-client-has-reset" join_that_its_client_has_reset;
    /// The reset of a subflow that FlexCP had given up was repeated once its client had come back from there, and the
    /// checker took it for the new subflow's.
    legs / "reset-again-after-another-join-from-there" reset_again_after_another_join_from_there;
    /// The checker believed the ACK of a client's packet that was dropped for its mapping, and then took the server's
    /// number for one from elsewhere.
    stream / "ack-in-a-packet-with-a-bad-mapping" ack_in_a_packet_with_a_bad_mapping;
    /// The checker held against FlexCP what stood in a SYN/ACK that was relayed: the client had left MPTCP.
    icmp / "relayed-syn-ack-with-another-option" relayed_syn_ack_with_another_option;
    /// The checker took an ACK with an empty DSS option, after a fallback, for one that says nothing.
    icmp / "empty-dss-after-a-fallback" ack_with_an_empty_dss_after_a_fallback;
    /// A value with a line break was quoted as it was.
    config / "two-lines-in-a-message" two_lines_in_a_message;
    /// The server ACKed what had not come, with a window of nothing, then less, with a large window: the checker
    /// took the first for believed and the other for old, and the span for that of the SYN/ACK's window.
    stream / "window-behind-an-ack-of-nothing" window_behind_an_ack_of_nothing_counts;
    /// The same kind of server said less than its SYN/ACK's window, and FlexCP let data beyond that go: the checker
    /// held the data against the larger one.
    stream / "window-that-shrinks-from-that-of-the-syn-ack" window_that_shrinks_from_that_of_the_syn_ack;
    /// A client's SYN/ACK behind its SYN was another SYN to the server that it had named.
    hostile / "syn-ack-of-a-client" syn_ack_of_a_client;
}

//! What the translator and the kernel's programs share is laid out alike: each field stands where the types in the object
//! itself (BTF) say, and each reason has the name that it has in the header.

use std::mem::{offset_of, size_of};

use btf_rs::{Btf, Type};
use flexcp_io::Reasons;
use flexcp_translator::{
    EntryDelivery, EntryRtt, EntrySubflow, FlowEntry, Hole, MappingRun, UpRun,
};
use object::{Object as _, ObjectSection as _};

static OBJECT: &[u8] = include_bytes!("../../../bpf/offload.bpf.o");

/// A type's size, and its fields in order, each with the byte at which it starts.
type Layout = (usize, Vec<(String, usize)>);

/// The layout of a Rust type. It does not compile when a field is left out.
macro_rules! layout {
    ($type:ident { $($field:ident),* $(,)? }) => {{
        let _ = |$type { $($field: _),* }: $type| {};
        let fields = vec![$((stringify!($field).to_owned(), offset_of!($type, $field))),*];
        (size_of::<$type>(), fields)
    }};
}

fn types() -> Btf {
    let file = object::File::parse(OBJECT).expect("an object file");
    let section = file.section_by_name(".BTF").expect("types");
    Btf::from_bytes(section.data().expect("bytes")).expect("BTF")
}

/// The layout of a C struct.
fn layout_of(types: &Btf, name: &str) -> Layout {
    let found = types.resolve_types_by_name(name).expect("a type");
    let [Type::Struct(found)] = &found[..] else {
        panic!("{name}: {found:?}");
    };
    let place = |member: &btf_rs::Member| {
        let name = types.resolve_name(member).expect("a name");
        (name, member.bit_offset() as usize / 8)
    };
    (found.size(), found.members.iter().map(place).collect())
}

#[test]
fn structs_are_laid_out_alike() {
    let types = types();
    let both = |name: &str, ours: Layout| assert_eq!(ours, layout_of(&types, name), "{name}");
    both("mapping_run", layout!(MappingRun { ssn, len, count }));
    both("up_run", layout!(UpRun { dsn, len }));
    both("hole", layout!(Hole { seq, len }));
    both(
        "delivery",
        layout!(EntryDelivery {
            since,
            from,
            flight,
            window,
            rate,
        }),
    );
    both(
        "rtt",
        layout!(EntryRtt {
            smoothed,
            variation,
            last,
            recent,
            least,
            least_at,
        }),
    );
    both(
        "entry_subflow",
        layout!(EntrySubflow {
            remote_addr,
            local_addr,
            remote_port,
            local_port,
            installed,
            window_scale,
            sampled,
            late,
            isn_remote,
            isn_local,
            snd_next,
            snd_una,
            snd_edge,
            rcv_ack,
            rcv_high,
            clock_offset,
            clock_heard,
            timed,
            timed_as,
            rtt,
            mss,
            clock_recent,
            first_up,
            ups_used,
            announced,
            recent_len,
            recent_dsn,
            timed_at,
            delivery,
            last_heard,
            outstanding_since,
            bytes_up,
            bytes_down,
        }),
    );
    both(
        "flow_entry",
        layout!(FlowEntry {
            lock,
            family,
            server_addr,
            source_addr,
            server_port,
            source_port,
            active,
            heard,
            ordered,
            down_next,
            down_acked,
            down_edge,
            up_next,
            up_acked,
            server_edge,
            seq_down,
            seq_up,
            server_window,
            server_scale,
            sent_scale,
            server_window_max,
            server_mss,
            client_window,
            initial_scale,
            server_sack,
            ts_sent,
            ts_heard,
            ts_echo,
            ts_again,
            label_up,
            label_down,
            first_run,
            runs_used,
            packets_made,
            account,
            patience,
            ts_shift,
            ts_sent_at,
            silence,
            last_packet,
            packets_down,
            packets_up,
            holes,
            subflows,
            ups,
            runs,
        }),
    );
}

#[test]
fn reasons_have_the_names_that_the_programs_give_them() {
    let header = include_str!("../../../bpf/offload.h");
    let (_, reasons) = header.split_once("enum reason {").expect("the reasons");
    let (reasons, _) = reasons.split_once('}').expect("their end");
    // The last is how many there are.
    let name = |line: &str| line.trim().strip_suffix(',').map(str::to_lowercase);
    let theirs: Vec<_> = reasons.lines().filter_map(name).collect();
    let ours = Reasons::meanings().iter().map(|(name, _)| *name);
    let ours: Vec<_> = ours.chain(["reasons"]).collect();
    assert_eq!(ours, theirs);
}

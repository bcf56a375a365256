/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* State that the translator and the programs share. The translator's side is crates/translator/src/offload.rs;
 * the loader compares the sizes. Sequence numbers are in host order, addresses in network order, times are
 * microseconds of CLOCK_MONOTONIC. */
#pragma once

#define ENTRY_SUBFLOWS 4
#define ENTRY_RUNS 128
#define ENTRY_UPS 16
#define ENTRY_HOLES 4

struct mapping_run {
	__u32 ssn;
	__u16 len;
	__u16 count;
};

/* The client's data between two numbers of a subflow: one stretch of both spaces. */
struct up_run {
	__u32 dsn;
	__u32 len;
};

/* Data of the server's that was overtaken, and has its place on the active subflow. */
struct hole {
	__u32 seq;
	__u32 len; /* 0: none */
};

/* Round-trip times of a path in microseconds; 0: not known. */
struct rtt {
	__u32 smoothed;
	__u32 variation;
	__u32 last;
	__u32 recent; /* the shorter of the last two */
	__u32 least;
	__u32 least_at; /* in steps of 2^20 us */
};

/* What a path delivers. */
struct delivery {
	__u64 since;
	__u32 from;
	__u32 flight;
	__u32 window;
	__u32 rate; /* bytes per second */
};

/* What gives the next RTT sample (Timed). */
enum timed_as {
	TIMED_NOTHING,
	TIMED_NUMBER,
	TIMED_ECHO,
	TIMED_MEASURED,
	TIMED_BEHIND,
};

struct entry_subflow {
	__u8 remote_addr[16];
	__u8 local_addr[16];
	__u16 remote_port;
	__u16 local_port;
	__u8 installed;
	__u8 window_scale;
	/* A sample of the RTT was taken here. */
	__u8 sampled;
	/* What answers may take beyond two round trips, in milliseconds; at least JITTER. */
	__u8 late;
	__u32 isn_remote;
	__u32 isn_local;
	__u32 snd_next;
	__u32 snd_una;
	__u32 snd_edge;
	__u32 rcv_ack;
	__u32 rcv_high;
	__u32 clock_offset;
	__u32 clock_heard;
	__u32 timed;
	__u32 timed_as;
	struct rtt rtt;
	__u32 mss;
	__u32 clock_recent;
	__u16 first_up;
	__u16 ups_used;
	__u32 announced;
	__u32 recent_len;
	__u64 recent_dsn;
	__u64 timed_at;
	struct delivery delivery;
	__u64 last_heard;
	__u64 outstanding_since;
	__u64 bytes_up;
	__u64 bytes_down;
};

struct flow_entry {
	struct bpf_spin_lock lock;
	__u32 family;
	__u8 server_addr[16];
	__u8 source_addr[16];
	__u16 server_port;
	__u16 source_port;
	__u32 active;
	__u32 heard;
	__u32 ordered;
	__u64 down_next;
	__u64 down_acked;
	__u64 down_edge;
	__u64 up_next;
	__u64 up_acked;
	__u64 server_edge;
	__u32 seq_down;
	__u32 seq_up;
	__u32 server_window;
	__u16 server_scale;
	__u16 sent_scale;
	__u32 server_window_max;
	__u32 server_mss;
	__u32 client_window;
	__u16 initial_scale;
	__u16 server_sack;
	__u32 ts_sent;
	__u32 ts_heard;
	__u32 ts_echo;
	__u32 ts_again;
	__u32 label_up;
	__u32 label_down;
	__u32 first_run;
	__u32 runs_used;
	__u32 packets_made;
	__u32 account;
	__u32 patience;
	__u32 ts_shift;
	__u64 ts_sent_at;
	__u64 silence;
	__u64 last_packet;
	__u64 packets_down;
	__u64 packets_up;
	struct hole holes[ENTRY_HOLES];
	struct entry_subflow subflows[ENTRY_SUBFLOWS];
	struct up_run ups[ENTRY_SUBFLOWS][ENTRY_UPS];
	struct mapping_run runs[ENTRY_RUNS];
};

/* A packet's ends, as they stand in it. */
struct flow_key {
	__u8 from[16];
	__u8 to[16];
	__be16 from_port;
	__be16 to_port;
};

#define LEG_SERVER 0xff

/* Whose packets those are. */
struct flow_ref {
	__u32 slot;
	__u32 leg; /* LEG_SERVER, or the subflow's index */
};

/* A flow of plain TCP. */
struct plain {
	__u32 family;
};

/* IPv6 ends of FlexCP's own at this host: an address with a port, or with port 0 for a range of them. */
struct own_key {
	__u8 addr[16];
	__be16 port;
	__u16 zero;
};

/* The first port and the last. */
struct own_ports {
	__u16 first;
	__u16 last;
};

/* What the programs are told once. */
struct settings {
	/* The device that FlexCP works on: packets are routed as if they came from there. */
	__u32 device;
	/* Bits of a packet's mark that lead it past FlexCP's routing rules. */
	__u32 mark;
	/* 1: what the kernel has a socket for goes to it, past FlexCP. */
	__u32 sockets;
	__u32 spare;
	/* Tests set the time, in microseconds; 0: the kernel's. */
	__u64 now;
};

/* Why a packet of an installed connection goes up to the translator. */
enum reason {
	TRANSLATED,
	NOT_INSTALLED,
	FLAGS,
	OPTIONS,
	CHECKSUM,
	IP_HEADER,
	TOO_LONG,
	ROUTE,
	REPEATED,
	AHEAD,
	SEQUENCE_UP,
	MAPPING,
	ACK,
	WINDOW,
	OVERDUE,
	NO_ROOM,
	NO_NEWS,
	SEVERAL,
	HOLE,
	REWRITE_FAILED,
	/* Not up, but nowhere: the translator would drop it, too. */
	STALE_ACK,
	/* Up, because the part that translates it is left out. */
	LEFT_OUT,
	/* Neither: plain TCP that the kernel forwards. */
	PLAIN,
	/* Up: the path has become slower than the connection's rule has patience with. */
	SLOW,
	/* Neither: of a connection that a socket of this host has. */
	SOCKET,
	REASONS,
};

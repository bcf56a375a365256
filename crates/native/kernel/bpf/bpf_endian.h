/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/* In place of libbpf's. */
#pragma once

#include <asm/byteorder.h>

#define bpf_htons __cpu_to_be16
#define bpf_htonl __cpu_to_be32
#define bpf_ntohl __be32_to_cpu

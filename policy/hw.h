/* SPDX-License-Identifier: Apache-2.0
 * policy/hw.h - a machine as numbers: what each side computes, what links and disks carry, and what
 * they take from each other.  Plain data; who measures or reads it from a file is not known here.
 * Rates are what an op reaches with the machine to itself.  Units: bytes, seconds, flop. */
#ifndef AQ_POLICY_HW_H
#define AQ_POLICY_HW_H

#include "policy/program.h"

/* Numbers of rows for which products may have a rate of their own; as many as the last are many. */
enum { AQ_HW_ROWS = 4 };
extern const uint32_t aq_hw_rows[AQ_HW_ROWS];

/* K of the products and size of the heads that rates are of, and the short K and the wide heads
 * that may have other rates. */
enum { AQ_HW_K = 2048, AQ_HW_K_SHORT = 768, AQ_HW_HEAD = 64, AQ_HW_HEAD_WIDE = 128 };
/* No model has shorter sums, and a percent of error at AQ_HW_K_SHORT would be many there. */
enum { AQ_HW_K_LEAST = 256 };

/* Attention, as struct aq_hw_side has it: over KV of one format, or with heads of one size. */
struct aq_hw_attention {
    double bytes_per_s, decode_head_s, flops_per_s, prefill_head_s;
};

/* A side that computes: the device (compute lane) or the host (host_compute lane). */
struct aq_hw_side {
    double product_flops_per_s[AQ_DTYPE_COUNT]; /* by compute type; many rows */
    double attention_flops_per_s;               /* prompt rows */
    double product_bytes_per_s;                 /* weights through a product of one row */
    double code_bytes_per_s[2];                 /* the same of int8 and int4; 0: as others */
    double attention_bytes_per_s;               /* keys and values past a decode row */
    double unpack_bytes_per_s;                  /* packed weights to the compute type */
    /* What a decode row, or a prompt's, takes for each query head besides. */
    double decode_head_s, prefill_head_s;
    /* Of what these rates promise, what products of aq_hw_rows[] rows reach, by the weights they
     * read: of floats, int8, int4.  0: all of it. */
    double product_share[3][AQ_HW_ROWS];
    /* Of product_flops_per_s, what products of AQ_HW_K_SHORT reach.  0: all of it. */
    double short_share[AQ_DTYPE_COUNT];
    /* Attention with heads of AQ_HW_HEAD_WIDE.  0: as with those of AQ_HW_HEAD. */
    struct aq_hw_attention wide;
    /* The share of the lesser of arithmetic and memory time that hides behind the greater. */
    double overlap;
    double threads; /* host threads that a busy op keeps busy; 0: none */
};

struct aq_hardware {
    struct aq_hw_side device, host;
    /* The device's threads and memory are the host's: cpu, with an emulated device or none. */
    bool device_on_host;
    double cores;
    double host_memory_bytes_per_s;   /* all together */
    double device_memory_bytes_per_s; /* all together; unused where the device is on the host */
    double h2d_bytes_per_s, d2h_bytes_per_s;
    double disk_read_bytes_per_s, disk_write_bytes_per_s;
    /* How much both directions carry together: 1, one waits for the other; 2, none disturbs the
     * other. */
    double link_duplex, disk_duplex;
    uint32_t disk_in_flight;     /* ops of a disk lane that share its rate at once */
    double copy_core_s_per_byte; /* host cores that move a byte between host and device: 0, DMA */
    double disk_core_s_per_byte; /* ... between disk and memory */
    double copy_host_bytes_per_byte;  /* host memory: 1 for DMA, 2 where the device's is that too */
    double overhead_s[AQ_LANE_COUNT]; /* of every op with work: launch, latency */
    double wake_s;                    /* until a thread that slept on another core goes on */
};

/* What an op takes besides, when its lane had nothing to do before it: a lane that is a thread
 * sleeps then, and so do those that compute with it.  Disks' latency has it in it already. */
double aq_hardware_wake(const struct aq_hardware *hw, enum aq_lane lane);

/* How far a K lies from AQ_HW_K (and more: 0) to AQ_HW_K_SHORT (1), as the sums per flop go: what a
 * sum costs besides its terms is paid K times less often. */
double aq_hardware_shortness(uint32_t k);

/* What limits an op or a lane.  Of the shared ones others go without what one takes. */
enum aq_resource {
    AQ_RESOURCE_CORES,
    AQ_RESOURCE_HOST_MEMORY,
    AQ_RESOURCE_DEVICE_MEMORY,
    AQ_RESOURCE_H2D,
    AQ_RESOURCE_D2H,
    AQ_RESOURCE_LINK, /* both directions together */
    AQ_RESOURCE_DISK_READ,
    AQ_RESOURCE_DISK_WRITE,
    AQ_RESOURCE_DISK, /* both directions together */
    AQ_RESOURCE_SHARED_COUNT,
    AQ_RESOURCE_FLOPS = AQ_RESOURCE_SHARED_COUNT, /* of one side's products or attention */
    AQ_RESOURCE_MEMORY,                           /* at the rate one side alone draws on it */
    AQ_RESOURCE_OVERHEAD,
    AQ_RESOURCE_COUNT,
};

const char *aq_resource_name(enum aq_resource r);

/* What an op needs of a machine. */
struct aq_op_need {
    double overhead_s; /* first, taking nothing from others */
    double work_s;     /* then, with the machine to itself */
    double
        shared_s[AQ_RESOURCE_SHARED_COUNT]; /* seconds of the whole of each; <= work_s as a rule */
    double threads;                         /* that compete for cores */
    enum aq_resource limit;                 /* what decides work_s */
};

/* work_s is not finite where the machine has no rate for what the op does. */
void aq_hardware_need(struct aq_op_need *ret, const struct aq_hardware *hw, const struct aq_op *op,
                      const struct aq_op_cost *cost, enum aq_dtype compute);

/* A machine without an accelerator, each side computing with so many threads: cores with 512-bit
 * bf16 products, two memory channels' worth of bandwidth, an NVMe disk, and for an emulated device
 * a link like PCIe 3.0 x16. */
void aq_hardware_default(struct aq_hardware *ret, uint32_t cores, uint32_t device_threads,
                         uint32_t host_threads);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * The threads of a block as fibers: see cuda_emu.cuh. */
#include "tests/cuda_emu/cuda_emu.cuh"

#include "base/half.h"
#include "base/sanitized.h"
#include "tests/cuda_emu/watch.h"

#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#if AQ_ADDRESS_SANITIZED
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>
#endif

enum {
    THREADS_MAX = 1024,
    STACK_BYTES = AQ_ADDRESS_SANITIZED ? 128 * 1024 : 64 * 1024,
    SHARED_MAX = 48 * 1024,
    GATHER_BYTES = 64, /* per lane */
    COPIES_MAX = 64,   /* under way, of a thread */
};

/* ---- switching between stacks ---- */

/* What is saved lies on the stack it belongs to. */
#if defined(__x86_64__)
struct context {
    void *sp;
};
/* Saves the registers that a callee must keep, and where the stack is; goes on where `to` was
 * saved. */
extern "C" void aq_emu_switch(void **save, void *to);
__asm__(".text\n"
        ".globl aq_emu_switch\n"
        ".type aq_emu_switch, @function\n"
        "aq_emu_switch:\n"
        "    pushq %rbp\n"
        "    pushq %rbx\n"
        "    pushq %r12\n"
        "    pushq %r13\n"
        "    pushq %r14\n"
        "    pushq %r15\n"
        "    movq %rsp, (%rdi)\n"
        "    movq %rsi, %rsp\n"
        "    popq %r15\n"
        "    popq %r14\n"
        "    popq %r13\n"
        "    popq %r12\n"
        "    popq %rbx\n"
        "    popq %rbp\n"
        "    ret\n"
        ".size aq_emu_switch, .-aq_emu_switch\n");

static void context_make(struct context *c, char *stack, void (*entry)(void))
{
    /* As if called: the return address, above it a word of padding, so that the stack is aligned
     * as after a call; below it six registers. */
    void **top = (void **)(void *)(stack + STACK_BYTES) - 2;
    top[0] = (void *)entry;
    top[1] = NULL;
    for (int i = 1; i <= 6; i++)
        top[-i] = NULL;
    c->sp = top - 6;
}

static void context_switch(struct context *from, struct context *to)
{
    aq_emu_switch(&from->sp, to->sp);
}
#else
#include <ucontext.h>
struct context {
    ucontext_t u;
};

static void context_make(struct context *c, char *stack, void (*entry)(void))
{
    getcontext(&c->u);
    c->u.uc_stack.ss_sp = stack;
    c->u.uc_stack.ss_size = STACK_BYTES;
    c->u.uc_link = NULL;
    makecontext(&c->u, entry, 0);
}

static void context_switch(struct context *from, struct context *to)
{
    swapcontext(&from->u, &to->u);
}
#endif

/* ---- state: one launch at a time, on one thread of the process ---- */

enum state { READY, AT_BARRIER, IN_WARP, DONE };

struct copy {
    char *to;
    const char *from;
    unsigned bytes, group;
};

struct fiber {
    struct context context;
    char *stack;
    enum state state;
    uint3 thread;
    int line; /* where it waits */
    struct copy copy[COPIES_MAX];
    unsigned copies, group; /* under way; the one that is not committed yet */
};

struct warp {
    alignas(16) char all[2][32 * GATHER_BYTES];
    unsigned arrived, generation;
};

static struct emu {
    struct fiber fiber[THREADS_MAX];
    struct warp warp[THREADS_MAX / 32];
    unsigned warp_order[THREADS_MAX / 32], lane_order[32];
    struct context scheduler;
    const void *scheduler_stack;
    size_t scheduler_bytes;
    struct fiber *current;
    unsigned threads, arrived, votes, last_votes;
    void (*fn)(void *);
    void *arg;
    char *stacks, *shared;
    uint64_t seed, launches;
} emu;

struct aq_emu_place aq_emu_here;
unsigned aq_emu_sm;

[[noreturn]] static void fail(const char *what, int line, int other)
{
    fprintf(stderr, "CUDA emulation: thread (%u,%u,%u) of block (%u,%u,%u): %s (lines %d, %d)\n",
            threadIdx.x, threadIdx.y, threadIdx.z, blockIdx.x, blockIdx.y, blockIdx.z, what, line,
            other);
    abort();
}

extern "C" void aq_emu_seed(uint64_t seed)
{
    emu.seed = seed;
}

extern "C" uint64_t aq_emu_launches(void)
{
    return emu.launches;
}

void *aq_emu_shared(void)
{
    return emu.shared;
}

/* ---- fibers ---- */

static void enter_fiber(struct fiber *f)
{
    emu.current = f;
    AQ_WATCH(aq_watch_thread((unsigned)(f - emu.fiber)));
    aq_emu_here.thread = f->thread;
    aq_emu_here.lane = (unsigned)(f - emu.fiber) % 32;
#if AQ_ADDRESS_SANITIZED
    void *fake;
    __sanitizer_start_switch_fiber(&fake, f->stack, STACK_BYTES);
#endif
    context_switch(&emu.scheduler, &f->context);
#if AQ_ADDRESS_SANITIZED
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

static void leave_fiber(bool for_good)
{
    struct fiber *f = emu.current;
#if AQ_ADDRESS_SANITIZED
    void *fake;
    __sanitizer_start_switch_fiber(for_good ? NULL : &fake, emu.scheduler_stack,
                                   emu.scheduler_bytes);
#else
    (void)for_good;
#endif
    context_switch(&f->context, &emu.scheduler);
#if AQ_ADDRESS_SANITIZED
    __sanitizer_finish_switch_fiber(fake, NULL, NULL);
#endif
}

static void fiber_main(void)
{
#if AQ_ADDRESS_SANITIZED
    __sanitizer_finish_switch_fiber(NULL, &emu.scheduler_stack, &emu.scheduler_bytes);
#endif
    emu.fn(emu.arg);
    emu.current->state = DONE;
    leave_fiber(true);
}

int aq_emu_barrier(int value, int line)
{
    struct fiber *f = emu.current;
    for (unsigned i = 0; i < emu.threads && emu.arrived; i++) {
        const struct fiber *other = &emu.fiber[i];
        if (other->state != AT_BARRIER)
            continue;
        if (other->line != line)
            fail("waits at another barrier than others", line, other->line);
        break;
    }
    emu.votes += value != 0;
    if (++emu.arrived < emu.threads) {
        f->state = AT_BARRIER;
        f->line = line;
        leave_fiber(false);
        AQ_WATCH(aq_watch_barrier((unsigned)(f - emu.fiber)));
        return (int)emu.last_votes;
    }
    AQ_WATCH(aq_watch_barrier((unsigned)(f - emu.fiber)));
    emu.last_votes = emu.votes;
    emu.votes = emu.arrived = 0;
    for (unsigned i = 0; i < emu.threads; i++) {
        if (emu.fiber[i].state == AT_BARRIER)
            emu.fiber[i].state = READY;
    }
    return (int)emu.last_votes;
}

void aq_emu_check_mask(unsigned mask, int line)
{
    if (mask != 0xffffffffu)
        fail("a warp operation for part of a warp", line, line);
}

void *aq_emu_gather(const void *value, size_t bytes, int line, void (*last)(void *all))
{
    struct fiber *f = emu.current;
    unsigned index = (unsigned)(f - emu.fiber), first = index / 32 * 32;
    struct warp *w = &emu.warp[index / 32];
    char *all = w->all[w->generation % 2];
    if (bytes > GATHER_BYTES)
        fail("too much for a warp operation", line, line);
    if (bytes)
        memcpy(all + index % 32 * bytes, value, bytes);
    f->line = line;
    if (++w->arrived < 32) {
        f->state = IN_WARP;
        leave_fiber(false);
        if (!bytes) /* a __syncwarp() */
            AQ_WATCH(aq_watch_warp(index));
        return all;
    }
    if (!bytes)
        AQ_WATCH(aq_watch_warp(index));
    w->arrived = 0;
    w->generation++;
    for (unsigned i = first; i < first + 32; i++) {
        if (emu.fiber[i].line != line)
            fail("is in another warp operation than its warp", line, emu.fiber[i].line);
        emu.fiber[i].state = READY;
    }
    if (last)
        last(all);
    return all;
}

/* ---- blocks ---- */

static uint64_t draw(void)
{
    emu.seed = emu.seed * 6364136223846793005u + 1442695040888963407u;
    return emu.seed >> 33;
}

/* 0 to n - 1 in some order: ascending where no seed was given. */
static void draw_order(unsigned *order, unsigned n)
{
    for (unsigned i = 0; i < n; i++) {
        unsigned j = emu.seed ? (unsigned)(draw() % (i + 1)) : i;
        order[i] = order[j];
        order[j] = i;
    }
}

static void start_block(dim3 block)
{
    for (unsigned i = 0; i < emu.threads; i++) {
        struct fiber *f = &emu.fiber[i];
        f->stack = emu.stacks + (size_t)i * STACK_BYTES;
#if AQ_ADDRESS_SANITIZED
        __asan_unpoison_memory_region(f->stack, STACK_BYTES);
#endif
        f->state = READY;
        f->copies = f->group = 0;
        f->thread = {i % block.x, i / block.x % block.y, i / block.x / block.y};
        memset(f->stack, 0xa5, 64);
        context_make(&f->context, f->stack, fiber_main);
    }
    for (unsigned i = 0; i < emu.threads / 32; i++)
        emu.warp[i].arrived = 0;
    emu.arrived = emu.votes = 0;
}

/* Runs a warp as far as it comes without the others; false where it did not move. */
static bool run_warp(struct fiber *first)
{
    bool moved = false;
    for (bool again = true; again;) {
        again = false;
        for (unsigned i = 0; i < 32; i++) {
            struct fiber *f = &first[emu.lane_order[i]];
            if (f->state != READY)
                continue;
            enter_fiber(f);
            moved = again = true;
        }
    }
    return moved;
}

/* One warp after the other runs ahead of the rest, to its next barrier: what it writes too early,
 * or reads too early, shows. */
static void run_block(void)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (unsigned i = 0; i < emu.threads / 32; i++)
            moved |= run_warp(&emu.fiber[emu.warp_order[i] * 32]);
    }
    for (unsigned i = 0; i < emu.threads; i++) {
        if (emu.fiber[i].state != DONE)
            fail("waits for threads that never come", emu.fiber[i].line, 0);
        for (unsigned b = 0; b < 64; b++) {
            if ((unsigned char)emu.fiber[i].stack[b] != 0xa5)
                fail("overran its stack", 0, 0);
        }
    }
}

static size_t shared_limit(unsigned sm)
{
    switch (sm) {
    case 75: return 64 * 1024;
    case 80: return 163 * 1024;
    case 90:
    case 100: return 227 * 1024;
    default: return 99 * 1024;
    }
}

static std::mutex allowed_lock;
static std::map<const void *, size_t> allowed; /* kernels that were allowed more */

int aq_emu_allow_shared(unsigned sm, const void *kernel, size_t bytes)
{
    std::lock_guard<std::mutex> lock(allowed_lock);
    if (bytes > shared_limit(sm))
        return 1; /* cudaErrorInvalidValue */
    allowed[kernel] = bytes;
    return 0;
}

size_t aq_emu_allowed_shared(const void *kernel)
{
    std::lock_guard<std::mutex> lock(allowed_lock);
    auto found = allowed.find(kernel);
    return found == allowed.end() ? (size_t)SHARED_MAX : found->second;
}

int aq_emu_launch(const struct aq_emu_grid *g, void (*fn)(void *), void *arg, size_t arg_bytes)
{
    dim3 grid = g->grid, block = g->block;
    size_t shared_bytes = g->shared_bytes;
    emu.threads = block.x * block.y * block.z;
    aq_emu_here.grid_dim = grid;
    aq_emu_here.block_dim = block;
    if (!emu.threads || emu.threads > THREADS_MAX || emu.threads % 32)
        fail("threads of a block are whole warps, at most 1024", 0, 0);
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535)
        fail("a grid has 1 to 65535 blocks along y and z, and at least one along x", 0, 0);
    if (shared_bytes > g->shared_max)
        fail("more shared memory than its kernel is allowed", 0, 0);
    if (!emu.stacks) {
        emu.stacks = (char *)mmap(NULL, (size_t)THREADS_MAX * STACK_BYTES, PROT_READ | PROT_WRITE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (emu.stacks == MAP_FAILED)
            abort();
    }
    emu.fn = fn;
    emu.arg = arg;
    emu.launches++;
    uint64_t blocks = (uint64_t)grid.x * grid.y * grid.z;
    bool backwards = emu.seed && draw() % 2;
    const struct aq_watch_launch watched = {arg,         arg_bytes, emu.stacks,
                                            STACK_BYTES, &emu,      sizeof(emu)};
    AQ_WATCH(aq_watch_begin(&watched));
    (void)watched;
    for (uint64_t i = 0; i < blocks; i++) {
        uint64_t b = backwards ? blocks - 1 - i : i;
        aq_emu_here.block = {(unsigned)(b % grid.x), (unsigned)(b / grid.x % grid.y),
                             (unsigned)(b / grid.x / grid.y)};
        /* Exactly as large as was asked for, so that an address sanitizer sees its ends. */
        emu.shared = (char *)aligned_alloc(16, (shared_bytes + 15) / 16 * 16 + !shared_bytes * 16);
        if (!emu.shared)
            abort();
        memset(emu.shared, 0xff, (shared_bytes + 15) / 16 * 16);
        draw_order(emu.warp_order, emu.threads / 32);
        draw_order(emu.lane_order, 32);
        start_block(block);
        AQ_WATCH(aq_watch_block(b, emu.shared, (shared_bytes + 15) / 16 * 16));
        run_block();
        free(emu.shared);
    }
    AQ_WATCH(aq_watch_end());
    return 0;
}

/* ---- tensor cores ---- */

struct fragment {
    uint32_t a[4], b[2];
    float c[4];
};

static float widen(uint32_t pair, unsigned half, bool bf16)
{
    uint16_t bits = (uint16_t)(pair >> (16 * half));
    return bf16 ? aq_f32_from_bf16(bits) : aq_f32_from_f16(bits);
}

/* Layouts: PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type", and m16n8k8, whose
 * fragments are the first halves of those.  Products of two such numbers are exact in f32. */
static void multiply(void *all, unsigned k_count, bool bf16)
{
    struct fragment *lane = (struct fragment *)all;
    float a[16][16], b[16][8];
    for (unsigned l = 0; l < 32; l++) {
        for (unsigned half = 0; half < 2; half++) {
            for (unsigned r = 0; r < k_count / 4; r++)
                a[l / 4 + r % 2 * 8][l % 4 * 2 + half + r / 2 * 8] =
                    widen(lane[l].a[r], half, bf16);
            for (unsigned r = 0; r < k_count / 8; r++)
                b[l % 4 * 2 + half + r * 8][l / 4] = widen(lane[l].b[r], half, bf16);
        }
    }
    for (unsigned l = 0; l < 32; l++) {
        for (unsigned i = 0; i < 4; i++) {
            float sum = lane[l].c[i];
            for (unsigned k = 0; k < k_count; k++)
                sum += a[l / 4 + i / 2 * 8][k] * b[k][l % 4 * 2 + i % 2];
            lane[l].c[i] = sum;
        }
    }
}

template <unsigned k_count, bool bf16> static void multiply_as(void *all)
{
    multiply(all, k_count, bf16);
}

void aq_emu_mma(float c[4], const uint32_t *a, const uint32_t *b, unsigned k, bool bf16, int line)
{
    struct fragment f = {};
    memcpy(f.a, a, k / 4 * sizeof(*a));
    memcpy(f.b, b, k / 8 * sizeof(*b));
    memcpy(f.c, c, sizeof(f.c));
    if (aq_emu_sm < 80 && (bf16 || k > 8))
        fail("this compute capability has no such mma", line, line);
    void (*last)(void *) = k == 8  ? multiply_as<8, false>
                           : !bf16 ? multiply_as<16, false>
                                   : multiply_as<16, true>;
    const struct fragment *all = (const struct fragment *)aq_emu_gather(&f, sizeof(f), line, last);
    memcpy(c, all[aq_emu_here.lane].c, sizeof(f.c));
}

void aq_emu_ldmatrix(uint32_t r[4], const void *row, bool transposed, int line)
{
    if ((uintptr_t)row % 16)
        fail("ldmatrix: a row that is not aligned to 16 bytes", line, line);
    AQ_WATCH(aq_watch_access(row, 16, AQ_WATCH_READ, __builtin_return_address(0)));
    const char *const *all = (const char *const *)aq_emu_gather(&row, sizeof(row), line, NULL);
    unsigned lane = aq_emu_here.lane;
    for (unsigned m = 0; m < 4; m++) {
        uint16_t pair[2];
        for (unsigned i = 0; i < 2; i++) {
            unsigned at_row = transposed ? lane % 4 * 2 + i : lane / 4;
            unsigned at_column = transposed ? lane / 4 : lane % 4 * 2 + i;
            memcpy(&pair[i], all[m * 8 + at_row] + 2 * at_column, 2);
        }
        r[m] = pair[0] | (uint32_t)pair[1] << 16;
    }
}

/* ---- two f16 in a register ---- */

/* To f32 so that rounding it to fewer bits is as if it were rounded once: what is cut off makes the
 * last bit odd. */
static float rounded_to_odd(double v)
{
    float f = (float)v;
    if (isnan(v) || (double)f == v)
        return f;
    unsigned bits = __float_as_uint(f) - (fabs((double)f) > fabs(v));
    return __uint_as_float(bits | 1);
}

uint32_t aq_emu_pair_of_codes(uint32_t codes, uint32_t scales, uint32_t minima)
{
    uint32_t pair = 0;
    for (unsigned i = 0; i < 2; i++) {
        double scale = aq_f32_from_f16((uint16_t)(scales >> 16 * i));
        double minimum = aq_f32_from_f16((uint16_t)(minima >> 16 * i));
        double v = (codes >> 16 * i & 0xffff) * scale + minimum; /* exact */
        pair |= (uint32_t)aq_f16_from_f32(rounded_to_odd(v > 65504 ? 65504 : v)) << 16 * i;
    }
    return pair;
}

/* ---- copies that run on their own ---- */

void aq_emu_copy_async(void *to, const void *from, unsigned bytes, int line)
{
    struct fiber *f = emu.current;
    if ((uintptr_t)to % 16 || (bytes && (uintptr_t)from % 16))
        fail("cp.async: an address that is not aligned to 16 bytes", line, line);
    if (f->copies == COPIES_MAX)
        fail("too many copies under way", line, line);
    AQ_WATCH(aq_watch_access(to, 16, AQ_WATCH_WRITE, __builtin_return_address(0)));
    if (bytes)
        AQ_WATCH(aq_watch_access(from, bytes, AQ_WATCH_READ, __builtin_return_address(0)));
    f->copy[f->copies++] = {(char *)to, (const char *)from, bytes, f->group};
}

void aq_emu_copy_commit(void)
{
    emu.current->group++;
}

void aq_emu_copy_wait(unsigned left)
{
    struct fiber *f = emu.current;
    unsigned done = 0;
    for (; done < f->copies && f->copy[done].group + left < f->group; done++) {
        const struct copy *c = &f->copy[done];
        AQ_WATCH(aq_watch_access(c->to, 16, AQ_WATCH_WRITE, __builtin_return_address(0)));
        memset(c->to, 0, 16);
        if (c->bytes)
            memcpy(c->to, c->from, c->bytes);
    }
    memmove(f->copy, f->copy + done, (f->copies - done) * sizeof(*f->copy));
    f->copies -= done;
}

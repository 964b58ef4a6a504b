/* SPDX-License-Identifier: Apache-2.0
 * Races, reach and alignment of emulated kernels: see watch.h. */
#include "tests/cuda_emu/watch.h"

#include "tests/cuda_emu/cuda_emu.cuh"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <unordered_map>
#include <utility>
#include <vector>

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

namespace
{

enum {
    THREADS_MAX = 1024,
    WARP = 32,
    WORD = 4,                  /* accesses are remembered by words and the bytes in them */
    WORDS = 4096 / WORD,       /* of a page */
    RECORDS = 4,               /* of a word */
    PAGES_KEPT = 1024,         /* from one launch to the next */
    PAGES_AT_HAND = 1024,      /* that are found without looking */
    SHARED_BYTES = 228 * 1024, /* more than any device's blocks have */
};

/* An access as others are compared with it. */
struct record {
    uint32_t block, barriers, warps;
    uint16_t thread;
    uint8_t bytes, kind; /* which of the word; 0: no record */
    const void *pc;
};

struct word {
    uint64_t mark; /* of the launch, or the block, that the records are of */
    uint32_t next; /* the one that goes when there is no room */
    record r[RECORDS];
};

struct page {
    word w[WORDS];
};

struct array {
    uintptr_t first = 1, end = 0;
};

/* What a launch knows of itself; the emulation has one launch at a time. */
struct watch {
    aq_watch_launch launch = {};
    uint64_t launches = 0;
    uint32_t block = 0;
    unsigned thread = 0;
    const char *shared = NULL;
    size_t shared_bytes = 0;
    uint32_t barriers[THREADS_MAX] = {}, warps[THREADS_MAX] = {}, passed[THREADS_MAX] = {};
    uint32_t skipped = 0;
    uint64_t accesses = 0;
    std::unordered_map<uintptr_t, std::unique_ptr<page>> pages;
    std::pair<uintptr_t, page *> at_hand[PAGES_AT_HAND] = {};
    std::vector<word> of_shared;
    std::set<std::pair<const void *, const void *>> told;
    void (*tell)(enum aq_watch_finding what, const char *text) = NULL;
    array last; /* the array touched last, as it was at: */
    uint64_t last_version = 0;
};

watch now;

/* Arrays come and go on any thread of the host's. */
struct known {
    std::mutex lock;
    std::map<uintptr_t, size_t> arrays;
    std::atomic<uint64_t> version{1};
};

known known_arrays;

/* Launchers are compiled like kernels, and run on other threads while a kernel does. */
__thread bool in_kernel;

/* ---- telling ---- */

/* As addr2line takes it. */
void place(char *text, size_t bytes, const void *pc)
{
    Dl_info where;
    if (!pc || !dladdr(pc, &where) || !where.dli_fname)
        snprintf(text, bytes, "%p", pc);
    else
        snprintf(text, bytes, "%s+0x%zx", where.dli_fname,
                 (size_t)((const char *)pc - 1 - (const char *)where.dli_fbase));
}

__attribute__((format(printf, 4, 5))) void tell(enum aq_watch_finding what, const void *pc,
                                                const void *other, const char *format, ...)
{
    static const char *const names[AQ_WATCH_FINDINGS] = {"race", "reach", "alignment"};
    char text[2048], here[512], there[512];
    if (!now.told.insert({pc, other}).second)
        return;
    place(here, sizeof(here), pc);
    int n = snprintf(text, sizeof(text), "%s: %s ", names[what], here);
    if (other) {
        place(there, sizeof(there), other);
        n += snprintf(text + n, sizeof(text) - (size_t)n, "after %s ", there);
    }
    va_list args;
    va_start(args, format);
    vsnprintf(text + n, sizeof(text) - (size_t)n, format, args);
    va_end(args);
    if (now.tell) {
        now.tell(what, text);
        return;
    }
    fprintf(stderr, "CUDA emulation: %s\n(addr2line -Cfie FILE OFFSET says where that is)\n", text);
    abort();
}

/* ---- reach ---- */

bool lies_in(const void *p, size_t bytes, const void *base, size_t room)
{
    uintptr_t at = (uintptr_t)p - (uintptr_t)base;
    return at < room && bytes <= room - at;
}

bool is_known(const void *p, size_t bytes)
{
    uintptr_t at = (uintptr_t)p;
    if (now.last_version == known_arrays.version && now.last.first <= at &&
        at + bytes <= now.last.end)
        return true;
    std::lock_guard<std::mutex> hold(known_arrays.lock);
    auto next = known_arrays.arrays.upper_bound(at);
    if (next == known_arrays.arrays.begin())
        return false;
    auto a = std::prev(next);
    if (at + bytes > a->first + a->second)
        return false;
    now.last.first = a->first;
    now.last.end = a->first + a->second;
    now.last_version = known_arrays.version;
    return true;
}

/* ---- races ---- */

bool ordered(const record &a, const record &b)
{
    if (a.block != b.block)
        return false;
    if (a.thread == b.thread || a.barriers != b.barriers)
        return true;
    return a.thread / WARP == b.thread / WARP && a.warps != b.warps;
}

bool conflict(const record &a, const record &b)
{
    bool both_read = a.kind == AQ_WATCH_READ && b.kind == AQ_WATCH_READ;
    bool both_atomic = a.kind == AQ_WATCH_ATOMIC && b.kind == AQ_WATCH_ATOMIC;
    return (a.bytes & b.bytes) && !both_read && !both_atomic;
}

const char *did(const record &r)
{
    return r.kind == AQ_WATCH_READ ? "reads" : r.kind == AQ_WATCH_WRITE ? "writes" : "changes";
}

void tell_race(const record &me, const record &other, bool is_shared)
{
    tell(AQ_WATCH_RACE, me.pc, other.pc,
         "in %s memory: thread %u of block %u %s (behind %u barriers, %u of its warp) what thread "
         "%u of block %u %s (behind %u, %u), and nothing orders them",
         is_shared ? "shared" : "global", me.thread, me.block, did(me), me.barriers, me.warps,
         other.thread, other.block, did(other), other.barriers, other.warps);
}

/* Finds the place for the record: that of one it makes superfluous, an empty one, or the next. */
void keep(word *w, const record &me)
{
    record *to = NULL;
    for (record &r : w->r) {
        bool mine = r.block == me.block && r.thread == me.thread && r.kind == me.kind;
        bool within = (r.bytes & ~me.bytes) == 0;
        if (r.kind && within && (mine || me.kind == AQ_WATCH_WRITE))
            r.kind = 0;
        if (!r.kind && !to)
            to = &r;
    }
    if (!to)
        to = &w->r[w->next++ % RECORDS];
    *to = me;
}

void compare(word *w, uint64_t mark, const record &me, bool is_shared)
{
    if (w->mark != mark) {
        memset(w->r, 0, sizeof(w->r));
        w->mark = mark;
    }
    for (const record &r : w->r) {
        bool again = r.kind == me.kind && r.block == me.block && r.thread == me.thread &&
                     r.barriers == me.barriers && r.warps == me.warps && (me.bytes & ~r.bytes) == 0;
        if (again)
            return; /* whoever came between was compared with it */
    }
    for (const record &r : w->r) {
        if (r.kind && conflict(me, r) && !ordered(me, r))
            tell_race(me, r, is_shared);
    }
    keep(w, me);
}

page *page_of(uintptr_t at)
{
    uintptr_t number = at / 4096;
    auto &near = now.at_hand[number % PAGES_AT_HAND];
    if (near.first == number)
        return near.second;
    std::unique_ptr<page> &p = now.pages[number];
    if (!p)
        p.reset(new page());
    near = {number, p.get()};
    return p.get();
}

void look_for_races(const void *p, size_t bytes, enum aq_watch_kind kind, const void *pc,
                    bool is_shared)
{
    unsigned t = now.thread;
    uintptr_t first = (uintptr_t)p, end = first + bytes;
    record me = {now.block, now.barriers[t], now.warps[t], (uint16_t)t, 0, (uint8_t)kind, pc};
    for (uintptr_t at = first / WORD * WORD; at < end; at += WORD) {
        unsigned from = at < first ? (unsigned)(first - at) : 0;
        unsigned to = end - at < WORD ? (unsigned)(end - at) : (unsigned)WORD;
        me.bytes = (uint8_t)((1u << to) - (1u << from));
        if (is_shared)
            compare(&now.of_shared[(at - (uintptr_t)now.shared) / WORD],
                    now.launches << 32 | now.block, me, true);
        else
            compare(&page_of(at)->w[at % 4096 / WORD], now.launches << 32, me, false);
    }
}

} // namespace

/* ---- for tests ---- */

void aq_watch_listen(void (*tell)(enum aq_watch_finding what, const char *text))
{
    now.tell = tell;
    now.told.clear();
}

void aq_watch_array(const void *base, size_t bytes)
{
    std::lock_guard<std::mutex> hold(known_arrays.lock);
    known_arrays.arrays[(uintptr_t)base] = bytes;
    known_arrays.version++;
}

void aq_watch_forget(const void *base)
{
    std::lock_guard<std::mutex> hold(known_arrays.lock);
    known_arrays.arrays.erase((uintptr_t)base);
    known_arrays.version++;
}

void aq_watch_skip_barrier(uint32_t n)
{
    now.skipped = n;
}

uint64_t aq_watch_accesses(void)
{
    return now.accesses;
}

/* ---- for the emulation ---- */

void aq_watch_begin(const struct aq_watch_launch *l)
{
    now.launch = *l;
    now.launches++;
    /* What was before is of no use. */
    if (now.pages.size() > PAGES_KEPT) {
        now.pages.clear();
        for (auto &near : now.at_hand)
            near = {};
    }
    now.of_shared.resize(SHARED_BYTES / WORD);
    in_kernel = true;
}

void aq_watch_end(void)
{
    in_kernel = false;
}

void aq_watch_block(uint64_t block, const char *shared, size_t shared_bytes)
{
    now.block = (uint32_t)block;
    now.shared = shared;
    now.shared_bytes = shared_bytes;
    memset(now.barriers, 0, sizeof(now.barriers));
    memset(now.warps, 0, sizeof(now.warps));
    memset(now.passed, 0, sizeof(now.passed));
}

void aq_watch_thread(unsigned thread)
{
    now.thread = thread;
}

void aq_watch_barrier(unsigned thread)
{
    if (++now.passed[thread] != now.skipped)
        now.barriers[thread]++;
}

void aq_watch_warp(unsigned thread)
{
    now.warps[thread]++;
}

void aq_watch_access(const void *p, size_t bytes, enum aq_watch_kind kind, const void *pc)
{
    const aq_watch_launch *l = &now.launch;
    if (!in_kernel || lies_in(p, bytes, l->stacks + now.thread * l->stack_bytes, l->stack_bytes) ||
        lies_in(p, bytes, &aq_emu_here, sizeof(aq_emu_here)) || p == &aq_emu_sm ||
        lies_in(p, bytes, l->arg, l->arg_bytes) || lies_in(p, bytes, l->own, l->own_bytes))
        return;
    now.accesses++;
    bool is_shared = lies_in(p, bytes, now.shared, now.shared_bytes);
    if (is_shared || is_known(p, bytes))
        look_for_races(p, bytes, kind, pc, is_shared);
    else
        tell(AQ_WATCH_REACH, pc, NULL,
             "thread %u of block %u %s %zu bytes that no array of the launch has", now.thread,
             now.block, kind == AQ_WATCH_READ ? "reads" : "writes", bytes);
}

/* ---- for the compiler: what -fsanitize=thread calls ---- */

static void look(const void *p, size_t bytes, enum aq_watch_kind kind, const void *pc)
{
    aq_watch_access(p, bytes, kind, pc);
}

static void look_aligned(const void *p, size_t bytes, enum aq_watch_kind kind, const void *pc)
{
    if (in_kernel && (uintptr_t)p % bytes)
        tell(AQ_WATCH_ALIGNMENT, pc, NULL, "thread %u of block %u %s %zu bytes at an odd address",
             now.thread, now.block, kind == AQ_WATCH_READ ? "reads" : "writes", bytes);
    aq_watch_access(p, bytes, kind, pc);
}

#define CALLER __builtin_return_address(0)
#define ACCESS(name, bytes, look, kind)                                                            \
    void __tsan_##name##bytes(void *p);                                                            \
    void __tsan_##name##bytes(void *p)                                                             \
    {                                                                                              \
        look(p, bytes, kind, CALLER);                                                              \
    }
#define EACH_SIZE(name, look, kind)                                                                \
    ACCESS(name, 1, look, kind)                                                                    \
    ACCESS(name, 2, look, kind)                                                                    \
    ACCESS(name, 4, look, kind)                                                                    \
    ACCESS(name, 8, look, kind)                                                                    \
    ACCESS(name, 16, look, kind)

extern "C" {
EACH_SIZE(read, look_aligned, AQ_WATCH_READ)
EACH_SIZE(write, look_aligned, AQ_WATCH_WRITE)
EACH_SIZE(volatile_read, look_aligned, AQ_WATCH_READ)
EACH_SIZE(volatile_write, look_aligned, AQ_WATCH_WRITE)
EACH_SIZE(unaligned_read, look, AQ_WATCH_READ)
EACH_SIZE(unaligned_write, look, AQ_WATCH_WRITE)

#define RANGE(name, kind)                                                                          \
    void __tsan_##name(void *p, size_t bytes);                                                     \
    void __tsan_##name(void *p, size_t bytes)                                                      \
    {                                                                                              \
        look(p, bytes, kind, CALLER);                                                              \
    }
RANGE(read_range, AQ_WATCH_READ)
RANGE(write_range, AQ_WATCH_WRITE)

/* Clang's, for which GCC calls the C library. */
void *__tsan_memcpy(void *to, const void *from, size_t bytes);
void *__tsan_memcpy(void *to, const void *from, size_t bytes)
{
    look(from, bytes, AQ_WATCH_READ, CALLER);
    look(to, bytes, AQ_WATCH_WRITE, CALLER);
    return memcpy(to, from, bytes);
}
void *__tsan_memset(void *to, int value, size_t bytes);
void *__tsan_memset(void *to, int value, size_t bytes)
{
    look(to, bytes, AQ_WATCH_WRITE, CALLER);
    return memset(to, value, bytes);
}

void __tsan_init(void);
void __tsan_init(void) {}
void __tsan_func_entry(void *caller);
void __tsan_func_entry(void *) {}
void __tsan_func_exit(void);
void __tsan_func_exit(void) {}
void __tsan_vptr_read(void **vptr);
void __tsan_vptr_read(void **) {}
void __tsan_vptr_update(void **vptr, void *value);
void __tsan_vptr_update(void **, void *) {}
}

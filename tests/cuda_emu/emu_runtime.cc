/* SPDX-License-Identifier: Apache-2.0
 * The CUDA runtime, played: see control.h. */
#include "tests/cuda_emu/control.h"
#include "tests/cuda_emu/emu_engines.cuh"
#include "tests/cuda_emu/emu_stream.cuh"
#include "tests/cuda_emu/watch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

struct CUevent_st {
    uint64_t recorded = 0, over = 0; /* times it was put into a stream, and reached there */
    std::chrono::steady_clock::time_point at;
    uint64_t at_ns = 0; /* by the device's own time */
};

enum item_kind { WORK, RECORD, WAIT };

struct item {
    item_kind kind;
    std::function<void()> work;
    CUevent_st *event;
    uint64_t time; /* which recording of the event */
    aq_emu_cost cost = {};
};

struct CUstream_st {
    std::deque<item> items;
    bool busy = false;     /* the front one is being carried out */
    uint64_t over_ns = 0;  /* when the last one ended, by the device's own time */
    bool captures = false; /* what is put in goes here instead: */
    std::vector<item> captured;
    std::thread::id capturer; /* who may put it in, and what it may not do meanwhile */
};

/* A graph, and what it is made into to be launched: work in order. */
struct CUgraph_st {
    std::vector<item> work;
};
struct CUgraphExec_st {
    std::vector<item> work;
};

/* What the driver takes for itself. */
static const uint64_t CONTEXT_BYTES = 5u << 20;
static const uint64_t GRAPH_BYTES = 16u << 10;

namespace
{

struct runtime {
    std::mutex lock;
    std::condition_variable changed;
    std::map<uintptr_t, size_t> memory, pinned; /* base, bytes */
    std::vector<CUstream_st *> streams;
    std::set<CUevent_st *> events;
    std::set<CUgraphExec_st *> graphs;
    std::set<const void *> loaded; /* kernels: for good */
    /* What cudaGetLastError tells a thread, and with it its next launch.  (Not thread_local: the
     * leak checker does not survive that in a module that is loaded on demand.) */
    std::map<std::thread::id, cudaError> last_error;
    std::vector<std::unique_ptr<CUevent_st>> gone; /* streams may still wait for them */
    std::thread device;
    bool started = false, stop = false, working = false;
    unsigned windows = 0; /* who may touch device memory now */
    uint64_t total = 2ull << 30, taken = 0, seed = 0, bytes_home = 0;
    uint64_t table_page = 512, kernel_bytes = 16u << 10; /* aq_emu_driver_takes */
    aq_emu_counts counts = {};
    int64_t fail_after = -1;
    int gpus = 1, driver = 13000, host_addresses = 1;
    aq_emu_capture_failure capture_fails = AQ_EMU_CAPTURES;
    cudaError count_error = cudaSuccess, failed = cudaSuccess;
    size_t at = 0; /* the stream served last */
    bool held = false;
    uint32_t pauses = 0; /* of 1000 items */
    uint64_t puts = 0;
    aq_emu_times times;

    ~runtime()
    {
        {
            std::lock_guard<std::mutex> hold(lock);
            stop = true;
        }
        changed.notify_all();
        if (started && device.get_id() == std::this_thread::get_id())
            device.detach(); /* it is the one that ends the program */
        else if (started)
            device.join();
    }
};

runtime rt;

[[noreturn]] void misuse(const char *what)
{
    fprintf(stderr, "CUDA emulation: %s\n", what);
    abort();
}

void protect(int mode)
{
    for (auto &m : rt.memory)
        mprotect((void *)m.first, m.second, mode);
}

/* Under the lock: opens device memory to whoever runs, and closes it behind the last. */
void open_window()
{
    if (rt.windows++ == 0)
        protect(PROT_READ | PROT_WRITE);
}

void close_window()
{
    if (--rt.windows == 0)
        protect(PROT_NONE);
}

bool holds(const std::map<uintptr_t, size_t> &ranges, const void *p, size_t bytes, bool partly)
{
    uintptr_t base = (uintptr_t)p;
    for (auto &r : ranges) {
        if (partly ? base < r.first + r.second && r.first < base + bytes
                   : r.first <= base && base + bytes <= r.first + r.second)
            return true;
    }
    return false;
}

/* Under the lock: a call that breaks the capture of whoever makes it (waiting, allocating, the
 * default stream), CUDA Programming Guide, "Prohibited and Unhandled Operations" and
 * cudaThreadExchangeStreamCaptureMode. */
void check_no_capture(const char *call)
{
    for (const CUstream_st *s : rt.streams) {
        if (s->captures && s->capturer == std::this_thread::get_id())
            misuse(call);
    }
}

/* Of a call that fails without breaking the device, under the lock: the next launch is told of it
 * too. */
cudaError refuse(cudaError why)
{
    rt.last_error[std::this_thread::get_id()] = why;
    return why;
}

/* Under the lock: of the device's memory, with what the driver takes. */
uint64_t free_memory()
{
    uint64_t pinned = 0;
    for (auto &p : rt.pinned)
        pinned += p.second;
    uint64_t gone = rt.taken + pinned / rt.table_page + rt.loaded.size() * rt.kernel_bytes;
    return rt.total > gone ? rt.total - gone : 0;
}

/* What an allocation takes: of large ones, whole pages of 2 MiB. */
uint64_t room_of(uint64_t bytes)
{
    const uint64_t page = 2u << 20;
    return bytes >= page ? (bytes + page - 1) / page * page : bytes;
}

uint64_t draw()
{
    rt.seed = rt.seed * 6364136223846793005u + 1442695040888963407u;
    return rt.seed >> 33;
}

bool can_start(const CUstream_st *s)
{
    if (s->items.empty() || s->busy)
        return false;
    const item &i = s->items.front();
    return i.kind != WAIT || i.event->over >= i.time;
}

/* The next stream to serve: any that can, often the same as before, so that it runs far ahead. */
CUstream_st *choose()
{
    std::vector<CUstream_st *> able;
    size_t count = rt.streams.size();
    for (size_t i = 1; i <= count; i++) {
        CUstream_st *s = rt.streams[(rt.at + i) % count];
        if (can_start(s))
            able.push_back(s);
    }
    if (able.empty() || rt.held)
        return NULL;
    CUstream_st *s = able[0];
    if (rt.times.on()) {
        for (CUstream_st *other : able) {
            if (rt.times.before(other, other->items.front().cost, other->over_ns, s,
                                s->items.front().cost, s->over_ns))
                s = other;
        }
        return s;
    }
    if (rt.seed)
        s = draw() % 4 && able.back() == rt.streams[rt.at % count] ? able.back()
                                                                   : able[draw() % able.size()];
    for (size_t i = 0; i < count; i++) {
        if (rt.streams[i] == s)
            rt.at = i;
    }
    return s;
}

void fail_now()
{
    rt.failed = cudaErrorIllegalAddress;
    for (CUstream_st *s : rt.streams) {
        while (s->items.size() > (s->busy ? 1 : 0))
            s->items.pop_back();
    }
}

/* When the item ends on the device. */
void keep_time(CUstream_st *s, const item &i)
{
    if (i.kind == WAIT)
        s->over_ns = std::max(s->over_ns, i.event->at_ns);
    s->over_ns = rt.times.run(s, i.cost, s->over_ns);
    if (i.kind == RECORD)
        i.event->at_ns = s->over_ns;
}

void carry_out(CUstream_st *s, std::unique_lock<std::mutex> &hold)
{
    item &i = s->items.front();
    s->busy = true;
    if (rt.times.on())
        keep_time(s, i);
    if (i.kind == WORK && rt.fail_after >= 0 && rt.fail_after-- == 0) {
        fail_now();
    } else if (i.kind == WORK) {
        bool pauses = rt.pauses && draw() % 1000 < rt.pauses;
        if (!rt.working)
            open_window();
        rt.working = true;
        hold.unlock();
        if (pauses)
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        i.work();
        hold.lock();
    } else if (i.kind == RECORD) {
        i.event->over = i.time;
        i.event->at = std::chrono::steady_clock::now();
    }
    s->items.pop_front();
    s->busy = false;
    rt.changed.notify_all();
}

/* Whether the item in front of the stream is later than everything before, so that the host might
 * still put something in front of it, and whether it has: the host is waited for. */
bool host_goes_first(const CUstream_st *s, std::unique_lock<std::mutex> &hold)
{
    uint64_t puts = rt.puts, patience = rt.times.rates.patience_us;
    if (!rt.times.on() || rt.times.start(s->items.front().cost, s->over_ns) <= rt.times.now_ns)
        return false;
    auto until = std::chrono::steady_clock::now() + std::chrono::microseconds(patience);
    while (rt.puts == puts && !rt.stop &&
           rt.changed.wait_until(hold, until) != std::cv_status::timeout)
        ;
    return rt.puts != puts || rt.stop;
}

void device_main()
{
    std::unique_lock<std::mutex> hold(rt.lock);
    while (!rt.stop) {
        CUstream_st *s = rt.streams.empty() ? NULL : choose();
        if (s && host_goes_first(s, hold))
            continue;
        if (s) {
            carry_out(s, hold);
            continue;
        }
        /* Who waits for what was done last comes to see it after this. */
        if (rt.working)
            close_window();
        rt.working = false;
        rt.changed.wait(hold);
    }
}

cudaError put(CUstream_st *s, item i)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (rt.failed)
        return rt.failed;
    bool known = false;
    for (CUstream_st *other : rt.streams)
        known |= other == s;
    if (!known)
        misuse("a stream that is not open");
    i.cost.put_ns = rt.times.now_ns;
    rt.puts++;
    if (s->captures && (i.kind != WORK || s->capturer != std::this_thread::get_id()))
        misuse("only work of the thread that began it is captured here");
    if (s->captures && rt.capture_fails == AQ_EMU_FAILS_INSIDE)
        return refuse(cudaErrorStreamCaptureUnsupported);
    if (s->captures) {
        s->captured.push_back(i);
        return cudaSuccess;
    }
    if (i.kind == WORK)
        rt.counts.works++;
    else
        rt.counts.events++;
    s->items.push_back(i);
    rt.changed.notify_all();
    return cudaSuccess;
}

/* Do the bytes lie where the kind of copy says? */
void check_copy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    bool to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
    bool from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
    if (holds(rt.memory, dst, bytes, !to) != to || holds(rt.memory, src, bytes, !from) != from)
        misuse("a copy between other memories than it says");
}

} // namespace

/* ---- control ---- */

void aq_emu_gpus(int count, cudaError error)
{
    rt.gpus = count;
    rt.count_error = error;
}

void aq_emu_driver(int version)
{
    rt.driver = version;
}

void aq_emu_host_addresses(bool known)
{
    rt.host_addresses = known;
}

void aq_emu_device_memory(uint64_t total_bytes)
{
    rt.total = total_bytes;
}

void aq_emu_driver_takes(uint64_t table_page, uint64_t kernel_bytes)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.table_page = table_page;
    rt.kernel_bytes = kernel_bytes;
    rt.loaded.clear();
}

void aq_emu_order(uint64_t seed)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.seed = seed;
}

void aq_emu_time(const struct aq_emu_rates *rates)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.times = {};
    rt.times.rates = *rates;
    for (CUstream_st *s : rt.streams)
        s->over_ns = 0;
}

struct aq_emu_timed aq_emu_timed(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    const aq_emu_times &t = rt.times;
    return {t.now_ns, t.engine[AQ_EMU_TO_DEVICE].busy_ns, t.engine[AQ_EMU_TO_HOST].busy_ns,
            t.kernels_ns, t.late_ns};
}

void aq_emu_hold(bool held)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.held = held;
    rt.changed.notify_all();
}

void aq_emu_pauses(uint32_t permille)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.pauses = permille;
}

void aq_emu_fail_after(uint64_t items)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.fail_after = (int64_t)items;
}

void aq_emu_recover(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.failed = cudaSuccess;
    rt.fail_after = -1;
}

void aq_emu_fail_capture(enum aq_emu_capture_failure how)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.capture_fails = how;
}

struct aq_emu_counts aq_emu_counted(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    return rt.counts;
}

uint64_t aq_emu_bytes_home(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    return rt.bytes_home;
}

uint32_t aq_emu_alive(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    return (uint32_t)(rt.memory.size() + rt.pinned.size() + rt.streams.size() + rt.events.size() +
                      rt.graphs.size());
}

bool aq_emu_is_device(const void *p, uint64_t bytes)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    return holds(rt.memory, p, bytes, false);
}

void aq_emu_load(const void *kernel)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.loaded.insert(kernel);
}

int aq_emu_enqueue(void *stream, std::function<void()> work)
{
    if (!stream) {
        work();
        return 0;
    }
    return put(static_cast<CUstream_st *>(stream), {WORK, work, NULL, 0, rt.times.of_kernel()});
}

/* As the launch macro of kernels: what cudaGetLastError says behind the launch. */
int aq_emu_enqueue_kernel(void *stream, const void *kernel, std::function<void()> work)
{
    if (stream)
        aq_emu_load(kernel);
    int rc = aq_emu_enqueue(stream, work);
    int told = (int)cudaGetLastError();
    return rc ? rc : told;
}

int aq_emu_call(void *stream, void (*fn)(void *arg), void *arg)
{
    return aq_emu_enqueue_kernel(stream, reinterpret_cast<const void *>(fn), [=] { fn(arg); });
}

/* ---- devices ---- */

cudaError cudaGetDeviceCount(int *count)
{
    if (rt.count_error == cudaSuccess)
        *count = rt.gpus;
    return rt.count_error;
}

cudaError cudaDriverGetVersion(int *version)
{
    *version = rt.driver;
    return cudaSuccess;
}

cudaError cudaRuntimeGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}

const char *cudaGetErrorString(cudaError error)
{
    switch (error) {
    case cudaSuccess: return "no error";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInsufficientDriver: return "CUDA driver version is insufficient";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorIllegalAddress: return "an illegal memory access was encountered";
    case cudaErrorStreamCaptureUnsupported:
        return "operation not permitted when stream is capturing";
    default: return "another error";
    }
}

/* Failures of the device are for good. */
cudaError cudaGetLastError(void)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    auto mine = rt.last_error.find(std::this_thread::get_id());
    cudaError told = mine == rt.last_error.end() ? cudaSuccess : mine->second;
    if (mine != rt.last_error.end())
        rt.last_error.erase(mine);
    return rt.failed ? rt.failed : told;
}

cudaError cudaSetDevice(int device)
{
    if (rt.count_error)
        return rt.count_error;
    return device < 0 || device >= rt.gpus ? cudaErrorInvalidDevice : cudaSuccess;
}

cudaError cudaSetDeviceFlags(unsigned)
{
    return cudaSuccess;
}

cudaError cudaGetDeviceProperties(struct cudaDeviceProp *ret, int)
{
    memset(ret, 0, sizeof(*ret));
    snprintf(ret->name, sizeof(ret->name), "emulated GPU");
    const char *sm = getenv("AQ_EMU_SM");
    int capability = sm ? atoi(sm) : 90;
    ret->major = capability / 10;
    ret->minor = capability % 10;
    ret->multiProcessorCount = 4;
    return cudaSuccess;
}

cudaError cudaDeviceGetAttribute(int *ret, cudaDeviceAttr, int)
{
    *ret = rt.host_addresses;
    return cudaSuccess;
}

cudaError cudaDeviceGetPCIBusId(char *id, int bytes, int)
{
    snprintf(id, (size_t)bytes, "FFFF:FF:00.0");
    return cudaSuccess;
}

cudaError cudaDeviceSynchronize(void)
{
    std::unique_lock<std::mutex> hold(rt.lock);
    check_no_capture("cudaDeviceSynchronize in a capture");
    for (;;) {
        bool empty = true;
        for (CUstream_st *s : rt.streams)
            empty &= s->items.empty();
        if (empty || rt.failed)
            return rt.failed;
        rt.changed.wait(hold);
    }
}

/* ---- memory ---- */

cudaError cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    *total = rt.total + CONTEXT_BYTES;
    *free_bytes = free_memory();
    return rt.failed;
}

/* Returns memory with a page behind it that nobody may touch.  It begins where a huge page may:
 * these are soon protected, and each window protects all memory twice. */
static char *map_memory(size_t whole)
{
    const size_t huge = 2u << 20, all = whole + huge + 4096;
    char *p = (char *)mmap(NULL, all, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        misuse("no memory");
    size_t before = (huge - (uintptr_t)p % huge) % huge;
    if (before)
        munmap(p, before);
    munmap(p + before + whole + 4096, huge - before);
    madvise(p + before, whole, MADV_HUGEPAGE);
    return p + before;
}

cudaError cudaMalloc(void **ret, size_t bytes)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaMalloc in a capture");
    size_t whole = (bytes + 4095) / 4096 * 4096;
    if (rt.failed)
        return rt.failed;
    if (room_of(whole) > free_memory())
        return refuse(cudaErrorMemoryAllocation);
    char *p = map_memory(whole);
    mprotect(p, whole, PROT_READ | PROT_WRITE);
    memset(p, 0xff, whole);
    mprotect(p, whole, rt.windows ? PROT_READ | PROT_WRITE : PROT_NONE);
    rt.memory[(uintptr_t)p] = whole;
    AQ_WATCH(aq_watch_array(p, bytes));
    rt.taken += room_of(whole);
    *ret = p;
    return cudaSuccess;
}

cudaError cudaFree(void *p)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaFree in a capture");
    auto at = rt.memory.find((uintptr_t)p);
    if (!p)
        return rt.failed;
    if (at == rt.memory.end())
        misuse("freed what was not allocated");
    munmap(p, at->second + 4096);
    rt.taken -= room_of(at->second);
    rt.memory.erase(at);
    AQ_WATCH(aq_watch_forget(p));
    return rt.failed;
}

cudaError cudaMemset(void *p, int value, size_t bytes)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaMemset in a capture");
    if (!holds(rt.memory, p, bytes, false))
        misuse("cudaMemset of what is not device memory");
    open_window();
    memset(p, value, bytes);
    close_window();
    return rt.failed;
}

cudaError cudaHostRegister(void *p, size_t bytes, unsigned)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaHostRegister in a capture");
    /* Whole pages are pinned, as by a driver. */
    uintptr_t first = (uintptr_t)p / 4096 * 4096, end = ((uintptr_t)p + bytes + 4095) / 4096 * 4096;
    if (holds(rt.pinned, (void *)first, end - first, true))
        return refuse(cudaErrorHostMemoryAlreadyRegistered);
    rt.pinned[first] = end - first;
    AQ_WATCH(aq_watch_array(p, bytes));
    return rt.failed;
}

cudaError cudaHostUnregister(void *p)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaHostUnregister in a capture");
    if (!rt.pinned.erase((uintptr_t)p / 4096 * 4096))
        misuse("unpinned what was not pinned");
    AQ_WATCH(aq_watch_forget(p));
    return rt.failed;
}

cudaError cudaMemcpy(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    check_no_capture("cudaMemcpy in a capture");
    if (rt.failed)
        return rt.failed;
    check_copy(dst, src, bytes, kind);
    open_window();
    memcpy(dst, src, bytes);
    close_window();
    return cudaSuccess;
}

cudaError cudaMemcpyAsync(void *dst, const void *src, size_t bytes, cudaMemcpyKind kind,
                          cudaStream_t stream)
{
    {
        std::lock_guard<std::mutex> hold(rt.lock);
        check_copy(dst, src, bytes, kind);
        rt.bytes_home += kind == cudaMemcpyDeviceToHost ? bytes : 0;
    }
    cudaError rc = put(stream, {WORK, [=] { memset(dst, 0xff, bytes); }, NULL, 0, {}});
    aq_emu_cost cost = rt.times.of_copy(bytes, kind);
    rc = rc ? rc : put(stream, {WORK, [=] { memcpy(dst, src, bytes); }, NULL, 0, cost});
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.counts.works -= rc ? 0 : 1; /* one call */
    return rc;
}

/* ---- streams and events ---- */

/* As the driver counts: the smaller number comes first. */
enum { PRIORITY_LAST = 0, PRIORITY_FIRST = -5 };

cudaError cudaDeviceGetStreamPriorityRange(int *ret_least, int *ret_greatest)
{
    *ret_least = PRIORITY_LAST;
    *ret_greatest = PRIORITY_FIRST;
    return rt.failed;
}

cudaError cudaStreamCreateWithPriority(cudaStream_t *ret, unsigned, int priority)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    rt.counts.first_streams += priority == PRIORITY_FIRST;
    rt.counts.last_streams += priority == PRIORITY_LAST;
    if (rt.failed)
        return rt.failed;
    if (!rt.started) {
        rt.device = std::thread(device_main);
        rt.started = true;
    }
    *ret = new CUstream_st;
    rt.streams.push_back(*ret);
    return cudaSuccess;
}

cudaError cudaStreamDestroy(cudaStream_t stream)
{
    std::unique_lock<std::mutex> hold(rt.lock);
    while (!stream->items.empty())
        rt.changed.wait(hold);
    for (size_t i = 0; i < rt.streams.size(); i++) {
        if (rt.streams[i] == stream)
            rt.streams.erase(rt.streams.begin() + (long)i--);
    }
    delete stream;
    return rt.failed;
}

cudaError cudaStreamSynchronize(cudaStream_t stream)
{
    std::unique_lock<std::mutex> hold(rt.lock);
    check_no_capture("cudaStreamSynchronize in a capture");
    if (stream && stream->captures)
        misuse("cudaStreamSynchronize of a stream that is captured");
    while (stream && !stream->items.empty() && !rt.failed)
        rt.changed.wait(hold);
    return rt.failed;
}

cudaError cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned)
{
    uint64_t time;
    {
        std::lock_guard<std::mutex> hold(rt.lock);
        time = event->recorded;
    }
    return put(stream, {WAIT, NULL, event, time, {}});
}

cudaError cudaEventCreateWithFlags(cudaEvent_t *ret, unsigned)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    *ret = new CUevent_st;
    rt.events.insert(*ret);
    return rt.failed;
}

cudaError cudaEventDestroy(cudaEvent_t event)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (!rt.events.erase(event))
        misuse("destroyed what is no event");
    rt.gone.emplace_back(event);
    return rt.failed;
}

cudaError cudaEventRecord(cudaEvent_t event, cudaStream_t stream)
{
    uint64_t time;
    {
        std::lock_guard<std::mutex> hold(rt.lock);
        if (rt.failed)
            return rt.failed;
        time = ++event->recorded;
    }
    return put(stream, {RECORD, NULL, event, time, {}});
}

cudaError cudaEventSynchronize(cudaEvent_t event)
{
    std::unique_lock<std::mutex> hold(rt.lock);
    check_no_capture("cudaEventSynchronize in a capture");
    uint64_t time = event->recorded;
    while (event->over < time && !rt.failed)
        rt.changed.wait(hold);
    return event->over < time ? rt.failed : cudaSuccess;
}

cudaError cudaEventElapsedTime(float *ret_ms, cudaEvent_t from, cudaEvent_t to)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (from->over != from->recorded || to->over != to->recorded)
        misuse("the time between events that are not over");
    *ret_ms = rt.times.on() ? (float)(to->at_ns - from->at_ns) * 1e-6f
                            : std::chrono::duration<float, std::milli>(to->at - from->at).count();
    return cudaSuccess;
}

/* ---- graphs ---- */

cudaError cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (rt.failed)
        return rt.failed;
    if (stream->captures)
        misuse("a capture within a capture");
    if (rt.capture_fails == AQ_EMU_FAILS_AT_BEGIN)
        return refuse(cudaErrorStreamCaptureUnsupported);
    stream->captures = true;
    stream->capturer = std::this_thread::get_id();
    return cudaSuccess;
}

cudaError cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t *ret)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (!stream->captures)
        misuse("the end of no capture");
    if (stream->capturer != std::this_thread::get_id())
        misuse("the end of another thread's capture");
    stream->captures = false;
    if (rt.failed) {
        stream->captured.clear();
        return rt.failed;
    }
    *ret = new CUgraph_st;
    (*ret)->work.swap(stream->captured);
    return cudaSuccess;
}

cudaError cudaGraphInstantiate(cudaGraphExec_t *ret, cudaGraph_t graph, unsigned long long)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (rt.failed)
        return rt.failed;
    if (GRAPH_BYTES > free_memory())
        return refuse(cudaErrorMemoryAllocation);
    rt.taken += GRAPH_BYTES;
    *ret = new CUgraphExec_st;
    (*ret)->work = graph->work;
    rt.graphs.insert(*ret);
    rt.counts.graphs++;
    return cudaSuccess;
}

cudaError cudaGraphDestroy(cudaGraph_t graph)
{
    delete graph;
    return cudaSuccess;
}

cudaError cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (!rt.graphs.erase(exec))
        misuse("destroyed what is no graph");
    rt.taken -= GRAPH_BYTES;
    delete exec; /* what was launched has its own copies */
    return rt.failed;
}

cudaError cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream)
{
    std::lock_guard<std::mutex> hold(rt.lock);
    if (rt.failed)
        return rt.failed;
    if (!rt.graphs.count(exec) || stream->captures)
        misuse("launched what is no graph, or into a capture");
    for (const item &i : exec->work) {
        stream->items.push_back(i);
        stream->items.back().cost.put_ns = rt.times.now_ns;
    }
    rt.puts++;
    rt.counts.graph_launches++;
    rt.changed.notify_all();
    return cudaSuccess;
}

/* SPDX-License-Identifier: Apache-2.0
 * What it takes to wake a thread that sleeps on another core, as lanes do when their next op has to
 * wait for another lane. */
#include "engine/machine/rates_parts.h"

#include "base/clock.h"
#include "base/threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

enum { ROUNDS = 200 };
/* Long enough for who waits to fall asleep, and for its core to do so. */
static const double apart_s = 200e-6;

struct sleeper {
    pthread_mutex_t lock;
    pthread_cond_t called;
    uint32_t calls;
    _Atomic uint32_t answers;
};

static void *sleep_and_answer(void *arg)
{
    struct sleeper *s = arg;
    for (uint32_t i = 0; i < ROUNDS; i++) {
        pthread_mutex_lock(&s->lock);
        while (s->calls == i)
            pthread_cond_wait(&s->called, &s->lock);
        pthread_mutex_unlock(&s->lock);
        atomic_store(&s->answers, i + 1);
    }
    return NULL;
}

static double pass_time(double until)
{
    double now = aq_clock_s();
    while (now < until)
        now = aq_clock_s();
    return now;
}

int aq_rates_wake(struct aq_sample *ret, struct aq_err *reterr)
{
    struct sleeper s = {.lock = PTHREAD_MUTEX_INITIALIZER, .called = PTHREAD_COND_INITIALIZER};
    double seconds[ROUNDS];
    pthread_t thread;
    int rc = pthread_create(&thread, NULL, sleep_and_answer, &s);
    if (rc)
        return aq_thread_error(reterr, "a thread to be woken", rc);
    for (uint32_t i = 0; i < ROUNDS; i++) {
        double start = pass_time(aq_clock_s() + apart_s);
        pthread_mutex_lock(&s.lock);
        s.calls++;
        pthread_cond_signal(&s.called);
        pthread_mutex_unlock(&s.lock);
        while (atomic_load(&s.answers) <= i)
            sched_yield(); /* who answers may need this very core */
        seconds[i] = aq_clock_s() - start;
    }
    pthread_join(thread, NULL);
    *ret = aq_sample_of(seconds, ROUNDS);
    return 0;
}

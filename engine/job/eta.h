/* SPDX-License-Identifier: Apache-2.0
 * engine/job/eta.h - what a running job has seen of the lengths of its sequences, from which the
 * time that is left is estimated (eta.c).  The engine's thread fills it in; copies are read. */
#ifndef AQ_ENGINE_JOB_ETA_H
#define AQ_ENGINE_JOB_ETA_H

#include "engine/job/flight.h"

enum {
    AQ_ETA_RANGES = 112, /* of lengths, four of them from one power of two to the next */
    AQ_ETA_FLIGHT = 512, /* sequences in flight that are looked at, at most */
};

/* Sequences and the sum of their max_tokens, by max_tokens. */
struct aq_eta_waiting {
    uint64_t count[AQ_ETA_RANGES], max[AQ_ETA_RANGES];
};

struct aq_eta_seen {
    struct aq_eta_waiting waiting, queued; /* not submitted yet; submitted, and without a token */
    /* Sequences that ended by themselves, and by their max_tokens, by how many tokens they had
     * before the last one; and the tokens of all of them. */
    uint64_t stopped[AQ_ETA_RANGES], full[AQ_ETA_RANGES], tokens;
    /* Sequences with tokens that have not ended; each stands for flight_each. */
    struct {
        uint32_t tokens, max;
    } flight[AQ_ETA_FLIGHT];
    uint32_t flight_count;
    uint64_t flight_each, flight_next;
};

/* So many sequences more that wait, or fewer (count below 0). */
void aq_eta_wait(struct aq_eta_seen *s, uint32_t max_tokens, int64_t count);
void aq_eta_end(struct aq_eta_seen *s, uint32_t tokens, uint32_t max_tokens, bool stopped);
/* Begins the list of those submitted, `count` of which have tokens; then one after the other. */
void aq_eta_begin_flight(struct aq_eta_seen *s, uint64_t count);
void aq_eta_fly(struct aq_eta_seen *s, uint32_t tokens, uint32_t max_tokens);
void aq_eta_look(struct aq_eta_seen *s, const struct aq_flight *flight);

#endif

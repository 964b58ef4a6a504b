/* SPDX-License-Identifier: Apache-2.0
 * engine/records/record_state.h - how far an unfinished record has come, as bytes: the tokens of
 * its choices with what belongs to them, from which a fresh record of the same request goes on.
 * Draws, penalties and stop strings follow from the tokens, so nothing else is kept.  Knows nothing
 * of files. */
#ifndef AQ_ENGINE_RECORDS_RECORD_STATE_H
#define AQ_ENGINE_RECORDS_RECORD_STATE_H

#include "base/buf.h"
#include "engine/records/record.h"

/* Appends the state of a record in the engine, as of the last aq_record_know.  Returns the number
 * of tokens in it; 0: there is nothing worth keeping, and nothing was appended. */
uint64_t aq_record_state_put(struct aq_buf *out, const struct aq_record *rec);

/* Lets a record that was just opened go on from a state; choices that have ended count as finished.
 * False: the bytes are no state that this record can be in, and it is as it was. */
bool aq_record_state_take(struct aq_record *rec, const char *bytes, size_t count);

#endif

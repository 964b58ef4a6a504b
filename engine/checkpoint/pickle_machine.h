/* SPDX-License-Identifier: Apache-2.0
 * engine/checkpoint/pickle_machine.h - the stack machine that pickle.c runs: its stack and values
 * (pickle_stack.c), and the opcodes that give names a meaning (pickle_torch.c). */
#ifndef AQ_ENGINE_CHECKPOINT_PICKLE_MACHINE_H
#define AQ_ENGINE_CHECKPOINT_PICKLE_MACHINE_H

#include "engine/checkpoint/pickle.h"

/* The arena that all values lie in. */
struct aq_pickle_chunk {
    struct aq_pickle_chunk *next;
    size_t used, bytes;
    _Alignas(16) uint8_t data[];
};

struct aq_pickle {
    struct aq_pickle_chunk *chunks;
    size_t memory; /* of chunks, memo and storages */
    const struct aq_pickle_value *root;
    const struct aq_pickle_storage **storages;
    size_t storage_count, storage_capacity;
};

/* The stack machine.  Items below the topmost mark cannot be popped. */
struct aq_pickle_machine {
    const uint8_t *bytes;
    size_t size, at;
    struct aq_pickle *out;
    struct aq_pickle_value **stack, **memo;
    size_t depth, stack_capacity, memo_capacity, memo_count;
    size_t *marks;
    size_t mark_count, mark_capacity;
    struct aq_err *reterr;
};

#define aq_pickle_malformed(m, ...) aq_error((m)->reterr, -ENOEXEC, __VA_ARGS__)

/* Counts bytes against AQ_PICKLE_MEMORY_MAX. */
int aq_pickle_charge(struct aq_pickle_machine *m, size_t bytes);
/* Zeroed memory that lives as long as the pickle; ret points to the pointer that is set. */
int aq_pickle_take(struct aq_pickle_machine *m, size_t bytes, void *ret);
int aq_pickle_push(struct aq_pickle_machine *m, struct aq_pickle_value *v);
int aq_pickle_push_new(struct aq_pickle_machine *m, enum aq_pickle_kind kind,
                       struct aq_pickle_value **ret);
int aq_pickle_pop(struct aq_pickle_machine *m, struct aq_pickle_value **ret);
/* Values above the topmost mark. */
size_t aq_pickle_above_mark(const struct aq_pickle_machine *m);
/* Room for one more item: capacities are 0, 4, 8, 16, ..., so that the count alone tells when to
 * grow. */
int aq_pickle_grow(struct aq_pickle_machine *m, void **array, uint32_t count, size_t item_bytes);
int aq_pickle_dict_add(struct aq_pickle_machine *m, struct aq_pickle_value *dict,
                       const struct aq_pickle_value *key, const struct aq_pickle_value *value);

/* The opcodes of pickle_torch.c. */
int aq_pickle_op_global(struct aq_pickle_machine *m);
int aq_pickle_op_stack_global(struct aq_pickle_machine *m);
int aq_pickle_op_reduce(struct aq_pickle_machine *m);
int aq_pickle_op_build(struct aq_pickle_machine *m);
int aq_pickle_op_persistent_id(struct aq_pickle_machine *m);

#endif

/* SPDX-License-Identifier: Apache-2.0
 * Any text as the manifest of a packed store: what is accepted lies within its space, in order, and
 * says the same when it is written out and read again. */
#include "engine/checkpoint/store_manifest.h"
#include "tests/fuzz/fuzz.h"

#include <assert.h>
#include <stdio.h>

static void check_places(const struct aq_store_manifest *m)
{
    uint64_t at = 0;
    assert(m->step_count >= 1 && m->dir_count >= 1);
    for (uint32_t i = 0; i < m->step_count; i++) {
        const struct aq_store_step *step = &m->steps[i];
        assert(step->offset >= at && step->first_item + step->item_count <= m->item_count);
        at = step->offset;
        for (uint32_t j = 0; j < step->item_count; j++) {
            const struct aq_store_item *item = &m->items[step->first_item + j];
            assert(item->offset >= at && item->bytes > 0 && item->step == i);
            assert(aq_store_manifest_find(m, item->name) == step->first_item + j);
            at = item->offset + item->bytes;
        }
        assert(at <= step->offset + step->bytes);
        at = step->offset + step->bytes;
    }
    assert(at == m->bytes);
    uint64_t sum = 0;
    for (uint32_t i = 0; i < m->dir_count; i++)
        sum += aq_stripe_file_bytes(m->bytes, m->dir_count, i);
    assert(sum == m->bytes);
}

static int parse(struct aq_store_manifest **ret, const char *text, size_t bytes)
{
    struct aq_err err = {0};
    int rc = aq_store_manifest_parse(ret, text, bytes, &err);
    fuzz_check_error(rc, &err);
    return rc;
}

/* Nearly every mutation breaks the hashes, which are checked last: with the hashes put right, what
 * lies behind them is reached as well. */
static void with_right_hashes(const char *text, size_t bytes)
{
    json_t *root = json_loadb(text, bytes, JSON_ALLOW_NUL, NULL);
    char plan[17], id[17], tiles[17], *again;
    struct aq_store_manifest *m;
    struct aq_err err = {0};
    for (int turn = 0; root && turn < 2; turn++) {
        again = json_dumps(root, JSON_COMPACT);
        int rc = aq_store_manifest_parse(&m, again, strlen(again), &err);
        fuzz_check_error(rc, &err);
        free(again);
        if (rc == 0) {
            check_places(m);
            aq_store_manifest_close(m);
            break;
        }
        const char *at = strstr(err.text, "hashes to ");
        assert(turn == 0 || !at); /* the hashes it asked for are those it accepts */
        if (!at || sscanf(at, "hashes to %16[0-9a-f] (plan %16[0-9a-f], tiles %16[0-9a-f])", id,
                          plan, tiles) != 3)
            break;
        if (json_object_get(root, "tiles"))
            json_object_set_new(root, "tiles", json_string(tiles));
        json_object_set_new(root, "id", json_string(id));
        json_object_set_new(root, "plan", json_string(plan));
    }
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_store_manifest *m, *again;
    with_right_hashes((const char *)data, size);
    if (parse(&m, (const char *)data, size) < 0)
        return 0;
    check_places(m);
    json_t *root;
    assert(aq_store_manifest_json(&root, m, NULL) == 0);
    char *text = json_dumps(root, JSON_INDENT(1));
    assert(parse(&again, text, strlen(text)) == 0);
    assert(again->id == m->id && again->plan == m->plan && again->bytes == m->bytes);
    free(text);
    json_decref(root);
    aq_store_manifest_close(again);
    aq_store_manifest_close(m);
    return 0;
}

/* SPDX-License-Identifier: Apache-2.0
 * Chat templates: whatever the text is, opening it ends in a template or one sentence, and so does
 * rendering it with a conversation; twice gives the same. */
#include "engine/chat/jinja.h"
#include "tests/fuzz/fuzz.h"

static const char conversation[] =
    "{\"messages\":[{\"role\":\"system\",\"content\":\"S\"},{\"role\":\"user\",\"content\":"
    "[{\"type\":\"text\",\"text\":\"\\u00e9\\n\"}]},{\"role\":\"assistant\",\"content\":\" a b \","
    "\"n\":-7,\"f\":2.5,\"k\":null}],\"tools\":null,\"add_generation_prompt\":true,"
    "\"bos_token\":\"<s>\",\"l\":[3,1,2],\"d\":{\"b\":1,\"a\":{\"c\":[]}}}";

static int render(struct aq_buf *out, const struct aq_jinja *t, const json_t *variables,
                  struct aq_err *err)
{
    const struct aq_jinja_input input = {.variables = variables, .now.tm_mday = 1};
    int rc = aq_jinja_render(out, t, &input, err);
    fuzz_check_error(rc, err);
    fuzz_check(rc == 0 || !out->count);
    fuzz_check(rc < 0 || aq_utf8_invalid_at(out->data ? out->data : "", out->count) == out->count);
    return rc;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct aq_jinja *t;
    struct aq_err err = {0};
    char *text = malloc(size + 1);
    memcpy(text, data, size);
    text[size] = '\0';
    int rc = aq_jinja_open(&t, "fuzz", (struct aq_text){text, size}, &err);
    fuzz_check_error(rc, &err);
    free(text); /* the template has its own copy */
    if (rc < 0)
        return 0;
    json_t *variables = json_loads(conversation, 0, NULL);
    struct aq_buf first = {0}, second = {0};
    rc = render(&first, t, variables, &err);
    if (rc == 0 && first.count < 1 << 16) {
        fuzz_check(render(&second, t, variables, &err) == 0 && second.count == first.count);
        fuzz_check(!first.count || !memcmp(first.data, second.data, first.count));
    }
    aq_buf_close(&first);
    aq_buf_close(&second);
    json_decref(variables);
    aq_jinja_close(t);
    return 0;
}

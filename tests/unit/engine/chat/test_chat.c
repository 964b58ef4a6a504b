/* SPDX-License-Identifier: Apache-2.0
 * Where a model's chat template is, and what conversations are made into before it sees them. */
#include "engine/chat/chat.h"

#include "base/json.h"
#include "tests/temp.h"
#include "tests/test.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

struct rig {
    char dir[TEMP_PATH_MAX];
    struct aq_chat *chat;
    struct aq_buf text;
    const char *param;
    struct aq_err err;
};

static int setup(void **state)
{
    static struct rig rig;
    rig = (struct rig){0};
    temp_dir(rig.dir, "chat");
    *state = &rig;
    return 0;
}

static int teardown(void **state)
{
    struct rig *rig = *state;
    aq_chat_close(rig->chat);
    aq_buf_close(&rig->text);
    temp_remove(rig->dir);
    return 0;
}

static void write_file(const struct rig *rig, const char *name, const char *text)
{
    char path[TEMP_INSIDE_MAX];
    assert_in_range(snprintf(path, sizeof(path), "%s/%s", rig->dir, name), 1, sizeof(path) - 1);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(text, f);
    assert_int_equal(fclose(f), 0);
}

static struct aq_chat *open_chat(struct rig *rig, const char *time)
{
    aq_chat_close(rig->chat);
    rig->chat = NULL;
    assert_int_equal(aq_chat_open(&rig->chat, rig->dir, time, NULL), 0);
    return rig->chat;
}

/* Renders the messages (JSON) with or without a tool, and continued or not. */
static int render(struct rig *rig, const char *messages, const char *tools, bool continues)
{
    json_t *m = json_loads(messages, 0, NULL), *t = tools ? json_loads(tools, 0, NULL) : NULL;
    assert_non_null(m);
    const struct aq_chat_request request = {.messages = m,
                                            .tools = t,
                                            .add_generation_prompt = !continues,
                                            .continue_final_message = continues};
    aq_buf_clear(&rig->text);
    rig->err = (struct aq_err){0};
    int rc = aq_chat_render(&rig->text, rig->chat, &request, &rig->param, &rig->err);
    json_decref(m);
    json_decref(t);
    return rc;
}

static void assert_rendered(struct rig *rig, const char *messages, const char *tools,
                            bool continues, const char *want)
{
    int rc = render(rig, messages, tools, continues);
    if (rc < 0)
        fail_msg("%s: %s", messages, rig->err.text);
    assert_string_equal(rig->text.data ? rig->text.data : "", want);
}

static void assert_refused(struct rig *rig, const char *messages, const char *part)
{
    int rc = render(rig, messages, NULL, false);
    if (rc != -EBADMSG || !strstr(rig->err.text, part))
        fail_msg("%s: expected '%s', found %d: %s", messages, part, rc, rig->err.text);
    assert_int_equal(rig->text.count, 0);
}

static const char hi[] = "[{\"role\": \"user\", \"content\": \"hi\"}]", tool[] = "[{\"a\": 1}]";

/* ---- where the template is ---- */

static void a_file_wins_over_the_configuration(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "tokenizer_config.json",
               "{\"chat_template\": \"config {{ bos_token }}{{ eos_token }}\", \"bos_token\": "
               "{\"content\": \"<b>\"}, \"eos_token\": null}");
    assert_null(aq_chat_problem(open_chat(rig, NULL)));
    assert_rendered(rig, hi, tool, false, "config <b>");
    uint64_t hash = aq_chat_hash(rig->chat);
    write_file(rig, "chat_template.jinja", "file {{ bos_token }}");
    assert_null(aq_chat_problem(open_chat(rig, NULL)));
    assert_rendered(rig, hi, tool, false, "file <b>");
    assert_true(aq_chat_hash(rig->chat) != hash);
}

static void of_a_list_tools_have_their_own(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"{% include x %}\"}, "
               "{\"name\": \"tool_use\", \"template\": \"tools {{ tools[0].a }}\"}, "
               "{\"name\": \"default\", \"template\": \"default {{ tools is none }}\"}]}");
    open_chat(rig, NULL);
    assert_rendered(rig, hi, NULL, false, "default True");
    assert_rendered(rig, hi, tool, false, "tools 1");
    write_file(rig, "tokenizer_config.json",
               "{\"chat_template\": [{\"name\": \"rag\", \"template\": \"x\"}]}");
    assert_non_null(strstr(aq_chat_problem(open_chat(rig, NULL)), "none is named 'default'"));
    write_file(rig, "tokenizer_config.json", "{\"chat_template\": [{\"name\": \"rag\"}]}");
    assert_non_null(strstr(aq_chat_problem(open_chat(rig, NULL)), "\"template\""));
    write_file(rig, "tokenizer_config.json", "{\"chat_template\": 5}");
    assert_non_null(strstr(aq_chat_problem(open_chat(rig, NULL)), "a text or a list"));
}

static void more_files_lie_in_a_folder(void **state)
{
    struct rig *rig = *state;
    char folder[TEMP_INSIDE_MAX];
    assert_true(snprintf(folder, sizeof(folder), "%s/additional_chat_templates", rig->dir) > 0);
    assert_int_equal(mkdir(folder, 0777), 0);
    write_file(rig, "chat_template.jinja", "default");
    write_file(rig, "additional_chat_templates/tool_use.jinja", "tools");
    write_file(rig, "additional_chat_templates/rag.jinja", "{% nonsense");
    open_chat(rig, NULL);
    assert_null(aq_chat_problem(rig->chat));
    assert_rendered(rig, hi, NULL, false, "default");
    assert_rendered(rig, hi, tool, false, "tools");
}

static void special_tokens_come_from_both_files(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "tokenizer_config.json", "{\"bos_token\": \"<1>\"}");
    write_file(rig, "special_tokens_map.json",
               "{\"bos_token\": \"<2>\", \"eos_token\": {\"content\": \"<3>\"}}");
    write_file(rig, "chat_template.jinja",
               "{{ bos_token }}{{ eos_token }}{{ unk_token is defined }}{{ documents is none }}");
    open_chat(rig, NULL);
    assert_rendered(rig, hi, NULL, false, "<1><3>FalseTrue");
}

static void without_a_usable_template_it_says_why(void **state)
{
    struct rig *rig = *state;
    assert_non_null(strstr(aq_chat_problem(open_chat(rig, NULL)), "no chat template"));
    write_file(rig, "chat_template.jinja", "a\n{{ x|urlize }}");
    assert_string_equal(aq_chat_problem(open_chat(rig, NULL)),
                        "chat template 'chat_template.jinja': line 2: filter 'urlize' is not "
                        "supported");
    write_file(rig, "tokenizer_config.json", "{");
    assert_non_null(strstr(aq_chat_problem(open_chat(rig, NULL)), "tokenizer_config.json"));
}

/* ---- time ---- */

static void time_is_what_it_was_told(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "chat_template.jinja", "{{ strftime_now('%A %d %b %Y %H:%M:%S, %j') }}");
    open_chat(rig, "2024-02-29T23:59:07");
    assert_rendered(rig, hi, NULL, false, "Thursday 29 Feb 2024 23:59:07, 060");
    assert_string_equal(aq_chat_time(rig->chat), "2024-02-29T23:59:07");
    open_chat(rig, "2024-02-29");
    assert_rendered(rig, hi, NULL, false, "Thursday 29 Feb 2024 00:00:00, 060");
    write_file(rig, "chat_template.jinja", "no time");
    assert_null(aq_chat_time(open_chat(rig, "2024-02-29")));
    char now[AQ_CHAT_TIME_BYTES];
    aq_chat_time_now(now);
    assert_true(aq_chat_time_valid(now));
    static const char *const wrong[] = {"",
                                        "2024",
                                        "2024-02-30",
                                        "2024-2-3",
                                        "2024-02-03 10:00:00",
                                        "2024-02-03T10:00",
                                        "2024-02-03T25:00:00",
                                        "2024-02-03x",
                                        "2024-02-03T10:00:00Z",
                                        "yesterday at noon"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(*wrong); i++)
        assert_false(aq_chat_time_valid(wrong[i]));
}

/* ---- messages ---- */

#define PARTS                                                                                      \
    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"a\"}, {\"type\": "       \
    "\"text\", \"text\": \"b\"}]}]"

static void parts_are_joined_unless_the_template_reads_them(void **state)
{
    struct rig *rig = *state;
    static const char *const reads[] = {
        "{% for m in messages %}{% for p in m.content %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% for p in m['content'] %}<{{ p.text }}>{% endfor %}{% endfor %}",
        "{% for m in messages %}{% set c = m.content|list %}{% for p in c %}<{{ p.text }}>"
        "{% endfor %}{% endfor %}",
        "{% macro f(content) %}{% for p in content %}<{{ p.text }}>{% endfor %}{% endmacro %}"
        "{% for m in messages %}{{ f(m.content) }}{% endfor %}",
        "{% for m in messages %}{% if m.content is string %}x{% else %}{% for p in "
        "m.content|selectattr('type', 'equalto', 'text') %}<{{ p.text }}>{% endfor %}{% endif %}"
        "{% endfor %}",
    };
    for (size_t i = 0; i < sizeof(reads) / sizeof(*reads); i++) {
        write_file(rig, "chat_template.jinja", reads[i]);
        open_chat(rig, NULL);
        assert_rendered(rig, PARTS, NULL, false, "<a><b>");
    }
    write_file(rig, "chat_template.jinja", "{% for m in messages %}{{ m.content }}{% endfor %}");
    open_chat(rig, NULL);
    assert_rendered(rig, PARTS, NULL, false, "a\nb");
}

static void arguments_of_tool_calls_are_values(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "chat_template.jinja",
               "{{ messages[0].tool_calls[0].function.arguments|tojson }}");
    open_chat(rig, NULL);
    assert_rendered(rig,
                    "[{\"role\": \"assistant\", \"content\": null, \"tool_calls\": [{\"function\": "
                    "{\"arguments\": \"{\\\"a\\\": [1]}\"}}]}]",
                    NULL, false, "{\"a\": [1]}");
    assert_rendered(rig,
                    "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": "
                    "{\"a\": 2}}}]}]",
                    NULL, false, "{\"a\": 2}");
    assert_refused(rig,
                   "[{\"role\": \"assistant\", \"tool_calls\": [{\"function\": {\"arguments\": "
                   "\"{\"}}]}]",
                   "arguments of tool call 0 of message 0");
}

static void the_last_message_can_be_continued(void **state)
{
    struct rig *rig = *state;
    static const char two[] = "[{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": "
                              "\"assistant\", \"content\": \"So, \"}]";
    write_file(rig, "chat_template.jinja",
               "{% for m in messages %}[{{ m.content }}]{% endfor %}"
               "{% if add_generation_prompt %}A{% endif %}");
    open_chat(rig, NULL);
    assert_rendered(rig, two, NULL, true, "[hi][So, ");
    assert_rendered(rig, PARTS, NULL, true, "[a\nb");
    write_file(rig, "chat_template.jinja",
               "{% for m in messages %}[{{ m.content|trim }}]{% endfor %}");
    open_chat(rig, NULL);
    assert_rendered(rig, two, NULL, true, "[hi][So,");
    write_file(rig, "chat_template.jinja", "{{ messages[0].content }}");
    open_chat(rig, NULL);
    assert_int_equal(render(rig, two, NULL, true), -EBADMSG);
    assert_string_equal(rig->param, "continue_final_message");
}

static void what_is_no_conversation_is_refused(void **state)
{
    struct rig *rig = *state;
    write_file(rig, "chat_template.jinja", "{{ messages[0].content }}");
    open_chat(rig, NULL);
    assert_refused(rig, "[]", "at least one message");
    assert_refused(rig, "{}", "at least one message");
    assert_refused(rig, "[5]", "\"role\"");
    assert_refused(rig, "[{\"role\": 5}]", "\"role\"");
    assert_refused(rig, "[{\"role\": \"user\", \"content\": 5}]", "content of message 0");
    assert_refused(rig, "[{\"role\": \"user\", \"content\": [5]}]", "part 0 of message 0");
    assert_refused(rig, "[{\"role\": \"user\", \"content\": [{\"type\": \"image_url\"}]}]",
                   "only text");
    assert_refused(rig, "[{\"role\": \"user\", \"content\": [{\"type\": \"text\"}]}]",
                   "expected a text");
    write_file(rig, "chat_template.jinja", "\n{{ raise_exception('no ' ~ messages[0].role) }}");
    open_chat(rig, NULL);
    assert_refused(rig, hi, "line 2: the template says: no user");
}

#define T(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

static const struct CMUnitTest tests[] = {
    T(a_file_wins_over_the_configuration),
    T(of_a_list_tools_have_their_own),
    T(more_files_lie_in_a_folder),
    T(special_tokens_come_from_both_files),
    T(without_a_usable_template_it_says_why),
    T(time_is_what_it_was_told),
    T(parts_are_joined_unless_the_template_reads_them),
    T(arguments_of_tool_calls_are_values),
    T(the_last_message_can_be_continued),
    T(what_is_no_conversation_is_refused),
};

AQ_TEST_MAIN(tests)

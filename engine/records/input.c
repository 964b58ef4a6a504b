/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/records/input.h"

#include "base/buf.h"
#include "base/compress.h"
#include "base/file.h"
#include "engine/records/spool.h"

#include <assert.h>
#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { READ_BYTES = 1 << 20 };

struct aq_input {
    int fd;
    char *name; /* for messages */
    bool text, list;
    bool nameless; /* from a pipe, say: no name says what it is */
    /* The window of the file that is in memory: [buffer_offset, + buffer_count), read up to at. */
    char *buffer;
    size_t buffer_bytes, buffer_count, at;
    uint64_t buffer_offset;
    uint64_t begin; /* of the text, behind a byte order mark */
    bool end;
    uint64_t index, number;
    XXH3_state_t *hash;
    XXH3_state_t *line_hash; /* of a line that is too long to keep */
    char *again;             /* memory of aq_input_at */
    size_t again_bytes;
    int (*interrupted)(void *user); /* as in the options */
    void *user;
};

void aq_input_close(struct aq_input *in)
{
    if (!in)
        return;
    if (in->fd >= 0)
        close(in->fd);
    XXH3_freeState(in->hash);
    XXH3_freeState(in->line_hash);
    free(in->name);
    free(in->buffer);
    free(in->again);
    free(in);
}

/* ---- spooling ---- */

static int spool_prompts(int to, const struct aq_strings *prompts, struct aq_err *reterr)
{
    struct aq_buf b = {0};
    for (uint32_t i = 0; i < prompts->count; i++) {
        aq_buf_puts(&b, "{\"prompt\":");
        aq_buf_json_string(&b, prompts->item[i], strlen(prompts->item[i]));
        aq_buf_puts(&b, "}\n");
    }
    int rc =
        b.failed ? aq_error_memory(reterr, "prompts") : aq_spool_write(to, b.data, b.count, reterr);
    aq_buf_close(&b);
    return rc;
}

/* Opening a pipe waits for its writer; an interruption ends that. */
static int open_path(const struct aq_input_opts *opts, const char *name, struct aq_err *reterr)
{
    int fd;
    do {
        if (opts->interrupted && opts->interrupted(opts->user))
            return aq_error(reterr, -EINTR, "interrupted while opening '%s'", name);
        fd = open(opts->path, O_RDONLY | O_CLOEXEC);
    } while (fd < 0 && errno == EINTR);
    if (fd < 0)
        return aq_error(reterr, -EINVAL, "open the input '%s': %s", name, strerror(errno));
    return fd;
}

static int open_source(struct aq_input *in, const struct aq_input_opts *opts, struct aq_err *reterr)
{
    bool standard = opts->path && !strcmp(opts->path, "-");
    int from = -1;
    if (standard)
        from = fcntl(STDIN_FILENO, F_DUPFD_CLOEXEC, 3);
    else if (opts->path)
        from = open_path(opts, in->name, reterr);
    if (standard && from < 0)
        return aq_error(reterr, -EINVAL, "open the input '%s': %s", in->name, strerror(errno));
    if (opts->path && from < 0)
        return from;
    struct stat st = {0};
    bool regular = from >= 0 && fstat(from, &st) == 0 && S_ISREG(st.st_mode) && !standard;
    if (regular && !aq_spool_wanted(from, in->name)) {
        in->fd = from;
        return 0;
    }
    if (S_ISDIR(st.st_mode)) {
        close(from);
        return aq_error(reterr, -EINVAL, "the input '%s' is a directory; expected a file",
                        in->name);
    }
    int rc = in->fd = aq_spool_open(opts->spool_dir, reterr);
    in->nameless = !regular;
    const struct aq_spool spool = {in->fd, from, in->name, opts->interrupted, opts->user};
    if (rc >= 0)
        rc = from >= 0 ? aq_spool_copy(&spool, reterr)
                       : spool_prompts(in->fd, opts->prompts, reterr);
    if (from >= 0)
        close(from);
    return rc;
}

/* ---- what kind of file ---- */

static int read_at(struct aq_input *in, void *bytes, size_t count, uint64_t offset,
                   size_t *ret_count, struct aq_err *reterr)
{
    size_t done = 0;
    while (done < count) {
        ssize_t n = pread(in->fd, (char *)bytes + done, count - done, (off_t)(offset + done));
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return aq_error(reterr, -EIO, "read '%s' at byte %llu: %s", in->name,
                            (unsigned long long)(offset + done), strerror(errno));
        if (n == 0)
            break;
        done += (size_t)n;
    }
    *ret_count = done;
    return 0;
}

/* Of the name without the ending of a compression. */
static bool has_ending(const char *name, const char *ending)
{
    size_t n = strlen(name) - aq_compression_ending(name), e = strlen(ending);
    return n >= e && !strncasecmp(name + n - e, ending, e);
}

/* Names of columns: nothing but letters, digits and the like, none of them empty, no blank beside a
 * separator as in a sentence.  Returns how many; 0: it is no such line. */
static uint32_t count_columns(const char *line, size_t count, char separator)
{
    uint32_t columns = 1;
    char before = separator;
    for (size_t i = 0; i < count; i++) {
        unsigned char c = (unsigned char)line[i];
        bool edge = c == separator || c == ' ';
        if (!edge && !isalnum(c) && !strchr("_-.\"", c) && c < 0x80)
            return 0;
        if (edge && (before == separator || (c == separator && before == ' ')))
            return 0;
        columns += c == separator;
        before = (char)c;
    }
    return before == separator ? 0 : columns;
}

/* Fields of the row at *at, which moves behind it; separators and line ends in quotes are text (RFC
 * 4180).  0: there is none, or (unless the text is whole) it goes on behind the end. */
static uint32_t count_fields(const char **at, const char *end, bool whole, char separator)
{
    uint32_t fields = 1;
    bool quoted = false;
    *at += strspn(*at, "\r\n");
    for (const char *c = *at; c < end; c++) {
        quoted ^= *c == '"';
        fields += !quoted && *c == separator;
        if (!quoted && *c == '\n') {
            *at = c + 1;
            return fields;
        }
    }
    bool last = whole && !quoted && *at < end;
    *at = end;
    return last ? fields : 0;
}

/* Names of columns, and then rows of as many fields: what has no file name is known by that. */
static bool is_table(const char *text, size_t count, bool whole, char separator)
{
    const char *at = text, *end = text + count, *newline = memchr(text, '\n', count);
    size_t header = newline ? (size_t)(newline - text) : 0;
    header -= header && text[header - 1] == '\r';
    uint32_t columns = count_columns(text, header, separator), rows = 0, fields;
    for (; columns > 1 && (fields = count_fields(&at, end, whole, separator)); rows++) {
        if (fields != columns)
            return false;
    }
    return rows > 1; /* the names are one of them */
}

/* A table read as text would make a prompt of its header and of every row's commas. */
static int refuse_table(const struct aq_input *in, bool tabs, struct aq_err *reterr)
{
    struct aq_buf redirection = {0};
    if (!in->nameless) {
        aq_buf_puts(&redirection, " <");
        aq_buf_shell_word(&redirection, in->name);
        aq_buf_puts(&redirection, " >prompts.jsonl");
    }
    int rc = redirection.failed ? aq_error_memory(reterr, "'%s'", in->name) : 0;
    if (rc == 0)
        rc = aq_error(reterr, -EINVAL,
                      "'%s' is a table; expected a JSON record or a prompt in each line.  This "
                      "makes records of its rows: python3 -c 'import csv, json, sys; "
                      "[print(json.dumps(r)) for r in csv.DictReader(sys.stdin%s)]'%s, and "
                      "--prompt-field COLUMN reads them (--input-format text: each line is a "
                      "prompt as it stands)",
                      in->name, tabs ? ", delimiter=\"\\t\"" : "",
                      redirection.data ? redirection.data : "");
    aq_buf_close(&redirection);
    return rc;
}

/* A file is known by the ending of its name, standard input and pipes by their first lines. */
static int check_table(const struct aq_input *in, const char *head, size_t count, bool whole,
                       struct aq_err *reterr)
{
    bool tabs = has_ending(in->name, ".tsv"), commas = has_ending(in->name, ".csv");
    if (in->nameless && !tabs && !commas) {
        tabs = is_table(head, count, whole, '\t');
        commas = is_table(head, count, whole, ',');
    }
    return commas || tabs ? refuse_table(in, tabs, reterr) : 0;
}

/* Looks at the first bytes: UTF-16 files are refused by name, a BOM is passed over,
 * and with `auto` an opening brace or a .json(l) name means JSON; tables are refused. */
static int look(struct aq_input *in, enum aq_input_format format, struct aq_err *reterr)
{
    char head[4096 + 1];
    size_t count;
    int rc = read_at(in, head, sizeof(head) - 1, 0, &count, reterr);
    if (rc < 0)
        return rc;
    head[count] = '\0';
    if (count >= 2 && (!memcmp(head, "\xff\xfe", 2) || !memcmp(head, "\xfe\xff", 2)))
        return aq_error(reterr, -EINVAL,
                        "'%s' is UTF-16; expected UTF-8 (iconv -f UTF-16 -t UTF-8)", in->name);
    size_t at = count >= 3 && !memcmp(head, "\xef\xbb\xbf", 3) ? 3 : 0;
    in->begin = in->buffer_offset = at;
    while (at < count && strchr(" \t\r\n", head[at]) && head[at])
        at++;
    in->list = at < count && head[at] == '[';
    in->text = format == AQ_INPUT_TEXT;
    if (format == AQ_INPUT_AUTO && at < count && head[at] != '{')
        in->text = !has_ending(in->name, ".jsonl") && !has_ending(in->name, ".json");
    bool guessed = format == AQ_INPUT_AUTO && in->text;
    bool whole = count < sizeof(head) - 1;
    return guessed ? check_table(in, head + at, count - at, whole, reterr) : 0;
}

int aq_input_open(struct aq_input **ret, const struct aq_input_opts *opts, struct aq_err *reterr)
{
    assert(ret && opts && (opts->path || opts->prompts));
    struct aq_input *in = calloc(1, sizeof(*in));
    if (!in)
        return aq_error_memory(reterr, "input");
    in->fd = -1;
    in->interrupted = opts->interrupted;
    in->user = opts->user;
    const char *name = opts->path ? opts->path : "--prompt";
    in->name = strdup(strcmp(name, "-") ? name : "standard input");
    in->buffer_bytes = opts->read_bytes ? opts->read_bytes : READ_BYTES;
    in->buffer = malloc(in->buffer_bytes);
    in->hash = XXH3_createState();
    in->line_hash = XXH3_createState();
    int rc =
        in->name && in->buffer && in->hash && in->line_hash ? 0 : aq_error_memory(reterr, "input");
    if (rc == 0)
        rc = open_source(in, opts, reterr);
    if (rc >= 0)
        rc = look(in, opts->path ? opts->format : AQ_INPUT_JSONL, reterr);
    if (rc < 0) {
        aq_input_close(in);
        return rc;
    }
    XXH3_64bits_reset(in->hash);
    *ret = in;
    return 0;
}

/* ---- lines ---- */

/* Moves the unread rest to the front and reads more behind it. */
static int refill(struct aq_input *in, struct aq_err *reterr)
{
    memmove(in->buffer, in->buffer + in->at, in->buffer_count - in->at);
    in->buffer_offset += in->at;
    in->buffer_count -= in->at;
    in->at = 0;
    if (in->buffer_count == in->buffer_bytes) { /* one line fills it */
        char *larger = realloc(in->buffer, in->buffer_bytes * 2);
        if (!larger)
            return aq_error_memory(reterr, "'%s' line %llu", in->name,
                                   (unsigned long long)in->number + 1);
        in->buffer = larger;
        in->buffer_bytes *= 2;
    }
    size_t count;
    int rc = read_at(in, in->buffer + in->buffer_count, in->buffer_bytes - in->buffer_count,
                     in->buffer_offset + in->buffer_count, &count, reterr);
    if (rc < 0)
        return rc;
    XXH3_64bits_update(in->hash, in->buffer + in->buffer_count, count);
    in->buffer_count += count;
    in->end = count == 0;
    return 0;
}

/* Drops the rest of a line that is too long, hashing it on the way. */
static int skip_line(struct aq_input *in, struct aq_line *ret, struct aq_err *reterr)
{
    XXH3_64bits_reset(in->line_hash);
    for (;;) {
        size_t rest = in->buffer_count - in->at;
        const char *begin = in->buffer + in->at, *newline = memchr(begin, '\n', rest);
        size_t count = newline ? (size_t)(newline - begin) : rest;
        XXH3_64bits_update(in->line_hash, begin, count);
        in->at += count + (newline ? 1 : 0);
        if (newline || in->end)
            break;
        int rc = refill(in, reterr);
        if (rc < 0)
            return rc;
    }
    *ret = (struct aq_line){.text = "",
                            .too_long = true,
                            .number = in->number,
                            .hash = XXH3_64bits_digest(in->line_hash)};
    return 0;
}

static bool is_blank(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

/* One line, blank or not.  1, 0 at the end, or an error. */
static int take_line(struct aq_input *in, struct aq_line *ret, struct aq_line_place *ret_place,
                     struct aq_err *reterr)
{
    size_t looked = 0;
    for (;;) {
        const char *begin = in->buffer + in->at;
        size_t rest = in->buffer_count - in->at;
        const char *newline = memchr(begin + looked, '\n', rest - looked);
        size_t bytes = newline ? (size_t)(newline - begin) : rest;
        ret_place->offset = in->buffer_offset + in->at;
        if (bytes > AQ_LINE_BYTES_MAX) {
            in->number++;
            ret_place->bytes = UINT32_MAX;
            int rc = skip_line(in, ret, reterr);
            return rc < 0 ? rc : 1;
        }
        if (newline || (in->end && bytes)) {
            in->number++;
            in->at += bytes + (newline ? 1 : 0);
            bytes -= bytes && begin[bytes - 1] == '\r';
            ret_place->bytes = (uint32_t)bytes;
            *ret = (struct aq_line){.text = begin, .bytes = bytes, .number = in->number};
            return 1;
        }
        if (in->end)
            return 0;
        looked = rest;
        int rc = refill(in, reterr);
        if (rc < 0)
            return rc;
    }
}

int aq_input_next(struct aq_input *in, struct aq_line *ret, struct aq_line_place *ret_place,
                  struct aq_err *reterr)
{
    int rc;
    do
        rc = take_line(in, ret, ret_place, reterr);
    while (rc == 1 && !ret->too_long && is_blank(ret->text, ret->bytes));
    if (rc <= 0)
        return rc;
    ret->index = in->index++;
    if (!ret->too_long)
        ret->hash = XXH3_64bits(ret->text, ret->bytes);
    return 1;
}

int aq_input_drain(struct aq_input *in, struct aq_err *reterr)
{
    while (!in->end) {
        if (in->interrupted && in->interrupted(in->user))
            return aq_error(reterr, -EINTR, "interrupted while reading '%s'", in->name);
        in->at = in->buffer_count;
        int rc = refill(in, reterr);
        if (rc < 0)
            return rc;
    }
    in->at = in->buffer_count;
    return 0;
}

int aq_input_at(struct aq_input *in, const struct aq_line_place *place, struct aq_line *ret,
                struct aq_err *reterr)
{
    ret->too_long = place->bytes == UINT32_MAX;
    ret->text = "";
    ret->bytes = 0;
    if (ret->too_long)
        return 0;
    if (place->bytes > in->again_bytes || !in->again) {
        char *larger = realloc(in->again, place->bytes + 1u);
        if (!larger)
            return aq_error_memory(reterr, "'%s': %u bytes for one line", in->name, place->bytes);
        in->again = larger;
        in->again_bytes = place->bytes;
    }
    size_t count;
    int rc = read_at(in, in->again, place->bytes, place->offset, &count, reterr);
    if (rc < 0)
        return rc;
    if (count < place->bytes)
        return aq_error(reterr, -EIO, "'%s' has become shorter while the job runs", in->name);
    ret->text = in->again;
    ret->bytes = count;
    ret->hash = XXH3_64bits(ret->text, ret->bytes);
    return 0;
}

bool aq_input_is_text(const struct aq_input *in)
{
    return in->text;
}

bool aq_input_is_list(const struct aq_input *in)
{
    return in->list && !in->text;
}

int aq_input_begins_so(struct aq_input *in, uint64_t bytes, uint64_t hash, struct aq_err *reterr)
{
    char last = '\n', *part = malloc(READ_BYTES);
    XXH3_state_t *state = XXH3_createState();
    int rc = part && state ? 0 : aq_error_memory(reterr, "input");
    if (rc == 0)
        XXH3_64bits_reset(state);
    for (uint64_t at = in->begin; rc == 0 && at < bytes;) {
        size_t count = (size_t)aq_min_u64(bytes - at, READ_BYTES), found = 0;
        rc = read_at(in, part, count, at, &found, reterr);
        if (rc < 0 || !found)
            break;
        XXH3_64bits_update(state, part, found);
        last = part[found - 1];
        at += found;
    }
    int same = rc == 0 && last == '\n' && XXH3_64bits_digest(state) == hash;
    XXH3_freeState(state);
    free(part);
    return rc < 0 ? rc : same;
}

uint64_t aq_input_bytes(const struct aq_input *in)
{
    return in->buffer_offset + in->buffer_count;
}

uint64_t aq_input_hash(const struct aq_input *in)
{
    return XXH3_64bits_digest(in->hash);
}

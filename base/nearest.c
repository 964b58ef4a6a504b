/* SPDX-License-Identifier: Apache-2.0 */
#include "base/nearest.h"

#include <assert.h>
#include <stdbool.h>
#include <string.h>

enum { WORD_MAX = 63 };

static char fold(char c)
{
    if (c >= 'A' && c <= 'Z')
        return (char)(c - 'A' + 'a');
    return c == '_' ? '-' : c;
}

static uint32_t min3(uint32_t a, uint32_t b, uint32_t c)
{
    uint32_t m = a < b ? a : b;
    return m < c ? m : c;
}

/* A word as it is compared. */
struct word {
    size_t count;
    char text[WORD_MAX];
};

static void read_word(struct word *w, const char *text)
{
    w->count = strnlen(text, WORD_MAX);
    for (size_t i = 0; i < w->count; i++)
        w->text[i] = fold(text[i]);
}

/* Optimal string alignment: F. J. Damerau, "A technique for computer detection and correction of
 * spelling errors", CACM 7(3), 1964, computed row by row with the two rows before kept.  An answer
 * of `limit` or more only says that there are as many: the least of a row is never above the least
 * of the one before by more than one, which is what a swap across two rows costs, so a row that
 * reaches the limit ends the search. */
static uint32_t count_edits(const struct word *a, const struct word *b, uint32_t limit)
{
    uint32_t rows[3][WORD_MAX + 1];
    uint32_t *before = rows[0], *above = rows[1], *row = rows[2];
    size_t longer = a->count > b->count ? a->count - b->count : b->count - a->count;
    if (longer >= limit)
        return limit;
    for (size_t j = 0; j <= b->count; j++)
        above[j] = (uint32_t)j;
    for (size_t i = 1; i <= a->count; i++) {
        char ca = a->text[i - 1];
        uint32_t least = row[0] = (uint32_t)i;
        for (size_t j = 1; j <= b->count; j++) {
            char cb = b->text[j - 1];
            row[j] = min3(above[j] + 1, row[j - 1] + 1, above[j - 1] + (ca != cb));
            if (i > 1 && j > 1 && ca == b->text[j - 2] && a->text[i - 2] == cb &&
                before[j - 2] + 1 < row[j])
                row[j] = before[j - 2] + 1;
            if (row[j] < least)
                least = row[j];
        }
        if (least >= limit)
            return limit;
        uint32_t *oldest = before;
        before = above;
        above = row;
        row = oldest;
    }
    return above[b->count];
}

uint32_t aq_edit_distance(const char *a, const char *b)
{
    assert(a && b);
    struct word aw, bw;
    read_word(&aw, a);
    read_word(&bw, b);
    return count_edits(&aw, &bw, UINT32_MAX);
}

/* Whether the name begins with the word: "gen" is an unfinished "generate", however many letters
 * are missing. */
static bool begins_with(const char *name, const char *word)
{
    size_t i = 0;
    while (word[i] && fold(name[i]) == fold(word[i]))
        i++;
    return i >= 2 && !word[i];
}

uint32_t aq_nearest_limit(const char *word)
{
    uint32_t third = (uint32_t)strnlen(word, WORD_MAX) / 3;
    return third ? third : 1;
}

const char *aq_nearest(const char *word, const char *const *names, size_t count)
{
    const char *best = NULL;
    uint32_t best_edits = aq_nearest_limit(word) + 1;
    struct word wanted, known;
    read_word(&wanted, word);
    for (size_t i = 0; i < count; i++) {
        if (!names[i])
            continue;
        read_word(&known, names[i]);
        uint32_t edits = count_edits(&wanted, &known, best_edits);
        if (edits > 1 && begins_with(names[i], word))
            edits = 1;
        if (edits < best_edits) {
            best = names[i];
            best_edits = edits;
        }
    }
    return best;
}

/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/notation.h"

#include "base/types.h"
#include "base/units.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_auto(const char *text)
{
    return !text || strcmp(text, "auto") == 0;
}

/* "0.25" or "25%", in percent, at the end of `whole`; `instead`: what may stand in its place, or
 * stands in front of it. */
static int parse_share(double *ret_percent, const char *label, const char *instead,
                       const char *text, const char *whole, struct aq_err *reterr)
{
    char number[32];
    size_t n = strlen(text);
    bool percent = n > 0 && text[n - 1] == '%';
    double share;
    if (n - percent < sizeof(number)) {
        memcpy(number, text, n - percent);
        number[n - percent] = '\0';
        if (aq_parse_real(number, &share) && share >= 0 && share <= (percent ? 100 : 1)) {
            *ret_percent = percent ? share : 100 * share;
            return 0;
        }
    }
    return aq_error(reterr, -EINVAL,
                    "%s: expected %s a share such as 0.25 or 25%% (of at most 100 %%), found '%s'",
                    label, instead, whole);
}

/* "D/H/N": three percentages that sum to 100. */
static int parse_shares(struct aq_shares *ret, const char *label, const char *key,
                        const char *value, struct aq_err *reterr)
{
    double share[AQ_TIER_COUNT], sum = 0;
    const char *at = value;
    for (int i = 0; i < AQ_TIER_COUNT; i++) {
        size_t n = strcspn(at, "/");
        char number[32];
        bool last = at[n] == '\0';
        if (n >= sizeof(number) || last != (i == AQ_TIER_COUNT - 1))
            goto malformed;
        memcpy(number, at, n);
        number[n] = '\0';
        if (!aq_parse_real(number, &share[i]) || share[i] < 0 || share[i] > 100)
            goto malformed;
        sum += share[i];
        at += n + !last;
    }
    if (sum < 100 - 1e-6 || sum > 100 + 1e-6)
        return aq_error(reterr, -EINVAL, "%s: %s=%s: expected shares that sum to 100, found %g",
                        label, key, value, sum);
    memcpy(ret->percent, share, sizeof(share));
    return 0;
malformed:
    return aq_error(reterr, -EINVAL,
                    "%s: %s: expected percentages device/host/disk such as 0/100/0, found '%s'",
                    label, key, value);
}

static int parse_part(struct aq_placement *p, const char *label, const char *key, const char *value,
                      struct aq_err *reterr)
{
    if (strcmp(key, "head") == 0) {
        bool device = strcmp(value, "device") == 0;
        p->head = device ? AQ_DEVICE : AQ_HOST;
        if (device || strcmp(value, "host") == 0)
            return 0;
        if (strcmp(value, "disk") == 0)
            return aq_error(reterr, -EINVAL,
                            "%s: head=disk: rows of the token table are gathered in every pass, so "
                            "it stays in memory; expected host or device",
                            label);
        return aq_error(reterr, -EINVAL, "%s: head: expected device, host or disk, found '%s'",
                        label, value);
    }
    if (strcmp(key, "weights") == 0)
        return parse_shares(&p->weights, label, key, value, reterr);
    if (strcmp(key, "kv") == 0)
        return parse_shares(&p->kv, label, key, value, reterr);
    if (strcmp(key, "hidden") == 0)
        return parse_shares(&p->hidden, label, key, value, reterr);
    return aq_error(reterr, -EINVAL, "%s: expected weights, kv, hidden or head, found '%s'", label,
                    key);
}

int aq_placement_parse(struct aq_placement_choice *ret, const char *label, const char *text,
                       struct aq_err *reterr)
{
    const struct aq_shares host = {{0, 100, 0}};
    struct aq_placement p = {host, host, host, AQ_HOST};
    if (is_auto(text)) {
        *ret = (struct aq_placement_choice){0};
        return 0;
    }
    char *copy = strdup(text), *save = NULL;
    if (!copy)
        return aq_error_memory(reterr, "%s: %zu bytes", label, strlen(text) + 1);
    int rc = 0;
    const char *keys[4]; /* as many as parse_part knows */
    uint32_t parts = 0;
    for (char *part = strtok_r(copy, " \t,", &save); part && rc == 0;
         part = strtok_r(NULL, " \t,", &save)) {
        char *equals = strchr(part, '=');
        if (!equals) {
            rc = aq_error(reterr, -EINVAL, "%s: expected NAME=SHARES, found '%s'", label, part);
            break;
        }
        *equals = '\0';
        rc = parse_part(&p, label, part, equals + 1, reterr);
        for (uint32_t i = 0; rc == 0 && i < parts; i++) {
            if (strcmp(keys[i], part) == 0)
                rc = aq_error(reterr, -EINVAL, "%s: %s is given twice", label, part);
        }
        if (rc == 0)
            keys[parts++] = part;
    }
    if (rc == 0 && parts == 0)
        rc = aq_error(reterr, -EINVAL, "%s: expected auto or NAME=SHARES, found '%s'", label, text);
    free(copy);
    if (rc == 0)
        *ret = (struct aq_placement_choice){.given = true, .at = p};
    return rc;
}

int aq_attention_parse(struct aq_attention_choice *ret, const char *label, const char *text,
                       struct aq_err *reterr)
{
    struct aq_attention_choice a = {.given = !is_auto(text), .side = AQ_ATTEND_SPLIT};
    if (!a.given || strcmp(text, "device") == 0)
        a.side = AQ_ATTEND_DEVICE;
    else if (strcmp(text, "host") == 0)
        a.side = AQ_ATTEND_HOST;
    else if (strncmp(text, "split:", 6) == 0) {
        int rc = parse_share(&a.split_host, label, "split: and", text + 6, text, reterr);
        if (rc < 0)
            return rc;
        if (a.split_host <= 0 || a.split_host >= 100)
            return aq_error(reterr, -EINVAL,
                            "%s: '%s': expected a share between 0%% and 100%%; 'device' or 'host' "
                            "gives all to one side",
                            label, text);
    } else if (strcmp(text, "split") != 0)
        return aq_error(reterr, -EINVAL,
                        "%s: expected auto, host, device, split or split:SHARE, found '%s'", label,
                        text);
    *ret = a;
    return 0;
}

void aq_attention_text(char text[32], const struct aq_plan *p)
{
    enum aq_attention_side side = AQ_ATTEND_DEVICE;
    aq_plan_attention(&side, p);
    if (side == AQ_ATTEND_SPLIT)
        snprintf(text, 32, "split:%g%%", p->split_host);
    else
        snprintf(text, 32, "%s", side == AQ_ATTEND_HOST ? "host" : "device");
}

void aq_placement_text(char text[160], const struct aq_placement *p)
{
    const double *w = p->weights.percent, *k = p->kv.percent, *h = p->hidden.percent;
    snprintf(text, 160, "weights=%g/%g/%g kv=%g/%g/%g hidden=%g/%g/%g head=%s", w[0], w[1], w[2],
             k[0], k[1], k[2], h[0], h[1], h[2], aq_tier_name(p->head));
}

void aq_placement_shown(char text[160], const char *exact)
{
    size_t used = 0;
    for (const char *at = exact; *at && used < 159;) {
        char *end = NULL;
        bool begins = at > exact && (at[-1] == '=' || at[-1] == '/') && *at >= '0' && *at <= '9';
        double share = begins ? strtod(at, &end) : 0;
        if (begins)
            used += (size_t)snprintf(text + used, 160 - used, "%g", round(10 * share) / 10);
        else
            text[used++] = *at;
        at = begins ? end : at + 1;
    }
    text[used < 159 ? used : 159] = '\0';
}

int aq_link_parse(struct aq_link_choice *ret, const char *label, const char *text,
                  struct aq_err *reterr)
{
    char first[32];
    const char *slash = strchr(text, '/');
    double gb_s[2];
    if (!slash || (size_t)(slash - text) >= sizeof(first))
        goto malformed;
    memcpy(first, text, (size_t)(slash - text));
    first[slash - text] = '\0';
    if (!aq_parse_real(first, &gb_s[0]) || !aq_parse_real(slash + 1, &gb_s[1]))
        goto malformed;
    for (int i = 0; i < 2; i++) {
        if (!(gb_s[i] >= 1e-3 && gb_s[i] <= 1e4))
            goto malformed;
    }
    for (int i = 0; i < 2; i++)
        ret->bytes_per_s[i] = (uint64_t)(gb_s[i] * 1e9);
    return 0;
malformed:
    return aq_error(reterr, -EINVAL,
                    "%s: expected the speeds of both links in GB/s such as 12/12 (0.001 to 10000), "
                    "found '%s'",
                    label, text);
}

int aq_length_parse(uint32_t *ret_first, uint32_t *ret_last, const char *label, const char *text,
                    struct aq_err *reterr)
{
    char first[16];
    const char *dash = strchr(text, '-');
    size_t n = dash ? (size_t)(dash - text) : strlen(text);
    uint64_t a, b;
    if (n < sizeof(first)) {
        memcpy(first, text, n);
        first[n] = '\0';
        if (aq_parse_u64(first, &a) && aq_parse_u64(dash ? dash + 1 : first, &b) && a >= 1 &&
            b >= a && b <= 1u << 28) {
            *ret_first = (uint32_t)a;
            *ret_last = (uint32_t)b;
            return 0;
        }
    }
    return aq_error(reterr, -EINVAL,
                    "%s: expected a number of tokens or a range such as 100-800, found '%s'", label,
                    text);
}

int aq_host_products_parse(struct aq_host_products_choice *ret, const char *label, const char *text,
                           struct aq_err *reterr)
{
    struct aq_host_products_choice p = {.given = !is_auto(text)};
    int rc = p.given ? parse_share(&p.percent, label, "auto or", text, text, reterr) : 0;
    if (rc == 0)
        *ret = p;
    return rc;
}

int aq_price_parse(struct aq_price_choice *ret, const char *label, const char *text,
                   struct aq_err *reterr)
{
    static const char *const units[] = {"/h", "/hr", "/hour"};
    struct aq_price_choice c = {0};
    const char *equals = strrchr(text, '='), *slash = equals ? strchr(equals, '/') : NULL;
    char money[AQ_MONEY_TEXT_MAX];
    bool unit = false;
    for (size_t i = 0; slash && i < AQ_ARRAY_LEN(units); i++)
        unit |= strcmp(slash, units[i]) == 0;
    if (unit && equals > text && (size_t)(equals - text) < sizeof(c.hardware) &&
        (size_t)(slash - equals) <= sizeof(money)) {
        snprintf(c.hardware, sizeof(c.hardware), "%.*s", (int)(equals - text), text);
        snprintf(money, sizeof(money), "%.*s", (int)(slash - equals - 1), equals + 1);
        if (aq_money_parse(&c.per_hour, money)) {
            *ret = c;
            return 0;
        }
    }
    return aq_error(reterr, -EINVAL,
                    "%s: expected HARDWARE=MONEY/h, such as l4-24gb=0.70USD/h, found '%s'", label,
                    text);
}

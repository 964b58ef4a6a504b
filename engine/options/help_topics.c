/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/options/help_topics.h"

#include "base/types.h"

#include <stddef.h>
#include <string.h>

const char aq_help_words[] =
    "Words of plans, start lines and reports\n"
    "\n"
    "  seat  the place of one running sequence: a prompt and what is generated for it\n"
    "  micro-batch  the seats that are computed together\n"
    "  block  all seats: the micro-batches that share one reading of the weights\n"
    "  pass  each layer once for each micro-batch: one token more for every seat\n"
    "  lane  a queue of work on one resource: compute, h2d and d2h (copies to the device and "
    "back), "
    "disk_read, ...\n"
    "  placement  weights=D/H/N: percent on the device, in host memory, and on disk; on the cpu "
    "there "
    "is no device, and its share is host memory\n"
    "  head  the product that makes the logits: head=host says where its weights are\n"
    "  ring  memory that weights pass through which have no place\n"
    "  ledger  every large buffer, before it is allocated\n"
    "  lossy  what rounds or drops more than the checkpoint's own formats do\n";

const struct aq_help_topic aq_help_topics[] = {
    {AQ_HELP_KV, "kv", "the KV policies, and how they are chosen"},
    {AQ_HELP_HARDWARE, "hardware", "what the file of a machine says"},
    {AQ_HELP_WORDS, "words", "words of plans, start lines and reports"},
    {AQ_HELP_MAN, "man", "the manual as a page for man; help man COMMAND: that of a command"},
    {AQ_HELP_BASH, "bash", "a script that completes words in bash"},
    {AQ_HELP_ZSH, "zsh", "a script that completes words in zsh"},
};
const uint32_t aq_help_topic_count = AQ_ARRAY_LEN(aq_help_topics);

const struct aq_help_topic *aq_help_topic_find(const char *name)
{
    for (uint32_t i = 0; i < aq_help_topic_count; i++) {
        if (strcmp(aq_help_topics[i].name, name) == 0)
            return &aq_help_topics[i];
    }
    return NULL;
}

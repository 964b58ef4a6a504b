/* SPDX-License-Identifier: Apache-2.0
 * engine/chat/jinja_tree.h - a template as read: nodes in one array that name each other by index,
 * 0 is none.  Lists are chained by `next`. */
#ifndef AQ_ENGINE_CHAT_JINJA_TREE_H
#define AQ_ENGINE_CHAT_JINJA_TREE_H

#include "base/types.h"
#include "engine/chat/arena.h"

enum aq_jinja_kind {
    /* expressions: first, second, third as the comment has them */
    AQ_JINJA_NONE,
    AQ_JINJA_BOOL,      /* integer */
    AQ_JINJA_INTEGER,   /* integer */
    AQ_JINJA_REAL,      /* real */
    AQ_JINJA_STRING,    /* text */
    AQ_JINJA_NAME,      /* text */
    AQ_JINJA_LIST,      /* items */
    AQ_JINJA_TUPLE,     /* items */
    AQ_JINJA_DICT,      /* pairs */
    AQ_JINJA_PAIR,      /* key, value */
    AQ_JINJA_ATTRIBUTE, /* object; text */
    AQ_JINJA_ITEM,      /* object, key */
    AQ_JINJA_SLICE,     /* from, to, step: each may be none; the object is an ITEM's */
    AQ_JINJA_CALL,      /* callee, arguments, named arguments */
    AQ_JINJA_NAMED,     /* value; text: a named argument */
    AQ_JINJA_FILTER,    /* operand (none: what a block holds), arguments, named; which */
    AQ_JINJA_TEST,      /* operand, arguments, named; which */
    AQ_JINJA_COND,      /* test, then, else (may be none) */
    AQ_JINJA_OR,        /* left, right */
    AQ_JINJA_AND,
    AQ_JINJA_NOT,     /* operand */
    AQ_JINJA_MINUS,   /* operand */
    AQ_JINJA_PLUS,    /* operand */
    AQ_JINJA_COMPARE, /* left, operands */
    AQ_JINJA_OPERAND, /* right; which: enum aq_jinja_operator */
    AQ_JINJA_BINARY,  /* left, right; which: enum aq_jinja_operator */
    AQ_JINJA_CONCAT,  /* items */
    /* statements */
    AQ_JINJA_TEXT,      /* text */
    AQ_JINJA_OUTPUT,    /* expression */
    AQ_JINJA_IF,        /* test, body, else: a list of statements */
    AQ_JINJA_FOR,       /* target, iterated, body, else, filter; which: 1 recursive */
    AQ_JINJA_SET,       /* target, value */
    AQ_JINJA_SET_BLOCK, /* target, body, filter (may be none) */
    AQ_JINJA_MEMBER,    /* target of set: text is the namespace, first a NAME with the member */
    AQ_JINJA_MACRO,     /* parameters, body; text */
    AQ_JINJA_PARAMETER, /* default (may be none); text */
    AQ_JINJA_BREAK,
    AQ_JINJA_CONTINUE,
    AQ_JINJA_SCOPE,        /* settings, body: with, and generation without any */
    AQ_JINJA_FILTER_BLOCK, /* filter, body */
};

enum aq_jinja_operator {
    AQ_JINJA_ADD,
    AQ_JINJA_SUB,
    AQ_JINJA_MUL,
    AQ_JINJA_DIV,
    AQ_JINJA_FLOORDIV,
    AQ_JINJA_MOD,
    AQ_JINJA_POW,
    AQ_JINJA_EQ,
    AQ_JINJA_NE,
    AQ_JINJA_LT,
    AQ_JINJA_LE,
    AQ_JINJA_GT,
    AQ_JINJA_GE,
    AQ_JINJA_IN,
    AQ_JINJA_NOT_IN,
};

struct aq_jinja_node {
    uint8_t kind, which;
    uint32_t line;
    uint32_t first, second, third, fourth, fifth;
    uint32_t next;
    union {
        struct aq_text text;
        int64_t integer;
        double real;
    };
};

struct aq_jinja {
    struct aq_arena arena; /* of the texts */
    char *name;
    struct aq_jinja_node *node;
    uint32_t node_count, node_capacity;
    uint32_t body; /* first statement */
};

static inline bool aq_text_is(struct aq_text t, const char *word)
{
    size_t i = 0;
    while (i < t.count && word[i] && t.bytes[i] == word[i])
        i++;
    return i == t.count && !word[i];
}

#endif

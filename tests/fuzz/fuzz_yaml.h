/* SPDX-License-Identifier: Apache-2.0
 * tests/fuzz/fuzz_yaml.h - what targets share that read YAML. */
#ifndef AQ_TESTS_FUZZ_YAML_H
#define AQ_TESTS_FUZZ_YAML_H

#include "tests/fuzz/fuzz.h"

/* libfyaml 0.7.12 itself loses a buffer on long runs of quotes (corpus/yaml/quotes-leak.yaml): once
 * per file read, so it does not matter.  Our own leaks are looked for by the unit tests as well. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:libfyaml\n";
}

#endif

/* test_cpu.c - CPU features agree with each other and with the kernel's report.
 *
 * SPDX-License-Identifier: MIT */
#include "base/cpu.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#if defined(__aarch64__)
#define FLAGS_LINE "Features"
#else
#define FLAGS_LINE "flags"
#endif

/* The first line of /proc/cpuinfo that begins with `name`, with a blank at the end; false when
 * there is none (an emulator may show the file of the machine below it). */
static bool read_line(const char *name, char *line, int line_bytes)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    bool found = false;

    if (file == NULL) {
        return false;
    }
    while (!found && fgets(line, line_bytes, file) != NULL) {
        found = strncmp(line, name, strlen(name)) == 0;
    }
    (void)fclose(file);
    if (found) {
        line[strcspn(line, "\n")] = ' ';
    }
    return found;
}

static bool has_flag(const char *line, const char *flag)
{
    char word[32];

    (void)snprintf(word, sizeof(word), " %s ", flag);
    return strstr(line, word) != NULL;
}

static void agrees_with_the_kernel(void **state)
{
    const quire_cpu *cpu = quire_cpu_get();
    char line[8192];

    (void)state;
    if (!read_line(FLAGS_LINE, line, (int)sizeof(line))) {
        print_message("/proc/cpuinfo lists no CPU flags\n");
        skip();
    }
#if defined(__x86_64__)
    /* All that the files for AVX2 are compiled for: hypervisors mask flags one by one. */
    assert_int_equal(cpu->has_avx2, has_flag(line, "avx2") && has_flag(line, "fma") &&
                                        has_flag(line, "f16c") && has_flag(line, "bmi2"));
    assert_int_equal(cpu->has_avx512, cpu->has_avx2 && has_flag(line, "avx512f") &&
                                          has_flag(line, "avx512bw") &&
                                          has_flag(line, "avx512vl") && has_flag(line, "avx512dq"));
    assert_int_equal(cpu->has_avx512_vnni, cpu->has_avx512 && has_flag(line, "avx512_vnni"));
    assert_int_equal(cpu->has_avx512_bf16, cpu->has_avx512_vbmi && has_flag(line, "avx512_bf16"));
    /* Kernels that do not know AMX print nothing of it, and refuse it. */
    assert_true(cpu->has_amx || !has_flag(line, "amx_tile") || !has_flag(line, "amx_bf16") ||
                !has_flag(line, "amx_int8") || !cpu->has_avx512_bf16);
    assert_true(has_flag(line, "amx_tile") || !quire_cpu_amx_allow());
    assert_true(cpu->has_amx || !quire_cpu_amx_allow());
    /* Older kernels do not print avx_vnni: it may be there without being listed. */
    assert_true(cpu->has_avx_vnni || !has_flag(line, "avx_vnni"));
#elif defined(__aarch64__)
    assert_int_equal(cpu->has_neon, has_flag(line, "asimd"));
#endif
}

/* Among AMD's family 25, the CPUs with AVX-512 are Zen 4. */
static void knows_where_prefetches_go(void **state)
{
    const quire_cpu *cpu = quire_cpu_get();
    char vendor[256];
    char family[256];
    unsigned number = 0;
    bool is_zen4;

    (void)state;
    if (!read_line("vendor_id", vendor, (int)sizeof(vendor)) ||
        !read_line("cpu family", family, (int)sizeof(family))) {
        print_message("/proc/cpuinfo names no family\n");
        assert_false(cpu->prefetch_to_l2 && !cpu->has_avx512);
        skip();
    }
    assert_int_equal(sscanf(family, "cpu family : %u", &number), 1);
    is_zen4 = cpu->has_avx512 && has_flag(vendor, "AuthenticAMD") && number == 25;
    assert_int_equal(cpu->reads_ahead, is_zen4);
    assert_int_equal(cpu->prefetch_to_l2, is_zen4 || cpu->has_amx);
}

static void wider_implies_narrower(void **state)
{
    const quire_cpu *cpu = quire_cpu_get();

    (void)state;
    assert_true(!cpu->has_avx512 || cpu->has_avx2);
    assert_true(!cpu->has_avx512_vnni || cpu->has_avx512);
    assert_true(!cpu->has_avx_vnni || cpu->has_avx2);
    assert_false(cpu->has_neon && cpu->has_avx2);
}

/* Linux lists a core's first-level data cache first, in KB. Cores of one CPU may differ. */
static void knows_the_first_level_cache(void **state)
{
    const uint32_t l1d_bytes = quire_cpu_get()->l1d_bytes;
#if defined(__x86_64__)
    bool is_listed = false;
#else
    bool is_listed = l1d_bytes == 0; /* the C library does not know everywhere */
#endif
    char path[96];
    uint32_t n_cores = 0;
    FILE *file;

    (void)state;
    for (;; n_cores++) {
        unsigned kib = 0;

        (void)snprintf(path, sizeof(path), "/sys/devices/system/cpu/cpu%u/cache/index0/size",
                       n_cores);
        file = fopen(path, "r");
        if (file == NULL) {
            break;
        }
        assert_int_equal(fscanf(file, "%uK", &kib), 1);
        assert_int_equal(fclose(file), 0);
        is_listed = is_listed || l1d_bytes == kib << 10;
    }
    if (n_cores == 0) {
        print_message("the kernel says nothing of caches\n");
        skip();
    }
    assert_true(is_listed);
}

static void *ask(void *out)
{
    *(const quire_cpu **)out = quire_cpu_get();
    return NULL;
}

static void threads_get_one_answer(void **state)
{
    enum {
        N = 8
    };
    pthread_t threads[N];
    const quire_cpu *answers[N] = { NULL };

    (void)state;
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_create(&threads[i], NULL, ask, &answers[i]), 0);
    }
    for (int i = 0; i < N; i++) {
        assert_int_equal(pthread_join(threads[i], NULL), 0);
        assert_ptr_equal(answers[i], quire_cpu_get());
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(threads_get_one_answer), /* first, while nobody has asked yet */
        cmocka_unit_test(agrees_with_the_kernel), cmocka_unit_test(knows_where_prefetches_go),
        cmocka_unit_test(wider_implies_narrower), cmocka_unit_test(knows_the_first_level_cache),
    };

    return cmocka_run_group_tests_name("cpu", tests, NULL, NULL);
}

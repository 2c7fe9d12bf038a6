/* Key files: what is accepted and what is said about the rest, reloads, and which headers open the
 * door. Then when a server may be reached by others. */
#include "server/access.h"
#include "server/http/http_listen.h"
#include "server/keys.h"
#include "tests/scratch.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>

/* The first 8 bytes of `printf first-key-0001 | sha256sum`, the lowest bit set. */
#define FIRST_IDENTITY 0xd2953db1e79e82e9u

static const char *write_keys(const char *text, mode_t mode)
{
    const char *path = scratch_path("keys");
    unlink(path);
    scratch_write(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

static void refused(const char *text, mode_t mode, bool group, const char *words)
{
    struct keys *k = NULL;
    struct err err = {""};
    assert_int_equal(keys_open(write_keys(text, mode), group, &k, &err), ERR_USAGE);
    assert_null(k);
    if (!strstr(err.text, words))
        fail_msg("\"%s\" does not say \"%s\"", err.text, words);
}

static void test_files(void **state)
{
    struct keys *k = NULL;
    struct err err = {""};
    char text[400];
    (void)state;
    refused("", 0600, false, "has no key");
    refused("# nothing\n\n", 0600, false, "has no key");
    refused("long-enough\nshort\n", 0600, false, "line 2: a key has 8 to 256 printable");
    refused("has a space\n", 0600, false, "line 1");
    refused("caf\xc3\xa9-caf\xc3\xa9\n", 0600, false, "line 1");
    refused("long-enough\n", 0644, false, "mode 0644 and others can use it: chmod 600");
    refused("long-enough\n", 0640, false, "mode 0640");
    refused("long-enough\n", 0601, true, "mode 0601");
    memset(text, 'k', sizeof text);
    text[257] = '\0';
    refused(text, 0600, false, "line 1");
    text[256] = '\0';
    assert_int_equal(keys_open(write_keys(text, 0400), false, &k, &err), OK);
    keys_close(k);
    assert_int_equal(keys_open(write_keys("long-enough", 0440), true, &k, &err), OK);
    keys_close(k);
    assert_int_equal(keys_open(scratch_path("none"), false, &k, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "No such file"));
    assert_int_equal(keys_open(scratch_dir, false, &k, &err), ERR_USAGE);
}

static void test_check(void **state)
{
    struct keys *k = NULL;
    struct err err = {""};
    (void)state;
    const char *path = write_keys("  # mine\r\nfirst-key-0001\r\n\n \tother-key-0002  ", 0600);
    assert_int_equal(keys_open(path, false, &k, &err), OK);
    assert_int_equal(keys_count(k), 2);
    assert_true(keys_check(k, "Bearer first-key-0001", NULL) == FIRST_IDENTITY);
    assert_true(keys_check(k, "bEARER   first-key-0001", NULL) == FIRST_IDENTITY);
    assert_true(keys_check(k, "Bearer other-key-0002", NULL) != 0);
    assert_true(keys_check(k, "Bearer other-key-0002", NULL) != FIRST_IDENTITY);
    static const char *const wrong[] = {NULL,
                                        "",
                                        "Bearer",
                                        "Bearer ",
                                        "Bearerfirst-key-0001",
                                        "Basic first-key-0001",
                                        "first-key-0001",
                                        "Bearer first-key-000",
                                        "Bearer first-key-00011",
                                        "Bearer First-key-0001",
                                        "Bearer first-key-0001 ",
                                        "Bearer # mine"};
    for (size_t i = 0; i < ARRAY_LEN(wrong); i++)
        assert_true(keys_check(k, wrong[i], NULL) == 0);
    /* the bare key in the other header, whatever is in this one */
    assert_true(keys_check(k, NULL, "first-key-0001") == FIRST_IDENTITY);
    assert_true(keys_check(k, "Bearer none", "first-key-0001") == FIRST_IDENTITY);
    assert_true(keys_check(k, "Bearer first-key-0001", "none") == FIRST_IDENTITY);
    assert_true(keys_check(k, "Bearer first-key-0001", "other-key-0002") == FIRST_IDENTITY);
    static const char *const bare[] = {
        "",      "first-key-000", "first-key-00011", " first-key-0001", "Bearer first-key-0001",
        "# mine"};
    for (size_t i = 0; i < ARRAY_LEN(bare); i++)
        assert_true(keys_check(k, NULL, bare[i]) == 0);
    keys_close(k);
}

static void test_reload(void **state)
{
    struct keys *k = NULL;
    struct err err = {""};
    (void)state;
    assert_int_equal(keys_open(write_keys("first-key-0001\n", 0600), false, &k, &err), OK);
    write_keys("short\n", 0600);
    assert_int_equal(keys_reload(k, &err), ERR_USAGE);
    assert_true(keys_check(k, "Bearer first-key-0001", NULL) != 0);
    write_keys("other-key-0002\n", 0644);
    assert_int_equal(keys_reload(k, &err), ERR_USAGE);
    assert_true(keys_check(k, "Bearer first-key-0001", NULL) != 0);
    write_keys("other-key-0002\n", 0600);
    assert_int_equal(keys_reload(k, &err), OK);
    assert_true(keys_check(k, "Bearer first-key-0001", NULL) == 0);
    assert_true(keys_check(k, "Bearer other-key-0002", NULL) != 0);
    keys_close(k);
}

static void test_access(void **state)
{
    struct options o = {.host = "127.0.0.1"};
    struct keys *k = NULL;
    struct err err = {""};
    (void)state;
    unsetenv("CREDENTIALS_DIRECTORY");
    assert_int_equal(access_open(&o, &k, &err), OK);
    assert_null(k);
    o.host = "0.0.0.0";
    assert_int_equal(access_open(&o, &k, &err), ERR_USAGE);
    assert_non_null(strstr(err.text, "--insecure-no-auth"));
    o.insecure_no_auth = true;
    assert_int_equal(access_open(&o, &k, &err), OK);
    assert_null(k);
    o.api_key_file = write_keys("first-key-0001\n", 0600);
    assert_int_equal(access_open(&o, &k, &err), ERR_USAGE); /* which of the two? */
    o.insecure_no_auth = false;
    assert_int_equal(access_open(&o, &k, &err), OK);
    assert_non_null(k);
    keys_close(k);
    k = NULL;
    o.api_key_file = NULL;
    setenv("CREDENTIALS_DIRECTORY", scratch_dir, 1);
    assert_int_equal(access_open(&o, &k, &err), ERR_USAGE); /* none in there */
    scratch_write(scratch_path("api-keys"), "credential-key", 14);
    assert_int_equal(chmod(scratch_path("api-keys"), 0440), 0);
    assert_int_equal(access_open(&o, &k, &err), OK);
    assert_true(keys_check(k, "Bearer credential-key", NULL) != 0);
    keys_close(k);
    unsetenv("CREDENTIALS_DIRECTORY");
}

static uint64_t hash_of(const char *address, int port)
{
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    assert_int_equal(inet_pton(AF_INET, address, &v4.sin_addr), 1);
    return http_listen_hash((const struct sockaddr *)&v4);
}

static void test_addresses(void **state)
{
    (void)state;
    assert_true(http_listen_is_loopback("127.0.0.1"));
    assert_true(http_listen_is_loopback("127.8.9.1"));
    assert_true(http_listen_is_loopback("::1"));
    assert_true(http_listen_is_loopback("localhost"));
    assert_false(http_listen_is_loopback("localhost.example"));
    assert_false(http_listen_is_loopback("0.0.0.0"));
    assert_false(http_listen_is_loopback("::"));
    assert_false(http_listen_is_loopback("128.0.0.1"));
    assert_false(http_listen_is_loopback("10.127.0.1"));
    assert_false(http_listen_is_loopback("nowhere"));
    assert_true(hash_of("10.0.0.1", 1) == hash_of("10.0.0.1", 2));
    assert_true(hash_of("10.0.0.1", 1) != hash_of("10.0.0.2", 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_files),     cmocka_unit_test(test_check),
        cmocka_unit_test(test_reload),    cmocka_unit_test(test_access),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, scratch_open, scratch_close);
}

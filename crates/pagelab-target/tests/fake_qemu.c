/* As much of QEMU as the plugin asks for when it is loaded: its functions count how often they were called.
   fake_qemu PLUGIN MIN CUR TARGET SYSTEM ARGUMENT… says what the plugin was built for, what it answered, and
   how many callbacks it registered. */
#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

static int registered;
#define REGISTERS(name) void name(void) { registered++; }
REGISTERS(qemu_plugin_register_vcpu_init_cb)
REGISTERS(qemu_plugin_register_vcpu_exit_cb)
REGISTERS(qemu_plugin_register_vcpu_tb_trans_cb)
REGISTERS(qemu_plugin_register_vcpu_syscall_cb)
REGISTERS(qemu_plugin_register_vcpu_syscall_ret_cb)
REGISTERS(qemu_plugin_register_atexit_cb)
REGISTERS(qemu_plugin_register_vcpu_mem_cb)
REGISTERS(qemu_plugin_register_vcpu_mem_inline)
REGISTERS(qemu_plugin_register_vcpu_tb_exec_inline)
void qemu_plugin_reset(void) {}
size_t qemu_plugin_tb_n_insns(void *block) { (void)block; return 0; }
void *qemu_plugin_tb_get_insn(void *block, size_t at) { (void)block; (void)at; return 0; }
void *qemu_plugin_insn_data(void *insn) { (void)insn; return 0; }
size_t qemu_plugin_insn_size(void *insn) { (void)insn; return 0; }
bool qemu_plugin_mem_is_store(uint32_t info) { return info >> 16 & 2; }

/* include/qemu/qemu-plugin.h of QEMU 7.2 */
typedef struct {
    const char *target_name;
    struct { int min; int cur; } version;
    bool system_emulation;
    union { struct { int smp_vcpus; int max_vcpus; } system; };
} qemu_info_t;

int main(int count, char **words) {
    if (count < 6) return 2;
    void *plugin = dlopen(words[1], RTLD_NOW);
    if (!plugin) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    int *version = dlsym(plugin, "qemu_plugin_version");
    int (*install)(uint64_t, const qemu_info_t *, int, char **) = dlsym(plugin, "qemu_plugin_install");
    if (!version || !install) return 4;
    qemu_info_t info = {
        .target_name = words[4],
        .version = { .min = atoi(words[2]), .cur = atoi(words[3]) },
        .system_emulation = atoi(words[5]),
    };
    int answer = install(1, &info, count - 6, words + 6);
    printf("%d %d %d\n", *version, answer, registered);
    return 0;
}

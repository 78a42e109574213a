/* NVML's library as nvml.h declares it, with one H100 that never changes: what the binding reads is read through
   its own structures. With -DOLD it is a driver that knows version 2 of the process lists, no PCIe counters, no GPM. */

#include <string.h>

typedef int result;
typedef void *device;
enum { SUCCESS = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7 };

static int the_card, a_sample;

result nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
result nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(result r) { return r == NOT_SUPPORTED ? "Not Supported" : "Not Found"; }
result nvmlSystemGetDriverVersion(char *out, unsigned n) { strncpy(out, "580.159.04", n); return SUCCESS; }
result nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return SUCCESS; }
result nvmlDeviceGetHandleByIndex_v2(unsigned i, device *d) { *d = &the_card; return i ? NOT_FOUND : SUCCESS; }
result nvmlDeviceGetName(device d, char *out, unsigned n) { strncpy(out, "NVIDIA H100 80GB HBM3", n); return SUCCESS; }
result nvmlDeviceGetUUID(device d, char *out, unsigned n) {
    strncpy(out, "GPU-3f2504e0-4f89-11d3-9a0c-0305e82c3301", n);
    return SUCCESS;
}

typedef struct { unsigned long long total, free, used; } memory;
result nvmlDeviceGetMemoryInfo(device d, memory *m) {
    m->total = 81559ull << 20, m->used = 1200ull << 20, m->free = m->total - m->used;
    return SUCCESS;
}

result nvmlDeviceGetMigMode(device d, unsigned *now, unsigned *next) { *now = *next = 0; return SUCCESS; }
result nvmlDeviceGetMaxMigDeviceCount(device d, unsigned *n) { *n = 7; return SUCCESS; }
result nvmlDeviceGetMigDeviceHandleByIndex(device d, unsigned i, device *out) { return NOT_FOUND; }

typedef struct { unsigned gpu, memory; } utilization;
result nvmlDeviceGetUtilizationRates(device d, utilization *u) { u->gpu = 87, u->memory = 40; return SUCCESS; }
result nvmlDeviceGetPowerUsage(device d, unsigned *milliwatts) { *milliwatts = 300000; return SUCCESS; }
result nvmlDeviceGetTotalEnergyConsumption(device d, unsigned long long *mj) { *mj = 1ull << 40; return SUCCESS; }
result nvmlDeviceGetTemperature(device d, int sensor, unsigned *c) { *c = 61; return SUCCESS; }

typedef union { double d; int i; unsigned u; unsigned long ul; unsigned long long ull; long long sll; } value;
typedef struct {
    unsigned field, scope;
    long long timestamp, latency;
    int type;
    result said;
    value value;
} field_value;
result nvmlDeviceGetFieldValues(device d, int n, field_value *v) {
    for (int i = 0; i < n; i++) {
        v[i].said = SUCCESS;
        if (v[i].field == 186) v[i].type = 1, v[i].value.u = 250000; /* unsigned int */
#ifndef OLD
        else if (v[i].field == 197) v[i].type = 3, v[i].value.ull = 1ull << 35; /* unsigned long long */
        else if (v[i].field == 198) v[i].type = 3, v[i].value.ull = 1ull << 36;
#endif
        else v[i].said = NOT_SUPPORTED;
    }
    return SUCCESS;
}
result nvmlDeviceGetPcieThroughput(device d, int way, unsigned *kb) { *kb = way ? 4000 : 1000; return SUCCESS; }

typedef struct { unsigned version, is_supported; } gpm_support;
#ifdef OLD
result nvmlGpmQueryDeviceSupport(device d, gpm_support *s) { s->is_supported = 0; return SUCCESS; }
#else
result nvmlGpmQueryDeviceSupport(device d, gpm_support *s) {
    s->is_supported = 1;
    return s->version == 1 ? SUCCESS : NOT_SUPPORTED;
}
#endif
result nvmlGpmSampleAlloc(void **sample) { *sample = &a_sample; return SUCCESS; }
result nvmlGpmSampleGet(device d, void *sample) { return sample == &a_sample ? SUCCESS : NOT_FOUND; }
typedef struct { unsigned id; result said; double value; char *names[3]; } gpm_metric;
typedef struct { unsigned version, count; void *first, *second; gpm_metric metrics[]; } gpm_get;
result nvmlGpmMetricsGet(gpm_get *g) {
    if (g->version != 1 || g->first != &a_sample || g->second != &a_sample) return NOT_FOUND;
    for (unsigned i = 0; i < g->count; i++)
        g->metrics[i].said = SUCCESS, g->metrics[i].value = g->metrics[i].id == 20 ? 64.0 : 128.0;
    return SUCCESS;
}

typedef struct { unsigned pid; unsigned long long used; unsigned gpu_instance, compute_instance; } process;
static result processes(unsigned *n, process *p) {
    if (*n < 2) { *n = 2; return INSUFFICIENT_SIZE; }
    *n = 2;
    p[0] = (process){7, 5ull << 30, ~0u, ~0u}, p[1] = (process){8, ~0ull, ~0u, ~0u};
    return SUCCESS;
}
#ifdef OLD
result nvmlDeviceGetComputeRunningProcesses_v2(device d, unsigned *n, process *p) { return processes(n, p); }
#else
result nvmlDeviceGetComputeRunningProcesses_v3(device d, unsigned *n, process *p) { return processes(n, p); }
result nvmlDeviceGetGraphicsRunningProcesses_v3(device d, unsigned *n, process *p) { *n = 0; return SUCCESS; }
#endif

typedef struct {
    unsigned gpu, memory;
    unsigned long long highest, time, start;
    unsigned is_running, reserved[5];
} accounting;
result nvmlDeviceGetAccountingStats(device d, unsigned pid, accounting *a) {
    a->highest = pid == 7 ? 6ull << 30 : ~0ull;
    return SUCCESS;
}

/* A libnvidia-ml.so.1 that answers from a text file, so that the real pynvml runs without a GPU.
 *
 * NVML_STUB_ANSWERS names the file. A line is `function arguments = answer`: devices are written
 * as their index. Trailing arguments may be left out, the longest match wins:
 *     nvmlDeviceGetNvLinkState 0 = 1          all links of GPU 0 are active
 *     nvmlDeviceGetNvLinkState 0 18 = !2      but link 18 answers error 2, invalid argument
 * A call with no line answers 3, not supported. OLD_DRIVER leaves newer symbols out.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NOT_SUPPORTED 3
#define NOT_FOUND 6
#define INSUFFICIENT_SIZE 7
#define MAX_LINES 4096

typedef void *Device; /* index + 1 */
typedef struct {
    char busIdLegacy[16];
    unsigned domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} PciInfo;
typedef struct {
    unsigned fieldId, scopeId;
    long long timestamp, latencyUsec;
    int valueType, nvmlReturn;
    union { unsigned uiVal; unsigned long long ullVal; double dVal; } value;
} FieldValue;
typedef struct { unsigned long long total, free, used; } Memory;
typedef struct { unsigned pid; unsigned long long used; unsigned gi, ci; } ProcessInfo;
typedef struct { unsigned char clusterUuid[16]; int status; unsigned cliqueId, state; } Fabric;
typedef struct { unsigned version; Fabric fabric; unsigned healthMask; } FabricV;

static char keys[MAX_LINES][96], answers[MAX_LINES][96];
static int lines;

static int number_of(Device device) { return (int)((char *)device - (char *)0) - 1; }

static void load(void) {
    char text[256];
    const char *path = getenv("NVML_STUB_ANSWERS");
    FILE *file = path ? fopen(path, "r") : NULL;
    lines = 0;
    while (file && lines < MAX_LINES && fgets(text, sizeof text, file)) {
        char *middle = strstr(text, " = ");
        if (!middle || text[0] == '#') continue;
        *middle = 0;
        snprintf(keys[lines], sizeof keys[0], "%s", text);
        snprintf(answers[lines], sizeof answers[0], "%s", middle + 3);
        answers[lines][strcspn(answers[lines], "\n")] = 0;
        lines++;
    }
    if (file) fclose(file);
}

/* The answer to `function a b c` (-1: no such argument); *code is the error otherwise. */
static const char *find(const char *function, int a, int b, int c, int *code) {
    char key[96];
    int args[3] = {a, b, c};
    for (int used = 3; used >= 0; used--) {
        int at = snprintf(key, sizeof key, "%s", function);
        for (int i = 0; i < used && args[i] >= 0; i++)
            at += snprintf(key + at, sizeof key - at, " %d", args[i]);
        for (int i = 0; i < lines; i++)
            if (!strcmp(keys[i], key)) {
                *code = answers[i][0] == '!' ? atoi(answers[i] + 1) : 0;
                return *code ? NULL : answers[i];
            }
    }
    *code = NOT_SUPPORTED;
    return NULL;
}

static int whole(const char *function, int a, int b, int c, unsigned *out) {
    int code;
    const char *answer = find(function, a, b, c, &code);
    if (answer) *out = (unsigned)strtoul(answer, NULL, 0);
    return code;
}

static int text(const char *function, int a, char *out, unsigned size) {
    int code;
    const char *answer = find(function, a, -1, -1, &code);
    if (answer && !strcmp(answer, "unprintable")) memset(out, 0xff, 8), out[8] = 0;
    else if (answer) snprintf(out, size, "%s", answer);
    return code;
}

static int pci(const char *function, int a, int b, PciInfo *out) {
    int code;
    const char *answer = find(function, a, b, -1, &code);
    memset(out, 0, sizeof *out);
    if (!answer) return code;
    if (!strcmp(answer, "unprintable")) memset(out->busId, 0xff, 8);
    else if (strcmp(answer, "empty")) snprintf(out->busId, sizeof out->busId, "%s", answer);
    return 0;
}

/* The answer is `state uuid clique status`, the UUID in 32 hexadecimal digits. */
static int fabric(const char *function, int a, int version, Fabric *out) {
    int code;
    char digits[33] = "";
    const char *answer = find(function, a, version, -1, &code);
    memset(out, 0, sizeof *out);
    if (!answer) return code;
    sscanf(answer, "%u %32s %u %d", &out->state, digits, &out->cliqueId, &out->status);
    for (int i = 0; i < 16; i++) sscanf(digits + 2 * i, "%2hhx", &out->clusterUuid[i]);
    return 0;
}

int nvmlInitWithFlags(unsigned flags) {
    int code;
    (void)flags;
    load();
    find("nvmlInitWithFlags", -1, -1, -1, &code);
    return code == NOT_SUPPORTED ? 0 : code;
}
int nvmlShutdown(void) { return 0; }
const char *nvmlErrorString(int code) { (void)code; return "stub error"; }
int nvmlSystemGetDriverVersion(char *out, unsigned size) {
    return text("nvmlSystemGetDriverVersion", -1, out, size);
}
int nvmlDeviceGetCount_v2(unsigned *out) { return whole("nvmlDeviceGetCount", -1, -1, -1, out); }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device *out) {
    int code;
    find("nvmlDeviceGetHandleByIndex", (int)index, -1, -1, &code);
    *out = (char *)0 + index + 1;
    return code == NOT_SUPPORTED ? 0 : code;
}
int nvmlDeviceGetName(Device d, char *out, unsigned size) {
    return text("nvmlDeviceGetName", number_of(d), out, size);
}
int nvmlDeviceGetUUID(Device d, char *out, unsigned size) {
    return text("nvmlDeviceGetUUID", number_of(d), out, size);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device *out) {
    for (int index = 0, code = 0; index < 64; index++) {
        const char *answer = find("nvmlDeviceGetUUID", index, -1, -1, &code);
        if (answer && !strcmp(answer, uuid)) {
            *out = (char *)0 + index + 1;
            return 0;
        }
    }
    return NOT_FOUND;
}
/* The answer is `pid:bytes pid:bytes ...`; bytes `?` are those that the driver does not tell. */
int nvmlDeviceGetComputeRunningProcesses_v3(Device d, unsigned *count, ProcessInfo *out) {
    int code, found = 0, read = 0;
    unsigned pid;
    char bytes[24];
    const char *answer = find("nvmlDeviceGetComputeRunningProcesses", number_of(d), -1, -1, &code);
    if (!answer) return code;
    while (sscanf(answer, " %u:%23s%n", &pid, bytes, &read) == 2) {
        if (out && (unsigned)found < *count) {
            memset(&out[found], 0, sizeof *out);
            out[found].pid = pid;
            out[found].used = bytes[0] == '?' ? ~0ULL : strtoull(bytes, NULL, 10);
        }
        found++;
        answer += read;
    }
    *count = (unsigned)found;
    return found && !out ? INSUFFICIENT_SIZE : 0;
}
int nvmlDeviceGetPciInfo_v3(Device d, PciInfo *out) {
    return pci("nvmlDeviceGetPciInfo", number_of(d), -1, out);
}
int nvmlDeviceGetMemoryInfo(Device d, Memory *out) {
    int code;
    const char *answer = find("nvmlDeviceGetMemoryInfo", number_of(d), -1, -1, &code);
    memset(out, 0, sizeof *out);
    if (answer) out->total = strtoull(answer, NULL, 0);
    return code;
}
int nvmlDeviceGetCudaComputeCapability(Device d, int *major, int *minor) {
    int code;
    const char *answer = find("nvmlDeviceGetCudaComputeCapability", number_of(d), -1, -1, &code);
    if (answer) sscanf(answer, "%d.%d", major, minor);
    return code;
}
int nvmlDeviceGetCpuAffinity(Device d, unsigned words, unsigned long *mask) {
    int code; /* the answer is one 64-bit word in hexadecimal */
    const char *answer = find("nvmlDeviceGetCpuAffinity", number_of(d), -1, -1, &code);
    memset(mask, 0, words * sizeof *mask);
    if (answer && words) mask[0] = strtoul(answer, NULL, 16);
    return code;
}
int nvmlDeviceGetTopologyCommonAncestor(Device a, Device b, unsigned *out) {
    return whole("nvmlDeviceGetTopologyCommonAncestor", number_of(a), number_of(b), -1, out);
}
int nvmlDeviceGetP2PStatus(Device a, Device b, int index, unsigned *out) {
    return whole("nvmlDeviceGetP2PStatus", number_of(a), number_of(b), index, out);
}
int nvmlDeviceGetNvLinkState(Device d, unsigned link, unsigned *out) {
    return whole("nvmlDeviceGetNvLinkState", number_of(d), (int)link, -1, out);
}
int nvmlDeviceGetNvLinkCapability(Device d, unsigned link, unsigned capability, unsigned *out) {
    return whole("nvmlDeviceGetNvLinkCapability", number_of(d), (int)link, (int)capability, out);
}
int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device d, unsigned link, PciInfo *out) {
    return pci("nvmlDeviceGetNvLinkRemotePciInfo", number_of(d), (int)link, out);
}
int nvmlDeviceGetFieldValues(Device d, int count, FieldValue *values) {
    int code; /* no field at all: `nvmlDeviceGetFieldValues 0 = !15` */
    find("nvmlDeviceGetFieldValues", number_of(d), -1, -1, &code);
    if (code && code != NOT_SUPPORTED) return code;
    for (int i = 0; i < count; i++) {
        values[i].valueType = 1; /* unsigned int */
        values[i].value.ullVal = 0;
        values[i].nvmlReturn = whole("nvmlDeviceGetFieldValues", number_of(d),
                                     (int)values[i].fieldId, (int)values[i].scopeId,
                                     &values[i].value.uiVal);
    }
    return 0;
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device d, unsigned *out) {
    return whole("nvmlDeviceGetMaxPcieLinkGeneration", number_of(d), -1, -1, out);
}
int nvmlDeviceGetMaxPcieLinkWidth(Device d, unsigned *out) {
    return whole("nvmlDeviceGetMaxPcieLinkWidth", number_of(d), -1, -1, out);
}
int nvmlDeviceGetCurrPcieLinkGeneration(Device d, unsigned *out) {
    return whole("nvmlDeviceGetCurrPcieLinkGeneration", number_of(d), -1, -1, out);
}
int nvmlDeviceGetCurrPcieLinkWidth(Device d, unsigned *out) {
    return whole("nvmlDeviceGetCurrPcieLinkWidth", number_of(d), -1, -1, out);
}
int nvmlDeviceGetNvLinkVersion(Device d, unsigned link, unsigned *out) {
    return whole("nvmlDeviceGetNvLinkVersion", number_of(d), (int)link, -1, out);
}
#ifndef OLD_DRIVER
int nvmlDeviceGetGpuFabricInfo(Device d, Fabric *out) {
    return fabric("nvmlDeviceGetGpuFabricInfo", number_of(d), -1, out);
}
int nvmlDeviceGetGpuFabricInfoV(Device d, FabricV *out) {
    /* versions 2 and 3 differ behind the mask; the second argument of a line is the version */
    return fabric("nvmlDeviceGetGpuFabricInfoV", number_of(d), (int)(out->version >> 24),
                  &out->fabric);
}
int nvmlDeviceGetMaxMigDeviceCount(Device d, unsigned *out) {
    return whole("nvmlDeviceGetMaxMigDeviceCount", number_of(d), -1, -1, out);
}
int nvmlDeviceGetMigDeviceHandleByIndex(Device d, unsigned slot, Device *out) {
    unsigned number = 0; /* the answer stands for the MIG device in other lines */
    int code = whole("nvmlDeviceGetMigDeviceHandleByIndex", number_of(d), (int)slot, -1, &number);
    *out = (char *)0 + number + 1;
    return code;
}
int nvmlDeviceGetMigMode(Device d, unsigned *current, unsigned *pending) {
    *pending = 0;
    return whole("nvmlDeviceGetMigMode", number_of(d), -1, -1, current);
}
int nvmlDeviceGetNvLinkRemoteDeviceType(Device d, unsigned link, unsigned *out) {
    return whole("nvmlDeviceGetNvLinkRemoteDeviceType", number_of(d), (int)link, -1, out);
}
#endif

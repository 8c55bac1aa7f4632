"""CUDA C++ of the products with W12 weights, and what compiles and starts it on a device.

Every warp multiplies 32 rows of the matrix by all rows of x.  It reads its own codes from memory straight into
registers, four steps of 32 columns ahead, in the order of the operands of `wgmma`, so that no code ever passes through
shared memory; x does, one group of 128 columns after the other, for all warps of a program.
What a program has summed goes to a workspace, piece by piece, and a second kernel, started early, finishes the outputs.

`INTRINSICS` is all that needs a GPU's assembly.  `KERNELS` is C++ around it, so that a stand-in for the intrinsics runs
the same kernels on a CPU.
"""

import ctypes
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["INTRINSICS", "KERNELS", "Arguments", "Device", "Machine", "device"]

CAPABILITY = (9, 0)  # wgmma is Hopper's alone

INTRINSICS = r"""
typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

// The first place in shared memory where its pattern of 8 rows begins.
__device__ __forceinline__ u8* aligned(u8* memory) {
    return memory + (1024 - (u32)__cvta_generic_to_shared(memory) % 1024) % 1024;
}
__device__ __forceinline__ u64 read_once() {
    u64 policy;
    asm("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}
__device__ __forceinline__ uint4 streamed(const uint4* at, u64 policy) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::cache_hint.v4.u32 {%0,%1,%2,%3}, [%4], %5;"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(at), "l"(policy));
    return v;
}
// 16 bytes into shared memory, from memory or, with no bytes, zeros.
__device__ __forceinline__ void copied(void* to, const void* from, u32 bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"((u32)__cvta_generic_to_shared(to)), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void closed_group() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void waited_for_group() {
    asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}
__device__ __forceinline__ u32 product(u32 two, u32 factors) {
    u32 out;
    asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(out) : "r"(two), "r"(factors));
    return out;
}
__device__ __forceinline__ u32 sum_of_product(u32 two, u32 factors, u32 added) {
    u32 out;
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(out) : "r"(two), "r"(factors), "r"(added));
    return out;
}
// A tile of x in shared memory, [tokens, 64 columns] in rows of 128 bytes, whose 16-byte pieces are swapped by row.
__device__ __forceinline__ u64 described(const void* tile) {
    return (u64)(((u32)__cvta_generic_to_shared(tile) & 0x3ffff) >> 4) | 1ull << 16 | 64ull << 32 | 1ull << 62;
}
// What was copied into shared memory may be read by products.
__device__ __forceinline__ void shown_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void products_may_read() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void closed_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void waited_for_products() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory");
}
__device__ __forceinline__ float wide(u16 v) { return __uint_as_float((u32)v << 16); }
__device__ __forceinline__ u16 narrow(float v) {
    u16 out;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out) : "f"(v));
    return out;
}
// The next kernel may come up while this one runs, and waits there for all that this one writes.
__device__ __forceinline__ void let_next_start() { asm volatile("griddepcontrol.launch_dependents;"); }
__device__ __forceinline__ void waited_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
"""

# Compiled for: TOKENS (rows of x at most, a multiple of 16), WARPS, BLOCKS (programs that a processor holds),
# STAGES (groups of x that are there or on their way) and FORMAT (0: both planes, 1: the high one, 2: bfloat16).
KERNELS = r"""
#define ROWS (WARPS * 32)    // of a tile: one for each thread
#define HALF_STAGE (TOKENS * 128)  // bytes of 64 columns of x
#define STAGE (2 * HALF_STAGE)

struct Arguments {
    const u16* x; const uint4* high; const uint4* low;
    const short* base; const int* starts; const int* columns; const u16* values;
    const u16* bias; const u16* residual; float* work; void* y;
    int rows, n, k, pitch, groups, tiles, programs, slices, paired, floats;
};

__device__ __forceinline__ int owner(i64 unit, i64 units, i64 programs) {
    return (int)(((unit + 1) * programs - 1) / units);
}

// Two codes as bfloat16 numbers, weight / 2^(base - 112).  A half-word of z holds [high byte, low byte].
template <int NIBBLE> __device__ __forceinline__ u32 decoded(u32 high, u32 low, u32 picks) {
    u32 z = __byte_perm(high, low, picks);
    u32 shifted = (z >> 4) & (NIBBLE == 1 ? 0x07ff07ffu : 0x07f007f0u);
    z = (z & (NIBBLE == 0 ? 0x800f800fu : 0x80008000u)) | shifted;
    return product(z, 0x77807780u);  // 2^112
}
// The same of the high byte alone: the middle of what it leaves open, a sixteenth of its power of two above it.
__device__ __forceinline__ u32 middle(u32 high, u32 picks) {
    u32 z = __byte_perm(high, 0, picks);
    z = (z & 0x80008000u) | ((z >> 4) & 0x07f007f0u);
    return sum_of_product(z & 0xff80ff80u, 0x75807580u, product(z, 0x77807780u));  // 2^108
}

// What a thread holds of 32 rows by 32 columns: rows g, g + 8, g + 16, g + 24 by columns 2 q, 2 q + 1 of each eight.
struct Codes {
#if FORMAT == 2
    uint4 high[2][2];
#else
    uint4 high[2], low;
#endif
};

__device__ __forceinline__ void fetched(Codes& codes, const uint4* high, const uint4* low, u64 policy) {
#if FORMAT == 2
    for (int m = 0; m < 2; m++)
        for (int kk = 0; kk < 2; kk++) codes.high[m][kk] = streamed(high + (m * 2 + kk) * 32, policy);
#else
    for (int m = 0; m < 2; m++) codes.high[m] = streamed(high + m * 32, policy);
#if FORMAT == 0
    codes.low = streamed(low, policy);
#endif
#endif
}

// The four registers of an operand of 16 rows (half m of the codes) by 16 columns (half kk).
__device__ __forceinline__ void operand(u32 (&a)[4], const Codes& codes, int m, int kk) {
#if FORMAT == 2
    uint4 h = codes.high[m][kk];
    a[0] = h.x; a[2] = h.y; a[1] = h.z; a[3] = h.w;
#else
    uint4 h = codes.high[m];
    u32 upper = kk ? h.z : h.x, lower = kk ? h.w : h.y;  // rows g and g + 8
#if FORMAT == 1
    a[0] = middle(upper, 0x1707); a[2] = middle(upper, 0x3727);
    a[1] = middle(lower, 0x1707); a[3] = middle(lower, 0x3727);
#else
    u32 l = m ? (kk ? codes.low.w : codes.low.z) : (kk ? codes.low.y : codes.low.x);
    a[0] = decoded<0>(upper, l, 0x1504); a[2] = decoded<0>(upper, l, 0x3726);
    a[1] = decoded<1>(lower, l, 0x1504); a[3] = decoded<1>(lower, l, 0x3726);
#endif
#endif
}

extern "C" __global__ void __launch_bounds__(ROWS, BLOCKS) w12_multiply(const __grid_constant__ Arguments p) {
    extern __shared__ u8 memory[];
    u8* shared = aligned(memory);
    constexpr int HIGH = FORMAT == 2 ? 128 : 64;  // 16-byte words of a step: 32 rows by 32 columns
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    i64 units = (i64)p.tiles * p.groups;
    int first = (int)((i64)blockIdx.x * units / p.programs), end = (int)(((i64)blockIdx.x + 1) * units / p.programs);
    u64 policy = read_once();
    const uint4* high = p.high + ((i64)first * WARPS + warp) * (4 * HIGH) + lane;
    const uint4* low = p.low + ((i64)first * WARPS + warp) * (4 * 32) + lane;
    Codes codes[4];
#pragma unroll
    for (int step = 0; step < 4; step++) fetched(codes[step], high + step * HIGH, low + step * 32, policy);
    let_next_start();
    waited_for_previous();

    auto copy_x = [&](int unit) {
        u8* to = shared + (unit - first) % STAGES * STAGE;
        int column = unit % p.groups * 128;
        for (int i = threadIdx.x; i < TOKENS * 16; i += ROWS) {
            int row = i / 16, piece = i % 16, at = column + piece * 8;
            bool there = row < p.rows && at < p.pitch;
            u8* place = to + piece / 8 * HALF_STAGE + row * 128 + ((piece % 8) ^ (row % 8)) * 16;
            copied(place, p.x + (there ? (i64)row * p.pitch + at : 0), there ? 16 : 0);
        }
    };
    // Two behind the stage that is multiplied, since products of the last one may still be on their way.
#pragma unroll
    for (int stage = 0; stage < STAGES - 2; stage++) {
        if (first + stage < end) copy_x(first + stage);
        closed_group();
    }
    float sums[2][TOKENS / 2] = {};
    u32 a[2][2][2][4];  // operands of two steps, of which one is read while the other is made
    for (int unit = first; unit < end; unit++) {
        waited_for_group<STAGES - 3>();
        shown_to_products();
        __syncthreads();
        if (unit + STAGES - 2 < end) copy_x(unit + STAGES - 2);
        closed_group();
        bool more = unit + 1 < end;
        high += WARPS * 4 * HIGH;
        low += WARPS * 4 * 32;
        u64 x = described(shared + (unit - first) % STAGES * STAGE);
#pragma unroll
        for (int step = 0; step < 4; step++) {
            auto& now = a[step % 2];
            waited_for_products<1>();
#pragma unroll
            for (int m = 0; m < 2; m++)
#pragma unroll
                for (int kk = 0; kk < 2; kk++) operand(now[m][kk], codes[step], m, kk);
            if (more) fetched(codes[step], high + step * HIGH, low + step * 32, policy);
            products_may_read();
#pragma unroll
            for (int kk = 0; kk < 2; kk++)
#pragma unroll
                for (int m = 0; m < 2; m++)
                    multiplied(sums[m], now[m][kk], x + step / 2 * (HALF_STAGE / 16) + (step % 2 * 2 + kk) * 2);
            closed_products();
        }
        if ((unit + 1) % p.groups != 0 && more) continue;
        waited_for_products<0>();
        int tile = unit / p.groups, piece = blockIdx.x - owner((i64)tile * p.groups, units, p.programs);
        float* work = p.work + ((i64)tile * p.slices + piece) * (TOKENS * ROWS);
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int i = 0; i < TOKENS / 2; i++) {
                int row = warp * 32 + m * 16 + g + i / 2 % 2 * 8, token = i / 4 * 8 + q * 2 + i % 2;
                __stcg(work + token * ROWS + row, sums[m][i]);
                sums[m][i] = 0.0f;
            }
    }
}

#define AHEAD 8  // escapes of a row that are read at once: each waits for memory twice, for its column and for x there

struct Escapes {
    int columns[AHEAD];
    float values[AHEAD];
};

__device__ __forceinline__ Escapes escapes_of(const Arguments& p, int at, int end) {
    Escapes e;
#pragma unroll
    for (int i = 0; i < AHEAD; i++) {
        bool there = at + i < end;
        e.columns[i] = there ? p.columns[at + i] : 0;
        e.values[i] = there ? wide(p.values[at + i]) : 0.0f;
    }
    return e;
}

// What a row of the matrix brings besides its codes, read before the sums are there.
struct Row {
    float scale, bias;
    int at, end;
    Escapes first;
};

__device__ __forceinline__ Row row_of(const Arguments& p, int row) {
    Row r;
    r.scale = __uint_as_float((u32)(p.base[row] + 15) << 23);  // 2^(base - 112)
    r.bias = p.bias ? wide(p.bias[row]) : 0.0f;
    r.at = p.starts[row];
    r.end = p.starts[row + 1];
    r.first = escapes_of(p, r.at, r.end);
    return r;
}

#define TOGETHER 4  // rows of x that a thread finishes

__device__ __forceinline__ void outputs_of(
    float (&y)[TOGETHER], const Arguments& p, const Row& r, const float* work, int pieces, int token
) {
    for (int t = 0; t < TOGETHER; t++) y[t] = 0.0f;
    for (int piece = 0; piece < pieces; piece += 4) {
        float part[4][TOGETHER];
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int t = 0; t < TOGETHER; t++)
                part[i][t] = piece + i < pieces ? __ldcg(work + (i64)(piece + i) * (TOKENS * ROWS) + t * ROWS) : 0.0f;
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int t = 0; t < TOGETHER; t++)
                if (piece + i < pieces) y[t] = piece + i ? y[t] + part[i][t] : part[i][t];
    }
#pragma unroll
    for (int t = 0; t < TOGETHER; t++) y[t] *= r.scale;
    Escapes e = r.first;
    for (int at = r.at; at < r.end; at += AHEAD) {
        if (at != r.at) e = escapes_of(p, at, r.end);
        float x[AHEAD][TOGETHER];
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int t = 0; t < TOGETHER; t++) {
                int row = token + t < p.rows ? token + t : p.rows - 1;
                x[i][t] = at + i < r.end ? wide(p.x[(i64)row * p.pitch + e.columns[i]]) : 0.0f;
            }
#pragma unroll
        for (int i = 0; i < AHEAD; i++)
#pragma unroll
            for (int t = 0; t < TOGETHER; t++)
                if (at + i < r.end) y[t] += e.values[i] * x[i][t];
    }
    if (p.bias)
        for (int t = 0; t < TOGETHER; t++) y[t] += r.bias;
}

// Adds the pieces of TOGETHER rows of x by a thread's column, and writes them.
extern "C" __global__ void __launch_bounds__(128) w12_finish(const __grid_constant__ Arguments p) {
    int outputs = p.paired ? p.n / 2 : p.n, taken = p.paired ? ROWS / 2 : ROWS;
    int column = blockIdx.x * 128 + threadIdx.x, token = blockIdx.y * TOGETHER;
    let_next_start();
    if (column >= outputs) return;
    i64 units = (i64)p.tiles * p.groups;
    int tile = column / taken;
    int last = owner((i64)(tile + 1) * p.groups - 1, units, p.programs);
    int pieces = last - owner((i64)tile * p.groups, units, p.programs) + 1;
    const float* work = p.work + (i64)tile * p.slices * (TOKENS * ROWS) + token * ROWS + column % taken;
    Row row = row_of(p, column), up = p.paired ? row_of(p, column + outputs) : row;
    waited_for_previous();
    float y[TOGETHER], gated[TOGETHER];
    outputs_of(y, p, row, work, pieces, token);
    if (p.paired) {
        outputs_of(gated, p, up, work + taken, pieces, token);
        for (int t = 0; t < TOGETHER; t++) y[t] = y[t] / (1.0f + __expf(-y[t])) * gated[t];
    }
    for (int t = 0; t < TOGETHER && token + t < p.rows; t++) {
        i64 at = (i64)(token + t) * outputs + column;
        if (p.residual) y[t] += wide(p.residual[at]);
        if (p.floats) ((float*)p.y)[at] = y[t];
        else ((u16*)p.y)[at] = narrow(y[t]);
    }
}

// The bits of a unit's matrix; escapes, which are zeros here, come after.  One block a unit; a step goes through shared
// memory, so that rows are written 64 bytes at a time.
extern "C" __global__ void __launch_bounds__(ROWS) w12_unpack(const __grid_constant__ Arguments p) {
    extern __shared__ u8 memory[];
    constexpr int PITCH = 40;  // numbers of a row in shared memory: 32, and room that parts its banks
    int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, q = lane % 4;
    int unit = blockIdx.x, tile = unit / p.groups, outputs = p.paired ? p.n / 2 : p.n;
    int taken = p.paired ? ROWS / 2 : ROWS;
    const uint4* high = p.high + ((i64)unit * WARPS + warp) * 256 + lane;
    const uint4* low = p.low + ((i64)unit * WARPS + warp) * 128 + lane;
    u16* numbers = (u16*)memory + warp * (32 * PITCH);
    auto row_at = [&](int in_strip) {  // the matrix's row, -1 for filling
        int in_tile = warp * 32 + in_strip, row = tile * taken + in_tile % taken;
        return row < outputs ? row + in_tile / taken * outputs : -1;
    };
    int bases[4];
    for (int i = 0; i < 4; i++) {
        int row = row_at(i * 8 + g);
        bases[i] = row < 0 ? 0 : p.base[row] * 128;
    }
    waited_for_previous();  // somebody may still read what stands in p.y
    for (int step = 0; step < 4; step++) {
        uint4 h[2] = {high[step * 64], high[step * 64 + 32]}, l = low[step * 32];
#pragma unroll
        for (int i = 0; i < 16; i++) {
            int m = i / 8, kk = i / 4 % 2, half = i / 2 % 2, pair = i % 2;
            u32 codes = kk ? (half ? h[m].w : h[m].z) : (half ? h[m].y : h[m].x);
            u32 nibbles = m ? (kk ? l.w : l.z) : (kk ? l.y : l.x);
            u32 two = 0;
#pragma unroll
            for (int j = 0; j < 2; j++) {
                u32 byte = codes >> (pair * 16 + j * 8) & 0xff;
                u32 code = (byte & 0x7f) << 4 | (nibbles >> (pair * 16 + j * 8 + half * 4) & 15);
                u32 magnitude = code >= 128 ? code + bases[m * 2 + half] : 0;
                two |= ((byte & 0x80) << 8 | (magnitude & 0x7fff)) << 16 * j;
            }
            *(u32*)(numbers + (m * 16 + half * 8 + g) * PITCH + kk * 16 + pair * 8 + q * 2) = two;
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4; i++) {
            int row = row_at(i * 8 + g), column = unit % p.groups * 128 + step * 32 + q * 8;
            const u16* from = numbers + (i * 8 + g) * PITCH + q * 8;
            u16* to = (u16*)p.y + (i64)row * p.k + column;
            if (row < 0) continue;
            if (p.k % 8 == 0 && column < p.k) *(uint4*)to = *(const uint4*)from;
            else for (int j = 0; j < 8 && column + j < p.k; j++) to[j] = from[j];
        }
        __syncwarp();
    }
}
"""


def multiplied(tokens: int) -> str:
    """c[64 rows, tokens] += a[64 rows, 16 columns] * x[tokens, 16 columns], by the four warps that hold a and c."""
    count = tokens // 2
    c = ",".join(f"%{index}" for index in range(count))
    a = ",".join(f"%{count + index}" for index in range(4))
    shape = f"m64n{tokens}k16.f32.bf16.bf16"
    sums = ", ".join(f'"+f"(c[{index}])' for index in range(count))
    return f"""
__device__ __forceinline__ void multiplied(float (&c)[{count}], const u32 (&a)[4], u64 x) {{
    asm volatile("wgmma.mma_async.sync.aligned.{shape} {{{c}}}, {{{a}}}, %{count + 4}, 1, 1, 1, 0;"
                 : {sums} : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(x));
}}
"""


_TENSORS = ("x", "high", "low", "base", "starts", "columns", "values", "bias", "residual", "work", "y")
_NUMBERS = ("rows", "n", "k", "pitch", "groups", "tiles", "programs", "slices", "paired", "floats")


class Arguments(ctypes.Structure):
    """`Arguments` of the kernels: addresses of tensors, 0 for none, then numbers."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in _TENSORS),
        *((name, ctypes.c_int) for name in _NUMBERS),
    )


class Machine(Protocol):
    """What runs the kernels."""

    def launch(
        self,
        kernel: str,
        constants: Mapping[str, int],
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Arguments,
    ) -> None:
        """Starts a kernel that is compiled for the constants; does not wait for it."""


class Device:
    """A GPU: kernels are compiled for it when they are first launched."""

    def __init__(self, index: int) -> None:
        capability = torch.cuda.get_device_capability(index)
        if capability != CAPABILITY:
            name = torch.cuda.get_device_name(index)
            raise RuntimeError(
                f"W12 products need compute capability 9.0, and '{name}' has {capability[0]}.{capability[1]}"
            )
        self.index, self.architecture = index, "sm_90a"
        self._functions: dict[tuple[str, tuple[tuple[str, int], ...]], Any] = {}

    def launch(
        self,
        kernel: str,
        constants: Mapping[str, int],
        grid: tuple[int, int],
        threads: int,
        shared_bytes: int,
        arguments: Arguments,
    ) -> None:
        """Starts a kernel on the current stream, and lets it come up while the one before it still runs."""
        from cuda.bindings import driver

        config, attribute = driver.CUlaunchConfig(), driver.CUlaunchAttribute()
        config.gridDimX, config.gridDimY, config.gridDimZ = *grid, 1
        config.blockDimX, config.blockDimY, config.blockDimZ = threads, 1, 1
        config.sharedMemBytes = shared_bytes
        config.hStream = torch.cuda.current_stream(self.index).cuda_stream
        attribute.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        value = driver.CUlaunchAttributeValue()
        value.programmaticStreamSerializationAllowed = 1
        attribute.value = value
        config.attrs, config.numAttrs = [attribute], 1
        pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
        function = self._function(kernel, tuple(sorted(constants.items())), shared_bytes)
        _checked(driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0))

    def _function(self, kernel: str, constants: tuple[tuple[str, int], ...], shared_bytes: int) -> Any:
        from cuda.bindings import driver

        if (kernel, constants) not in self._functions:
            module = _checked(driver.cuModuleLoadData(compiled(constants, self.architecture)))
            for name in ("w12_multiply", "w12_finish", "w12_unpack"):
                self._functions[name, constants] = _checked(driver.cuModuleGetFunction(module, name.encode()))
        if shared_bytes > 48 * 1024:  # what a kernel may have unasked
            most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            _checked(driver.cuFuncSetAttribute(self._functions[kernel, constants], most, shared_bytes))
        return self._functions[kernel, constants]


@lru_cache
def device(index: int) -> Device:
    """The GPU of that index; RuntimeError where it cannot run the kernels."""
    return Device(index)


def compiled(constants: tuple[tuple[str, int], ...], architecture: str) -> bytes:
    """The kernels as machine code; RuntimeError with the compiler's words where it has any to say against them."""
    try:
        from cuda.bindings import nvrtc
    except ImportError as error:
        raise RuntimeError("the package 'cuda-bindings' is not installed here: pip install 'specpilot[gpu]'") from error

    source = INTRINSICS + multiplied(dict(constants)["TOKENS"]) + KERNELS
    program = _checked(nvrtc.nvrtcCreateProgram(source.encode(), b"w12.cu", 0, None, None))
    options = [f"-D{name}={value}" for name, value in constants]
    options += [f"--gpu-architecture={architecture}", "-std=c++17", "-default-device"]
    words = [option.encode() for option in options]
    (status,) = nvrtc.nvrtcCompileProgram(program, len(words), words)
    if int(status):
        log = b" " * _checked(nvrtc.nvrtcGetProgramLogSize(program))
        nvrtc.nvrtcGetProgramLog(program, log)
        raise RuntimeError(log.decode(errors="replace"))
    code = b" " * _checked(nvrtc.nvrtcGetCUBINSize(program))
    _checked(nvrtc.nvrtcGetCUBIN(program, code))
    return code


def _checked(answer: tuple[Any, ...]) -> Any:
    """What a call of the bindings answered besides its status; RuntimeError where that is bad."""
    status, *found = answer
    if int(status):
        raise RuntimeError(f"CUDA says {status!r}")
    return found[0] if found else None


def address(tensor: Tensor | None) -> int:
    """Where a tensor's numbers lie; 0 for none."""
    return 0 if tensor is None else tensor.data_ptr()

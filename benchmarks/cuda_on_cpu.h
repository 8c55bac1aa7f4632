// What CUDA C++ kernels need to run on a CPU: a block's threads are fibers that take turns at barriers.
//
// It stands in for the assembly of `kernels/w12_cuda.py`, number for number: products of bfloat16 are rounded once, and
// a product of matrices adds in float32, column by column.  Shared memory begins as NaN, and so does every copy that
// nobody has waited for.
#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>
#include <stdexcept>
#include <ucontext.h>
#include <vector>

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef long long i64;
typedef unsigned long long u64;

#define __device__
#define __global__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __shared__
#define __align__(n)
#define __launch_bounds__(...)

struct uint4 { u32 x, y, z, w; };
struct dim3 { unsigned x = 0, y = 0, z = 0; };

struct Fiber {
    ucontext_t context;
    std::vector<char> stack;
    int waits = 0;  // barriers that it has come to: of its block, or of its warp
    bool done = false;
};

struct Copy { u8* to; u8 bytes[16]; };

struct Block {
    std::vector<Fiber> fibers;
    std::vector<std::vector<std::vector<Copy>>> groups;  // of each thread: copies by group, the last one is open
    std::vector<u32> exchanged;  // of each thread: the six registers of a product's operands
    std::vector<u8> memory;
    ucontext_t scheduler;
    int current = 0;
};

static Block* block;
static dim3 threadIdx, blockIdx;
static u8* shared;
static std::function<void()> body;

static void yield() {
    Fiber& fiber = block->fibers[block->current];
    swapcontext(&fiber.context, &block->scheduler);
}

// All threads from `first` on, `count` of them, come here before any goes on; a thread that has ended is not waited for.
static void barrier(int first, int count) {
    int mine = ++block->fibers[block->current].waits;
    for (;;) {
        bool all = true;
        for (int i = first; i < first + count; i++) all &= block->fibers[i].done || block->fibers[i].waits >= mine;
        if (all) return;
        yield();
    }
}
inline void __syncthreads() { barrier(0, (int)block->fibers.size()); }

static void entered() {
    int own = block->current;
    body();
    block->fibers[own].done = true;
    swapcontext(&block->fibers[own].context, &block->scheduler);
}

template <typename Kernel> void run_block(int x, int y, int threads, size_t shared_bytes, Kernel kernel) {
    Block own;
    block = &own;
    body = kernel;
    own.fibers.resize(threads);
    own.groups.assign(threads, std::vector<std::vector<Copy>>(1));
    own.exchanged.assign(threads * 6, 0);
    own.memory.assign(shared_bytes + 128, 0xff);
    shared = own.memory.data() + (128 - (uintptr_t)own.memory.data() % 128) % 128;
    for (Fiber& fiber : own.fibers) {
        fiber.stack.resize(1 << 16);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack.data();
        fiber.context.uc_stack.ss_size = fiber.stack.size();
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, entered, 0);
    }
    for (bool left = true; left;) {
        left = false;
        for (int i = 0; i < threads; i++) {
            if (own.fibers[i].done) continue;
            left = true;
            own.current = i;
            threadIdx.x = i;
            blockIdx.x = x;
            blockIdx.y = y;
            swapcontext(&own.scheduler, &own.fibers[i].context);
        }
    }
}

inline float __uint_as_float(u32 bits) { float out; memcpy(&out, &bits, 4); return out; }
inline u32 bits_of(float value) { u32 out; memcpy(&out, &value, 4); return out; }
inline u32 __byte_perm(u32 a, u32 b, u32 picks) {
    u64 both = (u64)b << 32 | a;
    u32 out = 0;
    for (int i = 0; i < 4; i++) out |= (u32)(both >> (8 * ((picks >> 4 * i) & 7)) & 0xff) << 8 * i;
    return out;
}
inline float __expf(float v) { return expf(v); }
inline float __ldcg(const float* at) { return *at; }
inline void __stcg(float* at, float value) { *at = value; }

inline float wide(u16 v) { return __uint_as_float((u32)v << 16); }
inline u16 narrow(float v) {
    u32 bits = bits_of(v);
    return v != v ? 0x7fc0 : (u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
inline u64 read_once() { return 0; }
inline uint4 streamed(const uint4* at, u64) {
    if ((uintptr_t)at % 16) throw std::runtime_error("a read of 16 bytes is not aligned");
    return *at;
}
inline void copied(void* to, const void* from, u32 bytes) {
    if ((uintptr_t)to % 16 || (uintptr_t)from % 16) throw std::runtime_error("a copy of 16 bytes is not aligned");
    Copy copy{(u8*)to, {}};
    memcpy(copy.bytes, from, bytes);
    memset(to, 0xff, 16);
    block->groups[threadIdx.x].back().push_back(copy);
}
inline void closed_group() { block->groups[threadIdx.x].emplace_back(); }
template <int LATER> inline void waited_for_group() {
    auto& groups = block->groups[threadIdx.x];
    while ((int)groups.size() - 1 > LATER) {
        for (Copy& copy : groups.front()) memcpy(copy.to, copy.bytes, 16);
        groups.erase(groups.begin());
    }
}
template <typename Each> inline u32 of_halves(Each each) {
    return (u32)narrow(each(0)) | (u32)narrow(each(16)) << 16;
}
inline u32 product(u32 two, u32 factors) {
    return of_halves([&](int at) { return wide((u16)(two >> at)) * wide((u16)(factors >> at)); });
}
inline u32 sum_of_product(u32 two, u32 factors, u32 added) {
    return of_halves([&](int at) {
        return (float)((double)wide((u16)(two >> at)) * wide((u16)(factors >> at)) + wide((u16)(added >> at)));
    });
}
inline void multiplied(float (&c)[4], u32 a0, u32 a1, u32 a2, u32 a3, u32 b0, u32 b1) {
    int warp = threadIdx.x / 32 * 32, lane = threadIdx.x % 32, g = lane / 4, q = lane % 4;
    u32 mine[6] = {a0, a1, a2, a3, b0, b1};
    memcpy(&block->exchanged[threadIdx.x * 6], mine, sizeof mine);
    barrier(warp, 32);
    threadIdx.x = warp + lane;
    auto a = [&](int row, int column) {
        u32 word = block->exchanged[(warp + row % 8 * 4 + column % 8 / 2) * 6 + row / 8 + column / 8 * 2];
        return wide((u16)(word >> 16 * (column % 2)));
    };
    auto b = [&](int column, int token) {
        u32 word = block->exchanged[(warp + token * 4 + column % 8 / 2) * 6 + 4 + column / 8];
        return wide((u16)(word >> 16 * (column % 2)));
    };
    for (int i = 0; i < 4; i++)
        for (int column = 0; column < 16; column++) c[i] += a(g + i / 2 * 8, column) * b(column, q * 2 + i % 2);
    barrier(warp, 32);
}
inline void let_next_start() {}
inline void waited_for_previous() {}

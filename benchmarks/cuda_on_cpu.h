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
struct Product { float* c; float a[2][16]; u64 x; };

struct Block {
    std::vector<Fiber> fibers;
    std::vector<std::vector<std::vector<Copy>>> groups;  // of each thread: copies by group, the last one is open
    std::vector<std::vector<std::vector<Product>>> products;  // likewise
    std::vector<u32> exchanged;  // of each thread: the four registers of a product's operand
    std::vector<u8> memory;
    ucontext_t scheduler;
    int current = 0;
};

static Block* block;
static dim3 threadIdx, blockIdx;
static u8* memory;
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
inline void __syncthreads() {
    int own = threadIdx.x;
    barrier(0, (int)block->fibers.size());
    threadIdx.x = own;
}

inline void __syncwarp() { barrier(threadIdx.x / 32 * 32, 32); }

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
    own.products.assign(threads, std::vector<std::vector<Product>>(1));
    own.exchanged.assign(threads * 4, 0);
    own.memory.assign(shared_bytes + 1024, 0xff);
    memory = own.memory.data() + 16 * 3;
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
inline u8* aligned(u8* at) { return block->memory.data() + ((at - block->memory.data()) + 1023) / 1024 * 1024; }
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
inline u64 described(const void* tile) { return (u64)((const u8*)tile - block->memory.data()) / 16; }
inline void shown_to_products() {}
inline void products_may_read() {}

// A product reads shared memory when somebody waits for it, so that what is overwritten too early is seen.
static void complete(const Product& each) {
    int q = threadIdx.x % 32 % 4;
    for (int i = 0; i < TOKENS / 2; i++) {
        int token = i / 4 * 8 + q * 2 + i % 2;
        for (int column = 0; column < 16; column++) {
            size_t at = each.x * 16 + token / 8 * 1024 + token % 8 * 128 + column * 2;
            at ^= (at >> 7 & 7) << 4;  // the swizzle of 128 bytes
            u16 value;
            memcpy(&value, block->memory.data() + at, 2);
            each.c[i] += each.a[i / 2 % 2][column] * wide(value);
        }
    }
}
inline void closed_products() { block->products[threadIdx.x].emplace_back(); }
template <int LATER> inline void waited_for_products() {
    auto& groups = block->products[threadIdx.x];
    while ((int)groups.size() - 1 > LATER) {
        for (Product& each : groups.front()) complete(each);
        groups.erase(groups.begin());
    }
}
inline void multiplied(float (&c)[TOKENS / 2], const u32 (&a)[4], u64 x) {
    int own = threadIdx.x, warp = own / 32 * 32, g = own % 32 / 4;
    memcpy(&block->exchanged[own * 4], a, 16);
    barrier(warp, 32);
    threadIdx.x = own;
    Product each{c, {}, x};
    for (int half = 0; half < 2; half++)
        for (int column = 0; column < 16; column++) {
            u32 word = block->exchanged[(warp + g * 4 + column % 8 / 2) * 4 + half + column / 8 * 2];
            each.a[half][column] = wide((u16)(word >> 16 * (column % 2)));
        }
    block->products[own].back().push_back(each);
    barrier(warp, 32);
    threadIdx.x = own;
}
inline void let_next_start() {}
inline void waited_for_previous() {}

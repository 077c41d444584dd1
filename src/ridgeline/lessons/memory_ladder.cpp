// The latency and bandwidth of memory by the size of what is walked through.
//
// A chase follows pointers in a random cycle of whole cache lines, so that no load can start before
// the last has ended: its time per step is a latency. A sum reads in order with several
// accumulators, so that nothing but the memory is waited for: its bytes per second are a bandwidth.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <random>
#include <utility>
#include <vector>

namespace {

constexpr std::size_t kLine = 64;

struct alignas(kLine) Line {
    Line* next;
};

double seconds_since(std::chrono::steady_clock::time_point began) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
}

}  // namespace

// Seconds per dependent load in a working set of `bytes`, a line at least.
extern "C" __attribute__((visibility("default"))) double chase_seconds(std::size_t bytes, std::size_t steps) {
    std::vector<Line> lines(std::max(bytes / kLine, std::size_t{1}));
    std::vector<std::size_t> order(lines.size());
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::mt19937_64 random(1);
    for (std::size_t i = order.size() - 1; i > 0; --i) std::swap(order[i], order[random() % i]);
    for (std::size_t i = 0; i < lines.size(); ++i) lines[i].next = &lines[order[i]];
    // Sattolo's shuffle leaves one cycle; it is walked once before it is timed.
    Line* volatile sink;
    Line* at = lines.data();
    for (std::size_t i = 0; i < lines.size(); ++i) at = at->next;
    const auto began = std::chrono::steady_clock::now();
    for (std::size_t i = 0; i < steps; ++i) at = at->next;
    const double took = seconds_since(began);
    sink = at;
    (void)sink;
    return took / static_cast<double>(steps);
}

// Bytes per second of reading a working set of `bytes`, four lines at least, in order, until `total`
// bytes are read.
extern "C" __attribute__((visibility("default"))) double read_bytes_per_second(std::size_t bytes, std::size_t total) {
    constexpr std::size_t kSums = 64;
    constexpr std::size_t kLeast = kSums * sizeof(float);
    std::vector<float> numbers(std::max(bytes / kLeast, std::size_t{1}) * kSums, 1.0F);
    const std::size_t size = numbers.size() * sizeof(float);
    float sums[kSums] = {};
    const auto walk = [&] {
        for (std::size_t i = 0; i < numbers.size(); i += kSums)
            for (std::size_t j = 0; j < kSums; ++j) sums[j] += numbers[i + j];
    };
    walk();
    const std::size_t rounds = total / size + 1;
    const auto began = std::chrono::steady_clock::now();
    for (std::size_t round = 0; round < rounds; ++round) walk();
    const double took = seconds_since(began);
    volatile float sink = std::accumulate(sums, sums + kSums, 0.0F);
    (void)sink;
    return static_cast<double>(rounds * size) / took;
}

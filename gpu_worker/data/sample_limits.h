// Limits of a sample in tables and arrays, whose files claim or contain its size.
#ifndef CAPSTAN_GPU_WORKER_DATA_SAMPLE_LIMITS_H_
#define CAPSTAN_GPU_WORKER_DATA_SAMPLE_LIMITS_H_

#include <cstdint>

namespace capstan::data {

inline constexpr int64_t kMaxSampleFeatures = 1 << 20;  // numbers of a vector
inline constexpr int64_t kMaxSampleSide = 1 << 14;      // channels, rows or columns of an image
inline constexpr int64_t kMaxSamplePixels = int64_t{1} << 28;  // numbers of an image

}  // namespace capstan::data

#endif  // CAPSTAN_GPU_WORKER_DATA_SAMPLE_LIMITS_H_

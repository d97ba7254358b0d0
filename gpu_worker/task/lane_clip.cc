#include "gpu_worker/task/lane_clip.h"

#include <cmath>
#include <cstdint>

#include "services/check/check.h"
#include "training/norm/norm_tree.h"

namespace capstan::gpu_worker {

bool ClipLane(const training::FlatLayout& layout, double clip_norm, absl::Span<float> gradient) {
  const training::NormTree norms(layout);
  const training::RootReport report = training::ReportRoots(
      layout, {0, layout.chunk_count()}, clip_norm > 0 ? &norms : nullptr, [&](int32_t chunk) {
        const training::FlatRange range = layout.ChunkRange(chunk);
        return absl::MakeConstSpan(gradient).subspan(range.offset, range.size);
      });
  if (!report.finite || clip_norm <= 0) return report.finite;
  const auto total = norms.Total(report.squares);
  CAPSTAN_CHECK(total.ok());  // finite floats have one for each chunk
  const double norm = std::sqrt(*total);
  if (norm <= clip_norm) return true;
  const auto factor = static_cast<float>(clip_norm / norm);
  // The chunks with weights come first.
  const int64_t end = training::RangeOf(layout, {0, norms.chunk_count()}).end();
  for (float& value : gradient.subspan(0, end)) value *= factor;
  return true;
}

}  // namespace capstan::gpu_worker

#include "gpu_worker/engine/cuda/rules.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace capstan::engine::cuda {

bool EngineAllowed(const std::vector<EngineNote>& notes, const KernelRules& rules) {
  return std::none_of(notes.begin(), notes.end(), [&rules](EngineNote note) {
    switch (note) {
      case EngineNote::kTensorCore:
      case EngineNote::kDownConvertInputs:
        return rules.precision == CAPSTAN_PRECISION_FP32;
      case EngineNote::kReducedPrecisionReduction:
      case EngineNote::kFft:
      case EngineNote::kWinogradTile6x6:
      case EngineNote::kWinogradTile13x13:
        return true;
      case EngineNote::kNondeterministic:
        return rules.deterministic;
      case EngineNote::kWinograd:
      case EngineNote::kWinogradTile4x4:
      case EngineNote::kStrictNanPropagation:
        return false;
    }
    return true;  // a newer note, which may be harmful
  });
}

absl::Status CheckPrecision(int32_t precision) {
  if (precision >= CAPSTAN_PRECISION_FP32 && precision <= CAPSTAN_PRECISION_FP16) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(absl::StrCat("precision: ", precision, ", want 0 to 3"));
}

std::vector<ReadBack> PlanReadBack(const CardProgram& program) {
  int first = -1;  // the last stage of backward that writes parameters
  for (int s = static_cast<int>(program.stages.size()) - 1; s >= 0; --s) {
    if (program.stages[s].has_parameters()) first = s;
  }
  if (first < 0) return {};
  for (int s = static_cast<int>(program.stages.size()) - 1; s > first; --s) {
    if (!program.stages[s].has_parameters()) continue;
    int64_t ready = program.total_floats;
    for (int before = 0; before < s; ++before) {
      ready = std::min(ready, program.stages[before].first_parameter());
    }
    if (2 * ready >= program.total_floats) {
      return {{s, 0, ready}, {first, ready, program.total_floats}};
    }
  }
  return {{first, 0, program.total_floats}};
}

}  // namespace capstan::engine::cuda

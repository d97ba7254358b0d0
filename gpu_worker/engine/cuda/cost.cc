#include "gpu_worker/engine/cuda/cost.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace capstan::engine::cuda {

double Roof::Seconds(const Cost& cost) const {
  return std::max(static_cast<double>(cost.bytes) / bytes_per_second,
                  static_cast<double>(cost.flops) / flops_per_second);
}

template <typename Call>
void TimedOperations::Time(const std::string& name, const Cost& cost, Call call) {
  clock_(true);
  call();
  Entry& entry = entries_[name];
  entry.milliseconds += clock_(false);
  ++entry.calls;
  entry.cost.bytes += cost.bytes;
  entry.cost.flops += cost.flops;
}

std::string TimedOperations::Table(const Roof& roof) const {
  using Row = std::pair<std::string, Entry>;
  std::vector<Row> rows(entries_.begin(), entries_.end());
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.second.milliseconds > b.second.milliseconds;
  });
  Entry all;
  for (const Row& row : rows) all.milliseconds += row.second.milliseconds;
  std::string table = absl::StrFormat("%-28s %7s %10s %6s %9s %10s %7s\n", "operation", "calls",
                                      "us a call", "time", "GB/s", "GFLOP/s", "of roof");
  for (const auto& [name, entry] : rows) {
    const double seconds = entry.milliseconds / 1000;
    absl::StrAppendFormat(&table, "%-28s %7d %10.2f %5.1f%% %9.1f %10.1f %6.1f%%\n", name,
                          entry.calls, 1e6 * seconds / static_cast<double>(entry.calls),
                          100 * entry.milliseconds / all.milliseconds,
                          static_cast<double>(entry.cost.bytes) / seconds / 1e9,
                          static_cast<double>(entry.cost.flops) / seconds / 1e9,
                          100 * roof.Seconds(entry.cost) / seconds);
  }
  return table;
}

// x, weights and y have the elements' type. Counts a multiply and an add for each weight and place.
Cost TimedOperations::LinearCost(const Stage& stage, int64_t n) const {
  const int64_t x = n * program_.tensors[stage.x].elements;
  const int64_t y = n * program_.tensors[stage.y].elements;
  Cost cost;
  cost.bytes = (x + y + stage.weight_elements()) * element_bytes_;
  cost.flops = 2 * y * (stage.weight_elements() / stage.weight_rows);
  return cost;
}

void TimedOperations::LoadImages(int64_t n, const BatchHeader* header, const void* images,
                                 int image_type, void* x) {
  const int64_t elements = n * program_.tensors[0].elements;
  const int64_t from = image_type == CAPSTAN_IMAGE_UINT8 ? 1 : 4;  // kept images are float32
  Time("images", {elements * (from + element_bytes_), 0},
       [&] { ops_->LoadImages(n, header, images, image_type, x); });
}

void TimedOperations::CopyWeights(const std::vector<WeightCopy>& copies) {
  int64_t elements = 0;
  for (const WeightCopy& copy : copies) elements += copy.elements;
  Time("copies of weights", {elements * (flat_bytes_ + element_bytes_), 0},
       [&] { ops_->CopyWeights(copies); });
}

void TimedOperations::GradientToFlat(const Stage& stage, const void* from, void* to) {
  const int64_t bytes = flat_bytes_ + (stage.rounded_gradient ? element_bytes_ : flat_bytes_);
  Time(absl::StrCat(stage.name, " gradient to flat"), {stage.weight_elements() * bytes, 0},
       [&] { ops_->GradientToFlat(stage, from, to); });
}

void TimedOperations::ToChannelsLast(int64_t rows, int32_t channels, int32_t pixels,
                                     const void* from, void* to) {
  Time("to channels last", {rows * channels * pixels * 2 * element_bytes_, 0},
       [&] { ops_->ToChannelsLast(rows, channels, pixels, from, to); });
}

void TimedOperations::ToCanonical(int64_t rows, int32_t channels, int32_t pixels, const void* from,
                                  void* to) {
  Time("to canonical", {rows * channels * pixels * 2 * element_bytes_, 0},
       [&] { ops_->ToCanonical(rows, channels, pixels, from, to); });
}

void TimedOperations::LinearForward(int stage, int64_t n, const void* x, const void* weight,
                                    const void* bias, void* y) {
  const Stage& s = program_.stages[stage];
  Time(absl::StrCat(s.name, " forward"), LinearCost(s, n),
       [&] { ops_->LinearForward(stage, n, x, weight, bias, y); });
}

void TimedOperations::LinearWeightGradient(int stage, int64_t n, const void* x, const void* dy,
                                           void* dw) {
  const Stage& s = program_.stages[stage];
  Time(absl::StrCat(s.name, " weight gradient"), LinearCost(s, n),
       [&] { ops_->LinearWeightGradient(stage, n, x, dy, dw); });
}

void TimedOperations::LinearDataGradient(int stage, int64_t n, const void* dy, const void* weight,
                                         void* dx) {
  const Stage& s = program_.stages[stage];
  Time(absl::StrCat(s.name, " data gradient"), LinearCost(s, n),
       [&] { ops_->LinearDataGradient(stage, n, dy, weight, dx); });
}

void TimedOperations::BiasGradient(int64_t rows, int32_t columns, const void* dy, void* parts,
                                   void* db) {
  const int64_t elements = rows * columns;
  Time(absl::StrCat("bias gradient ", columns),
       {elements * element_bytes_ + columns * flat_bytes_, elements},
       [&] { ops_->BiasGradient(rows, columns, dy, parts, db); });
}

void TimedOperations::PoolForward(const Stage& stage, int64_t n, const void* x, void* y) {
  const int64_t elements = program_.tensors[stage.x].elements + program_.tensors[stage.y].elements;
  Time(absl::StrCat(stage.name, " forward"), {n * elements * element_bytes_, 0},
       [&] { ops_->PoolForward(stage, n, x, y); });
}

void TimedOperations::PoolBackward(const Stage& stage, int64_t n, const void* x, const void* dy,
                                   void* dx) {
  const int64_t elements =
      2 * program_.tensors[stage.x].elements + program_.tensors[stage.y].elements;
  Time(absl::StrCat(stage.name, " backward"), {n * elements * element_bytes_, 0},
       [&] { ops_->PoolBackward(stage, n, x, dy, dx); });
}

void TimedOperations::ReluForward(int64_t elements, void* x) {
  Time("relu forward", {2 * elements * element_bytes_, 0}, [&] { ops_->ReluForward(elements, x); });
}

void TimedOperations::ReluBackward(int64_t elements, const void* y, void* dy) {
  Time(absl::StrCat("relu backward ", elements), {3 * elements * element_bytes_, 0},
       [&] { ops_->ReluBackward(elements, y, dy); });
}

// Inputs and output once, all in the elements' type.
int64_t TimedOperations::OperatorBytes(const Stage& stage, int64_t n) const {
  int64_t elements = program_.tensors[stage.y].elements;
  for (const StageInput& input : stage.inputs) {
    if (input.tensor >= 0) elements += program_.tensors[input.tensor].elements;
  }
  return n * elements * element_bytes_;
}

void TimedOperations::OperatorForward(int stage, const OperatorCall& call) {
  const Stage& s = program_.stages[stage];
  Time(absl::StrCat(s.name, " forward"), {OperatorBytes(s, call.n), 0},
       [&] { ops_->OperatorForward(stage, call); });
}

void TimedOperations::OperatorBackward(int stage, const OperatorCall& call) {
  const Stage& s = program_.stages[stage];
  Time(absl::StrCat(s.name, " backward"), {OperatorBytes(s, call.n), 0},
       [&] { ops_->OperatorBackward(stage, call); });
}

void TimedOperations::AddInto(int64_t elements, const void* from, void* to) {
  Time("sum of gradients", {3 * elements * element_bytes_, elements},
       [&] { ops_->AddInto(elements, from, to); });
}

void TimedOperations::Clear(int64_t elements, void* x) {
  Time("clear", {elements * element_bytes_, 0}, [&] { ops_->Clear(elements, x); });
}

void TimedOperations::Loss(const Stage& stage, int64_t n, int32_t classes,
                           const BatchHeader* header, const void* targets, const float* tokens,
                           const void* x, void* dx, double* row_loss, int32_t* row_correct) {
  const int64_t row = classes * (dx == nullptr ? 1 : 2) * element_bytes_ + 12 +
                      (stage.squared_error ? classes * int64_t{4} : 4);
  Time("loss", {n * stage.rows * row, 0}, [&] {
    ops_->Loss(stage, n, classes, header, targets, tokens, x, dx, row_loss, row_correct);
  });
}

void TimedOperations::SumRows(int64_t n, const double* row_loss, const int32_t* row_correct,
                              capstan_result* sums) {
  Time("sum of rows", {n * 12, 0}, [&] { ops_->SumRows(n, row_loss, row_correct, sums); });
}

}  // namespace capstan::engine::cuda

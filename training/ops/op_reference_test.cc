// Tests the references of every operator with its cases.
#include <cctype>
#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/op_cases.h"
#include "training/ops/reference_run.h"

namespace capstan::training {
namespace {

constexpr int kNodeIndex = 3;
constexpr int64_t kBatch = 5;

std::vector<OpCase> GoodCases() {
  std::vector<OpCase> cases;
  for (const OpCase& one : AllOpCases()) {
    if (!one.hostile) cases.push_back(one);
  }
  return cases;
}

template <typename T>
ReferenceRun<T> MakeRun(const OpCase& one, int64_t count = kBatch) {
  absl::StatusOr<OpInstance> instance = Instantiate(one.op, one.inputs, kNodeIndex);
  EXPECT_EQ(instance.status(), absl::OkStatus());
  return ReferenceRun<T>(*FindOp(one.op.name), *instance, count);
}

template <typename T>
bool SameBits(const std::vector<T>& a, const std::vector<T>& b) {
  if (a.empty() || b.empty()) return a.size() == b.size();
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <typename T>
void ExpectSameBits(const Tensors<T>& a, const Tensors<T>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(SameBits(a[i], b[i])) << what << " " << i;
}

template <typename T>
void ExpectFinite(const std::vector<T>& values, const char* what) {
  for (const T value : values) ASSERT_TRUE(std::isfinite(value)) << what;
}

template <typename T>
std::vector<T> SampleOf(const std::vector<T>& batch, int64_t sample) {
  const int64_t size = static_cast<int64_t>(batch.size()) / kBatch;
  return {batch.begin() + sample * size, batch.begin() + (sample + 1) * size};
}

// Inputs and parameters with their gradients.
struct Target {
  std::vector<double>* value;
  std::vector<double>* gradient;
  std::string name;
};
std::vector<Target> TargetsOf(ReferenceRun<double>& run) {
  std::vector<Target> targets;
  for (size_t i = 0; i < run.x.size(); ++i) {
    targets.push_back({&run.x[i], &run.dx[i], "input " + std::to_string(i)});
  }
  for (size_t p = 0; p < run.parameters.size(); ++p) {
    const OpParameter& parameter = run.op.inferred.parameters[p];
    if (parameter.statistic) continue;
    targets.push_back({&run.parameters[p], &run.dparameters[p], parameter.suffix});
  }
  return targets;
}

// sum(y * dy)
double Objective(ReferenceRun<double>& run) {
  run.Forward();
  double sum = 0;
  for (size_t i = 0; i < run.y.size(); ++i) sum += run.y[i] * run.dy[i];
  return sum;
}

class OpReferenceTest : public testing::TestWithParam<OpCase> {
 protected:
  const OpDef& def() const { return *FindOp(GetParam().op.name); }
};

TEST_P(OpReferenceTest, ForwardAndBackwardAreFinite) {
  ReferenceRun<float> run = MakeRun<float>(GetParam());
  run.Forward();
  run.Backward();
  ExpectFinite(run.y, "y");
  for (const auto& tensors : {run.saved, run.statistics, run.dx, run.dparameters}) {
    for (const std::vector<float>& tensor : tensors) ExpectFinite(tensor, "a tensor");
  }
}

// Varies one input or parameter at a time, up to 24 of its elements, then all of them together
// along a direction.
TEST_P(OpReferenceTest, GradientsAreCentralDifferences) {
  constexpr double kStep = 1e-5;
  for (const int64_t count : {1, 3}) {
    SCOPED_TRACE(count);
    ReferenceRun<double> run = MakeRun<double>(GetParam(), count);
    run.Forward();
    run.Backward();
    for (const Target& target : TargetsOf(run)) {
      std::vector<double>& value = *target.value;
      const std::vector<double> before = value;
      const size_t stride = (value.size() + 23) / 24;
      for (size_t i = 0; i < value.size(); i += stride) {
        value[i] = before[i] + kStep;
        const double above = Objective(run);
        value[i] = before[i] - kStep;
        const double below = Objective(run);
        value[i] = before[i];
        const double got = (*target.gradient)[i];
        EXPECT_NEAR(got, (above - below) / (2 * kStep), 1e-6 * (1 + std::abs(got)))
            << target.name << " at " << i;
      }
      double along = 0, size = 1;
      std::vector<double> direction;
      for (size_t i = 0; i < value.size(); ++i) {
        direction.push_back(ReferenceRun<double>::Number(99, static_cast<uint32_t>(i)));
        along += direction[i] * (*target.gradient)[i];
        size += std::abs(direction[i] * (*target.gradient)[i]);
      }
      for (size_t i = 0; i < value.size(); ++i) value[i] = before[i] + kStep * direction[i];
      const double above = Objective(run);
      for (size_t i = 0; i < value.size(); ++i) value[i] = before[i] - kStep * direction[i];
      const double below = Objective(run);
      value = before;
      EXPECT_NEAR(along, (above - below) / (2 * kStep), 1e-6 * size) << target.name;
    }
  }
}

TEST_P(OpReferenceTest, BackwardReadsWhatTheTableSays) {
  ReferenceRun<float> run = MakeRun<float>(GetParam());
  run.Forward();
  ReferenceRun<float> poisoned = run;
  run.Backward();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  if (!def().reads.x) {
    for (std::vector<float>& x : poisoned.x) x.assign(x.size(), nan);
  }
  if (!def().reads.y) poisoned.y.assign(poisoned.y.size(), nan);
  poisoned.Backward();
  ExpectSameBits(poisoned.dx, run.dx, "dx");
  ExpectSameBits(poisoned.dparameters, run.dparameters, "dparameters");
}

TEST_P(OpReferenceTest, BackwardAdds) {
  ReferenceRun<double> run = MakeRun<double>(GetParam());
  run.Forward();
  ReferenceRun<double> twice = run;
  run.Backward();
  for (const Target& target : TargetsOf(twice)) {
    target.gradient->assign(target.gradient->size(), 0.75);
  }
  twice.Backward();
  const std::vector<Target> once = TargetsOf(run), added = TargetsOf(twice);
  for (size_t t = 0; t < once.size(); ++t) {
    for (size_t i = 0; i < once[t].gradient->size(); ++i) {
      const double want = 0.75 + (*once[t].gradient)[i];
      ASSERT_NEAR((*added[t].gradient)[i], want, 1e-12 * (1 + std::abs(want))) << once[t].name;
    }
  }
}

TEST_P(OpReferenceTest, GradientsThatNobodyWantsChangeNothing) {
  ReferenceRun<double> all = MakeRun<double>(GetParam());
  all.Forward();
  const ReferenceRun<double> forward = all;
  all.Backward();
  const std::vector<Target> want = TargetsOf(all);
  for (size_t t = 0; want.size() > 1 && t < want.size(); ++t) {
    ReferenceRun<double> alone = forward;
    const std::vector<Target> got = TargetsOf(alone);
    for (size_t other = 0; other < got.size(); ++other) {
      if (other != t) got[other].gradient->clear();
    }
    alone.Backward();
    EXPECT_TRUE(SameBits(*got[t].gradient, *want[t].gradient)) << want[t].name;
  }
}

// The same value as every input. Its gradient is the sum of what each input would get.
TEST_P(OpReferenceTest, OneValueMayBeEveryInput) {
  ReferenceRun<double> run = MakeRun<double>(GetParam());
  if (run.op.x.empty()) return;
  for (const ValueType& type : run.op.x) {
    if (type.shape != run.op.x[0].shape) return;  // one value cannot have two shapes
  }
  for (std::vector<double>& x : run.x) x = run.x[0];
  run.Forward();
  run.Backward();
  std::vector<double> dx(run.dx[0].size(), 0.5);
  const BackwardCall<double> call = {run.op,
                                     run.samples,
                                     std::vector<const double*>(run.x.size(), run.x[0].data()),
                                     PointersTo<double, const double*>(run.parameters),
                                     run.y.data(),
                                     PointersTo<double, const double*>(run.saved),
                                     run.dy.data(),
                                     std::vector<double*>(run.x.size(), dx.data()),
                                     PointersTo<double, double*>(run.dparameters)};
  run.reference().backward(call);
  for (size_t i = 0; i < dx.size(); ++i) {
    double want = 0.5;
    for (const std::vector<double>& one : run.dx) want += one[i];
    ASSERT_NEAR(dx[i], want, 1e-12 * (1 + std::abs(want)));
  }
}

template <typename T>
void ExpectNear(const std::vector<T>& got, const std::vector<double>& want, const char* what) {
  ASSERT_EQ(got.size(), want.size());
  double largest = 0;
  for (const double value : want) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_NEAR(got[i], want[i], 4e-7 * (largest + 1e-3)) << what << " at " << i;
  }
}

TEST_P(OpReferenceTest, FloatsAreTheDoublesRounded) {
  ReferenceRun<float> floats = MakeRun<float>(GetParam());
  ReferenceRun<double> doubles = MakeRun<double>(GetParam());
  floats.Forward();
  doubles.Forward();
  floats.Backward();
  doubles.Backward();
  ExpectNear(floats.y, doubles.y, "y");
  for (size_t i = 0; i < floats.dx.size(); ++i) ExpectNear(floats.dx[i], doubles.dx[i], "dx");
  for (size_t i = 0; i < floats.statistics.size(); ++i) {
    ExpectNear(floats.statistics[i], doubles.statistics[i], "a statistic");
    ExpectNear(floats.dparameters[i], doubles.dparameters[i], "a gradient of a parameter");
  }
  for (size_t i = 0; i < floats.saved.size(); ++i) {
    ExpectNear(floats.saved[i], doubles.saved[i], "what is saved");
  }
}

// Statistics are read only in evaluation and written only in training.
TEST_P(OpReferenceTest, StatisticsAreReadOrWritten) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  ReferenceRun<float> run = MakeRun<float>(GetParam());
  for (size_t p = 0; p < run.parameters.size(); ++p) {
    if (!run.op.inferred.parameters[p].statistic) continue;
    ReferenceRun<float> changed = run;
    changed.statistics[p].assign(changed.statistics[p].size(), nan);
    changed.parameters[p].assign(changed.parameters[p].size(), nan);
    changed.Forward();
    ExpectFinite(changed.y, "y");
    ExpectFinite(changed.statistics[p], "a statistic of the batch");
    changed.samples.training = false;
    changed.Forward();
    for (const float y : changed.y) ASSERT_TRUE(std::isnan(y));
  }
}

// Evaluation draws nothing, and has no buffers for statistics or for tensors that backward would
// read.
TEST_P(OpReferenceTest, EvaluationIsAFunctionOfInputsAndParameters) {
  ReferenceRun<float> run = MakeRun<float>(GetParam());
  run.samples.training = false;
  for (std::vector<float>& tensor : run.saved) tensor.clear();
  for (std::vector<float>& tensor : run.statistics) tensor.clear();
  ReferenceRun<float> other = run;
  run.Forward();
  other.samples.seed += 1;
  other.samples.epoch += 1;
  for (int64_t& id : other.ids) id += 1;
  other.Forward();
  ExpectFinite(run.y, "y");
  EXPECT_TRUE(SameBits(other.y, run.y));
}

TEST_P(OpReferenceTest, OnlyRandomOperatorsSeeSeedAndEpoch) {
  if (def().random) return;  // DrawsDependOnSeedEpochSampleAndNode
  ReferenceRun<float> run = MakeRun<float>(GetParam()), other = run;
  run.Forward();
  run.Backward();
  other.samples.seed += 1;
  other.samples.epoch += 1;
  other.op.index += 1;
  for (int64_t& id : other.ids) id += 1;
  other.Forward();
  other.Backward();
  EXPECT_TRUE(SameBits(other.y, run.y));
  ExpectSameBits(other.dx, run.dx, "dx");
}

// Always in evaluation; in training unless the table says otherwise.
TEST_P(OpReferenceTest, SamplesAreIndependentUnlessTheTableSaysOtherwise) {
  for (const bool training : {false, true}) {
    SCOPED_TRACE(training);
    ReferenceRun<float> batch = MakeRun<float>(GetParam());
    batch.samples.training = training;
    batch.Forward();
    if (training) batch.Backward();
    bool coupled = false;
    for (int64_t n = 0; n < kBatch; ++n) {
      ReferenceRun<float> one = MakeRun<float>(GetParam(), 1);
      one.samples.training = training;
      for (size_t i = 0; i < one.x.size(); ++i) one.x[i] = SampleOf(batch.x[i], n);
      one.targets = SampleOf(batch.targets, n);
      one.dy = SampleOf(batch.dy, n);
      one.ids = {batch.ids[n]};
      one.labels = {batch.labels[n]};
      one.Forward();
      if (training) one.Backward();
      if (training && def().couples_samples) {
        coupled = coupled || !SameBits(one.y, SampleOf(batch.y, n));
        continue;
      }
      EXPECT_TRUE(SameBits(one.y, SampleOf(batch.y, n))) << n;
      for (size_t i = 0; i < one.dx.size(); ++i) {
        EXPECT_TRUE(SameBits(one.dx[i], SampleOf(batch.dx[i], n))) << n;
      }
    }
    EXPECT_EQ(coupled, training && def().couples_samples);
  }
}

// For operators whose y may take the place of x, or is x.
TEST_P(OpReferenceTest, OutputTakesThePlaceOfTheInput) {
  if (def().in_place == InPlace::kNever) return;
  const ReferenceRun<float> sizes = MakeRun<float>(GetParam());
  if (sizes.x[0].size() != sizes.y.size()) return;  // broadcast
  for (const bool training : {false, true}) {
    SCOPED_TRACE(training);
    ReferenceRun<float> run = MakeRun<float>(GetParam());
    run.samples.training = training;
    run.Forward();
    ReferenceRun<float> placed = run;
    std::vector<const float*> x = PointersTo<float, const float*>(placed.x);
    placed.reference().forward({placed.op, placed.samples, x,
                                PointersTo<float, const float*>(placed.parameters),
                                placed.x[0].data(), PointersTo<float, float*>(placed.saved),
                                PointersTo<float, float*>(placed.statistics)});
    EXPECT_TRUE(SameBits(placed.x[0], run.y));
    if (def().in_place == InPlace::kView) {
      EXPECT_TRUE(SameBits(run.x[0], run.y));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, OpReferenceTest, testing::ValuesIn(GoodCases()),
                         [](const testing::TestParamInfo<OpCase>& info) {
                           return info.param.op.name + "_" + info.param.name;
                         });

// Checks `random` in the table: a draw changes with each of the four, and with nothing else.
TEST(OpRandomTest, DrawsDependOnSeedEpochSampleAndNode) {
  std::set<std::string> random;
  for (const OpCase& one : GoodCases()) {
    if (!FindOp(one.op.name)->random) continue;
    ReferenceRun<float> run = MakeRun<float>(one, 64), again = run;
    run.Forward();
    again.Forward();
    EXPECT_TRUE(SameBits(again.y, run.y)) << one.name;
    int changes = 0;
    for (int what = 0; what < 4; ++what) {
      ReferenceRun<float> other = run;
      if (what == 0) other.samples.seed += 1;
      if (what == 1) other.samples.epoch += 1;
      if (what == 2) other.op.index += 1;
      for (int64_t& id : other.ids) id += what == 3;
      other.Forward();
      changes += !SameBits(other.y, run.y);
    }
    if (changes == 4) random.insert(one.op.name);
  }
  for (const OpDef* const op : AllOps()) EXPECT_EQ(random.count(op->name), op->random) << op->name;
}

}  // namespace
}  // namespace capstan::training

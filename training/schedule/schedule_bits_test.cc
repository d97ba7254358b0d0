// The first thousand learning rates of every schedule, bit for bit, whatever library or processor
// computes them.
#include <cstdint>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "training/codec/sha256.h"
#include "training/schedule/schedule.h"

namespace capstan::training {
namespace {

using Unit = SchedulePeriod::Unit;

constexpr int64_t kRates = 1000;

struct ScheduleBits {
  const char* name;
  ScheduleOptions options;
  const char* rates;  // hash of the rates as doubles
  // The hash of the rates as floats, which the updates use. The floats of glibc 2.36, which the
  // first versions used, have the same hash.
  const char* floats;
};
const std::vector<ScheduleBits>& KeptRates() {
  static const auto& kept = *new std::vector<ScheduleBits>{
      {"constant", {.learning_rate = 0.1, .warmup = {7}}, "4e0e2bef835d96ad", "057636bed4facaa9"},
      {"step",
       {.kind = ScheduleKind::kStep, .learning_rate = 0.3, .every = {3}, .factor = 0.97},
       "56b5f930d3fec1d6",
       "741dbcc99e2efd18"},
      {"multi_step",
       {.kind = ScheduleKind::kMultiStep,
        .learning_rate = 0.1,
        .milestones = {{1}, {30}, {70}, {150}, {333}, {512}, {800}, {999}},
        .factor = 0.3},
       "af6e7628eeebdfb4",
       "78f25da2b89be8f8"},
      {"cosine",
       {.kind = ScheduleKind::kCosine,
        .learning_rate = 0.1,
        .min_learning_rate = 1e-4,
        .warmup = {5, Unit::kSteps}},
       "a47e66a7706b7d27",
       "feb76f4636048f92"},
      {"polynomial",
       {.kind = ScheduleKind::kPolynomial, .learning_rate = 0.1, .power = 0.9},
       "cfe84475c75f5163",
       "6f833e7d023b38c7"},
      {"polynomial of a large power",
       {.kind = ScheduleKind::kPolynomial, .learning_rate = 0.7, .power = 13.7},
       "61e29aeb99888df6",
       "591e3089cb7e24b4"},
      {"one_cycle",
       {.kind = ScheduleKind::kOneCycle, .learning_rate = 0.4},
       "b49b3563a0a7cd33",
       "3c6bbacef221090c"},
  };
  return kept;
}

TEST(ScheduleBitsTest, RatesNeverChange) {
  for (const ScheduleBits& kept : KeptRates()) {
    SCOPED_TRACE(kept.name);
    const absl::StatusOr<Schedule> schedule =
        Schedule::Create(kept.options, /*steps_per_epoch=*/10, /*total_steps=*/kRates);
    ASSERT_TRUE(schedule.ok()) << schedule.status();
    Sha256 rates, floats;
    for (int64_t step = 0; step < kRates; ++step) {
      const double rate = schedule->LearningRate(step);
      const auto rounded = static_cast<float>(rate);
      rates.Update(&rate, sizeof(rate));
      floats.Update(&rounded, sizeof(rounded));
    }
    EXPECT_EQ(rates.FinishHex().substr(0, 16), kept.rates);
    EXPECT_EQ(floats.FinishHex().substr(0, 16), kept.floats);
  }
}

}  // namespace
}  // namespace capstan::training

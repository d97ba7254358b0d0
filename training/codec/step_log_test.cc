#include "training/codec/step_log.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace capstan::training {
namespace {

TEST(StepLogTest, WritesTheFieldsInTheirOrder) {
  StepLogLine line;
  line.lineage = 2;
  line.step = 469;
  line.epoch = 1;
  line.loss = 2.302585092994046;
  line.learning_rate = 0.04f;  // 0.0399999991059..., which nine digits restore
  line.samples = 96;
  line.seconds = 0.0125;
  EXPECT_EQ(FormatStepLogLine(line),
            "{\"lineage\": 2, \"step\": 469, \"epoch\": 1, \"loss\": 2.30258509, "
            "\"learning_rate\": 0.0399999991, \"samples\": 96, \"seconds\": 0.0125}\n");
  line.gradient_norm = 1.5;
  EXPECT_EQ(FormatStepLogLine(line),
            "{\"lineage\": 2, \"step\": 469, \"epoch\": 1, \"loss\": 2.30258509, "
            "\"learning_rate\": 0.0399999991, \"samples\": 96, \"seconds\": 0.0125, "
            "\"gradient_norm\": 1.5}\n");
}

TEST(StepLogTest, NonFiniteNumbersAreNull) {
  StepLogLine line;
  line.loss = std::numeric_limits<double>::quiet_NaN();
  line.learning_rate = -std::numeric_limits<double>::infinity();
  EXPECT_EQ(FormatStepLogLine(line),
            "{\"lineage\": 0, \"step\": 0, \"epoch\": 0, \"loss\": null, "
            "\"learning_rate\": null, \"samples\": 0, \"seconds\": 0}\n");
}

}  // namespace
}  // namespace capstan::training

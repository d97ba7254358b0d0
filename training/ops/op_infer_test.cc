// Tests the table's entry of every operator with its cases.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "training/ops/batch_normalization/batch_normalization.h"
#include "training/ops/concat/concat.h"
#include "training/ops/conv/conv.h"
#include "training/ops/dropout/dropout.h"
#include "training/ops/gemm/gemm.h"
#include "training/ops/mat_mul/mat_mul.h"
#include "training/ops/op_cases.h"
#include "training/ops/pool/pool.h"
#include "training/ops/reduce/reduce.h"
#include "training/ops/relu/relu.h"
#include "training/ops/reshape/reshape.h"
#include "training/ops/slice/slice.h"
#include "training/ops/softmax_cross_entropy/softmax_cross_entropy.h"
#include "training/ops/squeeze/squeeze.h"

namespace capstan::training {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<OpCase> CasesOf(const std::string& op, bool hostile) {
  std::vector<OpCase> cases;
  for (const OpCase& one : AllOpCases()) {
    if (one.op.name == op && one.hostile == hostile) cases.push_back(one);
  }
  return cases;
}

std::string RefusalOf(const Operator& op, const std::vector<ValueType>& inputs) {
  const absl::StatusOr<OpInstance> instance = Instantiate(op, inputs);
  if (instance.ok()) return "no error";
  EXPECT_EQ(instance.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(instance.status().message());
}

void ExpectSameInference(const Inference& a, const Inference& b) {
  EXPECT_EQ(a.output.shape, b.output.shape);
  EXPECT_EQ(a.output.dtype, b.output.dtype);
  EXPECT_EQ(a.flops, b.flops);
  ASSERT_EQ(a.parameters.size(), b.parameters.size());
  for (size_t i = 0; i < a.parameters.size(); ++i) {
    EXPECT_EQ(a.parameters[i].suffix, b.parameters[i].suffix);
    EXPECT_EQ(a.parameters[i].shape, b.parameters[i].shape);
  }
  ASSERT_EQ(a.saved.size(), b.saved.size());
  for (size_t i = 0; i < a.saved.size(); ++i) EXPECT_EQ(a.saved[i].shape, b.saved[i].shape);
}

TEST(OpTableTest, IsSortedAndComplete) {
  std::string before;
  for (const OpDef* const op : AllOps()) {
    SCOPED_TRACE(op->name);
    EXPECT_LT(before, op->name);
    before = op->name;
    EXPECT_EQ(FindOp(op->name), op);
    EXPECT_NE(op->infer, nullptr);
    EXPECT_NE(op->reference.forward, nullptr);
    EXPECT_NE(op->reference.backward, nullptr);
    EXPECT_NE(op->reference_double.forward, nullptr);
    EXPECT_NE(op->reference_double.backward, nullptr);
  }
  EXPECT_EQ(FindOp("Unknown"), nullptr);
}

TEST(OpTableTest, EveryOperatorHasCasesWithEachOfItsAttributes) {
  std::set<std::string> names;
  for (const OpCase& one : AllOpCases()) {
    EXPECT_NE(FindOp(one.op.name), nullptr) << one.op.name;
    EXPECT_TRUE(names.insert(one.op.name + "/" + one.name).second) << one.op.name << one.name;
    EXPECT_EQ(one.hostile, !one.error_has.empty()) << one.op.name << "/" << one.name;
  }
  for (const OpDef* const op : AllOps()) {
    SCOPED_TRACE(op->name);
    EXPECT_FALSE(CasesOf(op->name, /*hostile=*/true).empty());
    const std::vector<OpCase> cases = CasesOf(op->name, /*hostile=*/false);
    EXPECT_GE(cases.size(), 2u);
    for (const AttributeDef& attribute : op->attributes) {
      bool varied = false;
      for (const OpCase& one : cases) {
        const auto& values = one.op.attributes.values();
        const auto found = values.find(attribute.name);
        varied = varied || (found != values.end() && found->second != attribute.value);
      }
      EXPECT_TRUE(varied) << attribute.name << " has its default in every case";
    }
  }
}

TEST(OpTableTest, CasesAreTakenOrRefusedForTheirReason) {
  for (const OpCase& one : AllOpCases()) {
    SCOPED_TRACE(one.op.name + "/" + one.name);
    if (one.hostile) {
      EXPECT_THAT(RefusalOf(one.op, one.inputs), HasSubstr(one.error_has));
    } else {
      EXPECT_EQ(Instantiate(one.op, one.inputs).status(), absl::OkStatus());
    }
  }
}

TEST(OpTableTest, ResolvedShapesAndAxesStandInTheAttributes) {
  const absl::StatusOr<OpInstance> reshape = Instantiate(Reshape{{0, -1}}, Floats({{2, 3, 4}}));
  ASSERT_EQ(reshape.status(), absl::OkStatus());
  EXPECT_THAT(reshape->attributes.Ints("shape"), ElementsAre(2, 12));
  EXPECT_THAT(reshape->inferred.output.shape, ElementsAre(2, 12));
  const absl::StatusOr<OpInstance> concat = Instantiate(Concat{-1}, Floats({{2, 3, 4}, {2, 3, 1}}));
  ASSERT_EQ(concat.status(), absl::OkStatus());
  EXPECT_EQ(concat->attributes.Int("axis"), 3);
  EXPECT_THAT(concat->inferred.output.shape, ElementsAre(2, 3, 5));
  const absl::StatusOr<OpInstance> squeeze = Instantiate(Squeeze(), Floats({{1, 3, 1}}));
  ASSERT_EQ(squeeze.status(), absl::OkStatus());
  EXPECT_THAT(squeeze->attributes.Ints("axes"), ElementsAre(1, 3));
  EXPECT_THAT(squeeze->inferred.output.shape, ElementsAre(3));
  const absl::StatusOr<OpInstance> mean = Instantiate(ReduceMean(), Floats({{2, 3}}));
  ASSERT_EQ(mean.status(), absl::OkStatus());
  EXPECT_THAT(mean->attributes.Ints("axes"), ElementsAre(1, 2));
  EXPECT_THAT(mean->inferred.output.shape, ElementsAre(1, 1));
  // Of 7: 1 to the end in steps of 3 is 1 and 4; 5 backwards to the first is 5, 3 and 1.
  const absl::StatusOr<OpInstance> slice =
      Instantiate(SliceNode{{1, 5}, {100, -100}, {2, 1}, {3, -2}}, Floats({{7, 7}}));
  ASSERT_EQ(slice.status(), absl::OkStatus());
  EXPECT_THAT(slice->attributes.Ints("starts"), ElementsAre(1, 5));
  EXPECT_THAT(slice->attributes.Ints("ends"), ElementsAre(7, -8));
  EXPECT_THAT(slice->inferred.output.shape, ElementsAre(3, 2));
}

// A resolved graph stays the same when another process reads its bytes.
TEST(OpTableTest, InferenceOfWhatWasResolvedIsTheSame) {
  for (const OpCase& one : AllOpCases()) {
    if (one.hostile) continue;
    SCOPED_TRACE(one.op.name + "/" + one.name);
    const absl::StatusOr<OpInstance> first = Instantiate(one.op, one.inputs);
    ASSERT_EQ(first.status(), absl::OkStatus());
    const absl::StatusOr<OpInstance> second =
        Instantiate({one.op.name, first->attributes}, one.inputs);
    ASSERT_EQ(second.status(), absl::OkStatus());
    EXPECT_EQ(second->attributes.values(), first->attributes.values());
    ExpectSameInference(second->inferred, first->inferred);
  }
}

TEST(OpTableTest, InferenceAgreesWithTheTable) {
  for (const OpCase& one : AllOpCases()) {
    if (one.hostile) continue;
    SCOPED_TRACE(one.op.name + "/" + one.name);
    const absl::StatusOr<OpInstance> instance = Instantiate(one.op, one.inputs);
    ASSERT_EQ(instance.status(), absl::OkStatus());
    const OpDef& def = *FindOp(one.op.name);
    const Inference& inferred = instance->inferred;
    if (def.in_place == InPlace::kView) {
      EXPECT_EQ(Elements(inferred.output.shape), Elements(one.inputs[0].shape));
    }
    if (def.loss) {
      EXPECT_THAT(inferred.output.shape, ElementsAre(1));
    }
    bool statistics = false;
    for (const OpParameter& parameter : inferred.parameters) {
      SCOPED_TRACE(parameter.suffix);
      EXPECT_TRUE(parameter.statistic || !statistics) << "statistics come last";
      statistics = statistics || parameter.statistic;
      if (parameter.init == ParameterInit::kInitializer) {
        EXPECT_GE(parameter.fan_in, 1);
        EXPECT_GE(parameter.fan_out, 1);
      }
    }
  }
}

// An attribute that is unknown, has another type, is missing or is not finite.
TEST(OpTableTest, AttributesAreHeldToTheirSchema) {
  for (const OpDef* const op : AllOps()) {
    SCOPED_TRACE(op->name);
    const OpCase good = CasesOf(op->name, /*hostile=*/false).front();
    EXPECT_THAT(RefusalOf(With(good.op, "no_such", int64_t{1}), good.inputs),
                HasSubstr("attribute no_such: not known, want one of"));
    for (const AttributeDef& attribute : op->attributes) {
      SCOPED_TRACE(attribute.name);
      const std::string name = "attribute " + attribute.name + ": ";
      const std::vector<AttributeValue> values = {int64_t{1}, 0.5, std::string("1"),
                                                  std::vector<int64_t>{1}};
      for (const AttributeValue& value : values) {
        if (value.index() == attribute.value.index()) continue;
        EXPECT_THAT(RefusalOf(With(good.op, attribute.name, value), good.inputs), HasSubstr(name));
      }
      if (std::holds_alternative<double>(attribute.value)) {
        for (const double value :
             {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::infinity()}) {
          EXPECT_THAT(RefusalOf(With(good.op, attribute.name, value), good.inputs),
                      HasSubstr("want a finite number"));
        }
      }
      Operator without{op->name, {}};
      for (const auto& [other, value] : good.op.attributes.values()) {
        if (other != attribute.name) without.attributes.Set(other, value);
      }
      if (attribute.required) {
        EXPECT_THAT(RefusalOf(without, good.inputs), HasSubstr(name + "is required"));
      }
    }
  }
}

// Each is refused, or inferred within the limits. The sanitizers notice any overflow on the way.
TEST(OpTableTest, AbsurdNumbersNeverOverflow) {
  constexpr int64_t kLargest = std::numeric_limits<int64_t>::max();
  constexpr int64_t kSmallest = std::numeric_limits<int64_t>::min();
  for (const OpCase& one : AllOpCases()) {
    if (one.hostile) continue;
    SCOPED_TRACE(one.op.name + "/" + one.name);
    const auto expect_limits = [&](const std::string& name, const AttributeValue& value) {
      const absl::StatusOr<OpInstance> instance =
          Instantiate(With(one.op, name, value), one.inputs);
      if (!instance.ok()) return;
      EXPECT_LE(Elements(instance->inferred.output.shape), kMaxTensorElements) << name;
      EXPECT_GE(instance->inferred.flops, 0) << name;
    };
    for (const AttributeDef& attribute : FindOp(one.op.name)->attributes) {
      const absl::StatusOr<OpInstance> good = Instantiate(one.op, one.inputs);
      ASSERT_EQ(good.status(), absl::OkStatus());
      for (const int64_t value :
           {kLargest, kSmallest, kAbsurd, -kAbsurd, int64_t{-1}, int64_t{0}}) {
        if (std::holds_alternative<int64_t>(attribute.value)) expect_limits(attribute.name, value);
        if (!std::holds_alternative<std::vector<int64_t>>(attribute.value)) continue;
        std::vector<int64_t> list = good->attributes.Ints(attribute.name);
        for (size_t i = 0; i < list.size(); ++i) {
          std::vector<int64_t> changed = list;
          changed[i] = value;
          expect_limits(attribute.name, changed);
        }
        expect_limits(attribute.name, std::vector<int64_t>(list.size(), value));
        expect_limits(attribute.name, std::vector<int64_t>(list.size() + 1, value));
      }
    }
  }
}

// Reading an operator's typed form and writing it again changes nothing.
TEST(OpTableTest, TypedFormsHoldEveryAttribute) {
  for (const OpDef* const op : AllOps()) {
    SCOPED_TRACE(op->name);
    const std::vector<OpCase> cases = CasesOf(op->name, /*hostile=*/false);
    const auto typed = std::find_if(cases.begin(), cases.end(),
                                    [](const OpCase& one) { return one.op.retyped != nullptr; });
    ASSERT_NE(typed, cases.end()) << "no case has the operator in its typed form";
    for (const OpCase& one : cases) {
      SCOPED_TRACE(one.name);
      const absl::StatusOr<OpInstance> first = Instantiate(one.op, one.inputs);
      ASSERT_EQ(first.status(), absl::OkStatus());
      const std::optional<Operator> again = typed->op.retyped({op->name, first->attributes});
      ASSERT_TRUE(again.has_value());
      const absl::StatusOr<OpInstance> second = Instantiate(*again, one.inputs);
      ASSERT_EQ(second.status(), absl::OkStatus());
      EXPECT_EQ(second->attributes.values(), first->attributes.values());
      EXPECT_FALSE(typed->op.retyped({"Other", first->attributes}).has_value());
    }
  }
}

// H = W = 5 and 6, kernel 3 and stride 2: ceil(5 / 2) = ceil(6 / 2) = 3 outputs need 7 elements, so
// 2 and 1 are added. VALID: floor((5 - 3) / 2) + 1. From the formulas of auto_pad in ONNX's Conv
// and MaxPool.
TEST(OpWindowTest, AutoPadFollowsOnnx) {
  MaxPool pool;
  pool.window.kernel_shape = {3, 3};
  pool.window.strides = {2, 2};
  const auto resolve = [&](const std::string& auto_pad) {
    absl::StatusOr<OpInstance> instance =
        Instantiate(With(pool, "auto_pad", auto_pad), Floats({{1, 5, 6}}));
    EXPECT_EQ(instance.status(), absl::OkStatus());
    EXPECT_EQ(instance->attributes.Text("auto_pad"), "NOTSET");
    return *std::move(instance);
  };
  const OpInstance upper = resolve("SAME_UPPER"), lower = resolve("SAME_LOWER");
  EXPECT_THAT(upper.inferred.output.shape, ElementsAre(1, 3, 3));
  EXPECT_THAT(upper.attributes.Ints("pads"), ElementsAre(1, 0, 1, 1));
  EXPECT_THAT(lower.inferred.output.shape, ElementsAre(1, 3, 3));
  EXPECT_THAT(lower.attributes.Ints("pads"), ElementsAre(1, 1, 1, 0));
  EXPECT_THAT(resolve("VALID").inferred.output.shape, ElementsAre(1, 2, 2));
}

// By hand: (11 + 3 - 5) / 2 + 1 and (13 + 1 - 3) / 3 + 1; (7 - 3) / 2 + 1 and 5 - 2 + 1.
TEST(OpWindowTest, HeightAndWidthHaveTheirOwnSizes) {
  Conv conv;
  conv.out_channels = 8;
  conv.window = {{3, 3}, {2, 3}, {1, 0, 2, 1}, {2, 1}};
  EXPECT_THAT(Instantiate(conv, Floats({{3, 11, 13}}))->inferred.output.shape,
              ElementsAre(8, 5, 4));
  MaxPool pool;
  pool.window = {{3, 2}, {2, 1}, {0, 0, 0, 0}, {1, 1}};
  EXPECT_THAT(Instantiate(pool, Floats({{2, 7, 5}}))->inferred.output.shape, ElementsAre(2, 3, 4));
}

TEST(OpParametersTest, ConvolutionCountsItsGroup) {
  Conv conv;
  conv.out_channels = 4;
  conv.group = 2;
  conv.window.kernel_shape = {3, 2};
  const absl::StatusOr<OpInstance> instance = Instantiate(conv, Floats({{6, 5, 5}}));
  ASSERT_EQ(instance.status(), absl::OkStatus());
  const std::vector<OpParameter>& parameters = instance->inferred.parameters;
  ASSERT_EQ(parameters.size(), 2u);
  EXPECT_EQ(parameters[0].suffix, "weight");
  EXPECT_THAT(parameters[0].shape, ElementsAre(4, 3, 3, 2));
  EXPECT_EQ(parameters[0].fan_in, 18);   // 3 channels of the group * 3 * 2
  EXPECT_EQ(parameters[0].fan_out, 24);  // 4 * 3 * 2
  EXPECT_FALSE(parameters[0].bias_like);
  EXPECT_EQ(parameters[1].suffix, "bias");
  EXPECT_THAT(parameters[1].shape, ElementsAre(4));
  EXPECT_EQ(parameters[1].fan_in, 18);
  EXPECT_EQ(parameters[1].init, ParameterInit::kZeros);
  EXPECT_TRUE(parameters[1].bias_like);
  EXPECT_EQ(instance->inferred.flops, 2 * 72 * 3 * 4);  // weights times positions
}

TEST(OpParametersTest, DenseLayerHasFansAndWork) {
  const absl::StatusOr<OpInstance> instance = Instantiate(Gemm{5}, Floats({{7}}));
  ASSERT_EQ(instance.status(), absl::OkStatus());
  EXPECT_THAT(instance->inferred.parameters[0].shape, ElementsAre(5, 7));
  EXPECT_EQ(instance->inferred.parameters[0].fan_in, 7);
  EXPECT_EQ(instance->inferred.parameters[0].fan_out, 5);
  EXPECT_EQ(instance->inferred.flops, 70);
}

TEST(OpParametersTest, AProductOfMatricesHasWork) {
  const absl::StatusOr<OpInstance> instance =
      Instantiate(MatMul(), Floats({{2, 1, 3, 4}, {5, 4, 6}}));
  ASSERT_EQ(instance.status(), absl::OkStatus());
  EXPECT_THAT(instance->inferred.output.shape, ElementsAre(2, 5, 3, 6));
  EXPECT_EQ(instance->inferred.flops, 2 * 180 * 4);
}

// The last accepted number. The cases contain the first refused one.
TEST(OpParametersTest, LimitsThemselvesAreTaken) {
  const auto taken = [](const Operator& op, const Shape& shape) {
    return Instantiate(op, Floats({shape})).status();
  };
  EXPECT_EQ(taken(SoftmaxCrossEntropyLoss(), {std::numeric_limits<int32_t>::max()}),
            absl::OkStatus());
  EXPECT_EQ(taken(Dropout(), {int64_t{1} << 34}), absl::OkStatus());
  for (const double epsilon :
       {double{std::numeric_limits<float>::min()}, double{std::numeric_limits<float>::max()}}) {
    EXPECT_EQ(taken(BatchNormalization{epsilon, 0}, {3}), absl::OkStatus());
  }
  EXPECT_EQ(taken(Relu(), {kMaxTensorElements}), absl::OkStatus());
  Conv conv;
  conv.out_channels = 1;
  EXPECT_EQ(taken(conv, {1, kMaxTensorElements, 1}), absl::OkStatus());
  conv.window.pads = {kMaxTensorElements - 1, 0, 0, 0};
  conv.window.strides = {2 * kMaxTensorElements, 1};
  EXPECT_EQ(taken(conv, {1, 1, 1}), absl::OkStatus());
  conv.window.pads[0] = kMaxTensorElements;
  EXPECT_THAT(std::string(taken(conv, {1, 1, 1}).message()), HasSubstr("has too many elements"));
}

// ONNX's test cases averagepool_2d_same_upper (32 x 32, kernel 2),
// averagepool_2d_precomputed_same_upper (5 x 5, kernel 3, stride 2) and maxpool_2d_dilations (4 x
// 4, kernel 2, dilation 2).
TEST(OpWindowTest, SizesAreThoseOfOnnxTestCases) {
  AveragePool two;
  two.window.kernel_shape = {2, 2};
  const Operator same = With(two, "auto_pad", std::string("SAME_UPPER"));
  EXPECT_THAT(Instantiate(same, Floats({{3, 32, 32}}))->inferred.output.shape,
              ElementsAre(3, 32, 32));
  AveragePool three;
  three.window.kernel_shape = {3, 3};
  three.window.strides = {2, 2};
  EXPECT_THAT(Instantiate(With(three, "auto_pad", std::string("SAME_UPPER")), Floats({{1, 5, 5}}))
                  ->inferred.output.shape,
              ElementsAre(1, 3, 3));
  MaxPool dilated;
  dilated.window.kernel_shape = {2, 2};
  dilated.window.dilations = {2, 2};
  EXPECT_THAT(Instantiate(dilated, Floats({{1, 4, 4}}))->inferred.output.shape,
              ElementsAre(1, 2, 2));
}

}  // namespace
}  // namespace capstan::training
